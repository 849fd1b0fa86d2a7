//! The list of free pages of a database (sqlite.org/fileformat2.html, section 1.5), edited in memory.
//!
//! Page 1 leads to the first trunk page. A trunk page leads to the next trunk page, and lists leaves. Trunks
//! and leaves are free pages; a leaf's content is arbitrary.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::btree_page;
use crate::errors::Failure;

/// The bytes of page 1 that hold the size of the database in pages.
const SIZE: Range<usize> = 28..32;
/// The bytes of page 1 that hold the number of the first trunk.
const HEAD: Range<usize> = 32..36;
/// The bytes of page 1 that hold the number of free pages.
const COUNT: Range<usize> = 36..40;
/// The bytes of page 1 that hold the size of the database, the first trunk, and the number of free pages.
pub const ALLOCATION: Range<usize> = SIZE.start..COUNT.end;
/// The offset in page 1 of the byte that gives the number of reserved bytes at the end of each page. SQLite
/// does not use these bytes.
const RESERVED: usize = 20;
/// The bytes of page 1 that say whether the database has pointer maps (`auto_vacuum`).
const LARGEST_ROOT: Range<usize> = 52..56;
const NEXT: Range<usize> = 0..4;
const LEAVES: Range<usize> = 4..8;
const FIRST_LEAF: usize = 8;

/// A function that reads a page.
pub type ReadPage<'a> = &'a dyn Fn(u32) -> Result<Vec<u8>, Failure>;

fn number(page: &[u8], at: Range<usize>) -> u32 {
    btree_page::number(page, at.start).unwrap_or(0)
}

fn set_number(page: &mut [u8], at: Range<usize>, number: u32) {
    if let Some(bytes) = page.get_mut(at) {
        bytes.copy_from_slice(&number.to_be_bytes());
    }
}

/// Returns the size of the database in pages, from page 1.
pub fn size_in(first: &[u8]) -> u32 {
    number(first, SIZE)
}

/// Sets the size of the database in pages.
pub fn set_size(first: &mut [u8], pages: u32) {
    set_number(first, SIZE, pages);
}

/// Returns the number of free pages, from page 1.
pub fn free_pages(first: &[u8]) -> u32 {
    number(first, COUNT)
}

/// Returns the first trunk, or 0 if no page is free.
pub fn head(first: &[u8]) -> u32 {
    number(first, HEAD)
}

/// Returns whether the database has pointer maps, whose pages change with each allocation.
pub fn has_pointer_maps(first: &[u8]) -> bool {
    number(first, LARGEST_ROOT) != 0
}

/// Returns the next trunk, or 0 for the last one.
pub fn next(trunk: &[u8]) -> u32 {
    number(trunk, NEXT)
}

/// Returns the number of bytes at the end of each page that SQLite does not use.
pub fn reserved(first: &[u8]) -> usize {
    first.get(RESERVED).copied().map_or(0, usize::from)
}

/// Returns the largest number of leaves that SQLite puts on a trunk.
fn most_leaves(first: &[u8]) -> usize {
    (first.len() - reserved(first)) / 4 - 8
}

/// Returns the leaves of a trunk, or `None` for a page that is no trunk.
pub fn leaves(trunk: &[u8]) -> Option<Vec<u32>> {
    let count = number(trunk, LEAVES) as usize;
    let leaves = trunk.get(FIRST_LEAF..FIRST_LEAF.checked_add(count.checked_mul(4)?)?)?;
    Some(leaves.chunks_exact(4).map(|leaf| number(leaf, 0..4)).collect())
}

/// Returns a trunk with these leaves.
pub fn trunk(page_bytes: usize, next: u32, leaves: &[u32]) -> Vec<u8> {
    let mut trunk = vec![0; page_bytes];
    set_number(&mut trunk, NEXT, next);
    set_number(&mut trunk, LEAVES, leaves.len() as u32);
    for (at, leaf) in leaves.iter().enumerate() {
        let at = FIRST_LEAF + 4 * at;
        set_number(&mut trunk, at..at + 4, *leaf);
    }
    trunk
}

/// Makes page 1 lead to this trunk.
pub fn set_head(first: &mut [u8], head: u32) {
    set_number(first, HEAD, head);
}

/// A free list that is being edited.
pub struct FreeList<'a> {
    /// Page 1.
    first: Vec<u8>,
    read: ReadPage<'a>,
    trunks: BTreeMap<u32, Vec<u8>>,
    changed: BTreeSet<u32>,
}

/// The number of trunks after which the search for a page gives up. The page then counts as not free.
const MOST_TRUNKS: usize = 1 << 16;

impl<'a> FreeList<'a> {
    /// Makes the free list of a database. `first` is the database's page 1, and `read` reads its other pages.
    pub fn new(first: Vec<u8>, read: ReadPage<'a>) -> Self {
        Self { first, read, trunks: BTreeMap::new(), changed: BTreeSet::new() }
    }

    fn trunk(&mut self, page: u32) -> Result<&mut Vec<u8>, Failure> {
        match self.trunks.entry(page) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => Ok(entry.insert((self.read)(page)?)),
        }
    }

    fn put(&mut self, page: u32, image: Vec<u8>) {
        self.trunks.insert(page, image);
        self.changed.insert(page);
    }

    fn add_to_count(&mut self, by: i32) {
        let count = number(&self.first, COUNT).wrapping_add_signed(by);
        set_number(&mut self.first, COUNT, count);
    }

    /// Takes a page off the list. Returns whether the page was on the list.
    pub fn take(&mut self, page: u32) -> Result<bool, Failure> {
        let (mut before, mut at) = (None, head(&self.first));
        for _ in 0..MOST_TRUNKS {
            if at == 0 {
                return Ok(false);
            }
            let image = self.trunk(at)?.clone();
            let Some(mut found) = leaves(&image) else { return Ok(false) };
            if at == page {
                // The trunk itself is taken, so its last leaf becomes the trunk.
                let after = match found.pop() {
                    None => next(&image),
                    Some(leaf) => {
                        self.put(leaf, trunk(image.len(), next(&image), &found));
                        leaf
                    }
                };
                self.trunks.remove(&page);
                self.changed.remove(&page);
                match before {
                    None => set_head(&mut self.first, after),
                    Some(before) => {
                        set_number(self.trunk(before)?, NEXT, after);
                        self.changed.insert(before);
                    }
                }
                self.add_to_count(-1);
                return Ok(true);
            }
            if let Some(place) = found.iter().position(|leaf| *leaf == page) {
                found.swap_remove(place);
                self.put(at, trunk(image.len(), next(&image), &found));
                self.add_to_count(-1);
                return Ok(true);
            }
            (before, at) = (Some(at), next(&image));
        }
        Ok(false)
    }

    /// Adds a page to the list.
    pub fn give(&mut self, page: u32) -> Result<(), Failure> {
        let (at, most) = (head(&self.first), most_leaves(&self.first));
        let mut found = if at == 0 { None } else { leaves(self.trunk(at)?) };
        match found.as_mut().filter(|found| found.len() < most) {
            Some(found) => {
                found.push(page);
                let image = self.trunk(at)?;
                let image = trunk(image.len(), next(image), found);
                self.put(at, image);
            }
            None => {
                self.put(page, trunk(self.first.len(), at, &[]));
                set_head(&mut self.first, page);
            }
        }
        self.add_to_count(1);
        Ok(())
    }

    /// Returns page 1, and the trunks that have changed.
    pub fn into_changed(mut self) -> (Vec<u8>, BTreeMap<u32, Vec<u8>>) {
        self.trunks.retain(|page, _| self.changed.contains(page));
        (self.first, self.trunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 512;

    /// Returns all free pages, as page 1 and the trunks in `pages` list them.
    fn all(first: &[u8], pages: &BTreeMap<u32, Vec<u8>>) -> BTreeSet<u32> {
        let (mut found, mut at) = (BTreeSet::new(), head(first));
        while at != 0 {
            assert!(found.insert(at));
            for leaf in leaves(&pages[&at]).unwrap() {
                assert!(found.insert(leaf));
            }
            at = next(&pages[&at]);
        }
        assert_eq!(found.len(), number(first, COUNT) as usize);
        found
    }

    #[test]
    fn pages_are_taken_and_given_in_any_order() {
        let mut seed = 7_u64;
        let mut random = move |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32 % below
        };
        let (mut first, mut pages, mut model) = (vec![0; PAGE], BTreeMap::new(), BTreeSet::new());
        for _ in 0..300 {
            let before = pages.clone();
            let read = |page: u32| Ok(before.get(&page).cloned().unwrap_or(vec![0xff; PAGE]));
            let mut list = FreeList::new(first.clone(), &read);
            for _ in 0..=random(40) {
                let page = 2 + random(600);
                if model.remove(&page) {
                    assert!(list.take(page).unwrap());
                } else if random(8) < 5 {
                    list.give(page).unwrap();
                    model.insert(page);
                } else {
                    assert!(!list.take(page).unwrap());
                }
            }
            let (new, changed) = list.into_changed();
            first = new;
            pages.extend(changed);
            assert_eq!(all(&first, &pages), model);
        }
    }

    #[test]
    fn what_is_no_trunk_has_no_leaves() {
        let mut page = vec![0; PAGE];
        set_number(&mut page, LEAVES, 200);
        assert_eq!(leaves(&page), None);
        assert_eq!(leaves(&trunk(PAGE, 9, &[4, 5])), Some(vec![4, 5]));
        assert_eq!(most_leaves(&page), 120);
    }
}
