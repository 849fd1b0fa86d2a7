//! Finds out to which table or index a page belongs, from the pages of one snapshot.
//!
//! `sqlite_schema` names the roots. From there the search goes down all b-trees at once, a level at a time.
//! The parents of the leaves hold the numbers of the leaves, so the search reads only the first leaf of each
//! tree. If a page has no known owner after that, it may be on the free list, or may hold the rest of a long
//! row. To find the rests of long rows, the search reads all pages. The search ends when it knows all owners
//! that the caller asked for, or has read the permitted number of pages.

use std::collections::{BTreeMap, BTreeSet};

use super::btree_page::{BTreePage, Encoding, Entry, Payload, entry, number};
use super::free_list;

/// The owner of page 1, which begins with the database's header.
const FIRST: &str = "schema, or size of the database";
const SCHEMA: &str = "schema";
const FREE_LIST: &str = "free list";
const POINTER_MAP: &str = "pointer map";

/// The largest number of bytes of a row of `sqlite_schema` that the search reads.
const LONGEST_ROW: usize = 1 << 20;

/// Finds out to which table or index these pages belong. The result lacks a page whose owner the search
/// cannot tell. The search calls `read` at most `most` times. `read` returns the image of a page, or `None`
/// if there is no such page.
pub fn owners(
    wanted: &BTreeSet<u32>,
    most: usize,
    read: impl FnMut(u32) -> Option<Vec<u8>>,
) -> BTreeMap<u32, String> {
    let mut search = Search { wanted: wanted.clone(), found: BTreeMap::new(), read, left: most, reserved: 0 };
    search.run();
    search.found
}

struct Search<Read> {
    /// The pages whose owners have not been found yet.
    wanted: BTreeSet<u32>,
    found: BTreeMap<u32, String>,
    read: Read,
    /// The number of pages that the search may still read.
    left: usize,
    reserved: usize,
}

impl<Read: FnMut(u32) -> Option<Vec<u8>>> Search<Read> {
    fn page(&mut self, number: u32) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(1)?;
        (self.read)(number)
    }

    fn is_over(&self) -> bool {
        self.wanted.is_empty() || self.left == 0
    }

    fn is(&mut self, page: u32, owner: &str) {
        if self.wanted.remove(&page) {
            self.found.insert(page, owner.to_owned());
        }
    }

    fn run(&mut self) {
        self.is(1, FIRST);
        if self.is_over() {
            return;
        }
        let Some(first) = self.page(1) else { return };
        self.reserved = free_list::reserved(&first);
        if free_list::has_pointer_maps(&first) {
            self.pointer_maps(&first);
        }
        let entries = self.schema(&first);
        let trees: Vec<(String, u32)> = entries.iter().map(|entry| (name_of(entry), entry.root)).collect();
        trees.iter().for_each(|(name, root)| self.is(*root, name));
        self.interiors(&trees);
        self.free_list(free_list::head(&first));
        for (name, root) in &trees {
            self.overflows(name, *root);
        }
    }

    /// Adds the children of this page to the pages that the search reads next, from left to right. Adds no
    /// more pages than the search may still read.
    fn add(&self, page: &BTreePage<'_>, next: &mut Vec<u32>, seen: &mut BTreeSet<u32>) {
        for child in page.children().into_iter().rev() {
            if next.len() < self.left && seen.insert(child) {
                next.push(child);
            }
        }
    }

    fn pointer_maps(&mut self, first: &[u8]) {
        let usable = first.len().saturating_sub(self.reserved);
        let every = u32::try_from(usable / 5 + 1).unwrap_or(u32::MAX);
        let maps: Vec<u32> = self
            .wanted
            .iter()
            .copied()
            .filter(|page| *page >= 2 && (page - 2).is_multiple_of(every))
            .collect();
        maps.into_iter().for_each(|page| self.is(page, POINTER_MAP));
    }

    /// Reads the whole of `sqlite_schema`, and returns its rows that have b-trees.
    fn schema(&mut self, first: &[u8]) -> Vec<Entry> {
        let encoding = Encoding::of(first);
        let (mut entries, mut next, mut seen) = (Vec::new(), vec![1], BTreeSet::from([1]));
        while let Some(at) = next.pop() {
            self.is(at, SCHEMA);
            let image = if at == 1 { Some(first.to_vec()) } else { self.page(at) };
            let Some(image) = image else { continue };
            let Some(page) = BTreePage::new(at, &image, self.reserved) else { continue };
            for payload in page.payloads() {
                entries.extend(self.row(&payload, encoding));
            }
            self.add(&page, &mut next, &mut seen);
        }
        entries
    }

    /// Returns a row of `sqlite_schema`. Does not need the SQL statement at the end of the row, which may be
    /// long.
    fn row(&mut self, payload: &Payload<'_>, encoding: Encoding) -> Option<Entry> {
        if let Some(entry) = entry(payload.local, encoding) {
            return Some(entry);
        }
        let (mut at, _) = payload.overflow?;
        let mut record = payload.local.to_vec();
        while at != 0 && record.len() < LONGEST_ROW {
            let image = self.page(at)?;
            let end = image.len().saturating_sub(self.reserved);
            record.extend_from_slice(image.get(4..end)?);
            if let Some(entry) = entry(&record, encoding) {
                return Some(entry);
            }
            at = number(&image, 0)?;
        }
        None
    }

    /// Goes down all b-trees as far as the parents of the leaves.
    fn interiors(&mut self, trees: &[(String, u32)]) {
        let mut level: Vec<(&str, Vec<u32>)> =
            trees.iter().map(|(name, root)| (name.as_str(), vec![*root])).collect();
        while !level.is_empty() && !self.is_over() {
            let mut below = Vec::new();
            for (name, pages) in level {
                let children = self.children(name, &pages);
                if !children.is_empty() {
                    below.push((name, children));
                }
            }
            level = below;
        }
    }

    /// Returns the children of `pages`, which are the pages of one level. If the first of `pages` is a leaf,
    /// all of them are leaves.
    fn children(&mut self, name: &str, pages: &[u32]) -> Vec<u32> {
        let mut children = Vec::new();
        for at in pages {
            if self.is_over() {
                break;
            }
            let Some(image) = self.page(*at) else { continue };
            let Some(page) = BTreePage::new(*at, &image, self.reserved) else { continue };
            if page.is_leaf() {
                break;
            }
            for child in page.children() {
                self.is(child, name);
                if children.len() < self.left {
                    children.push(child);
                }
            }
        }
        children
    }

    fn free_list(&mut self, head: u32) {
        let mut at = head;
        while at != 0 && !self.is_over() {
            self.is(at, FREE_LIST);
            let Some(image) = self.page(at) else { return };
            let leaves = number(&image, 4).unwrap_or(0) as usize;
            let pages = (0..leaves).map_while(|leaf| number(&image, 8 + 4 * leaf));
            pages.for_each(|page| self.is(page, FREE_LIST));
            at = free_list::next(&image);
        }
    }

    /// Reads all pages of a b-tree, to find the overflow pages, which hold the rests of long rows.
    fn overflows(&mut self, name: &str, root: u32) {
        let name = format!("overflow page of {name}");
        let (mut next, mut seen) = (vec![root], BTreeSet::from([root]));
        while let Some(at) = next.pop() {
            if self.is_over() {
                return;
            }
            let Some(image) = self.page(at) else { continue };
            let Some(page) = BTreePage::new(at, &image, self.reserved) else { continue };
            for (first, pages) in page.payloads().filter_map(|payload| payload.overflow) {
                self.chain(&name, first, pages);
            }
            self.add(&page, &mut next, &mut seen);
        }
    }

    /// Follows the rest of a row through its pages. The last of these pages need not be read.
    fn chain(&mut self, name: &str, first: u32, pages: u64) {
        let (mut at, mut left) = (first, pages);
        while at != 0 && left > 0 && !self.is_over() {
            self.is(at, name);
            left -= 1;
            if left > 0 {
                at = self.page(at).and_then(|image| number(&image, 0)).unwrap_or(0);
            }
        }
    }
}

fn name_of(entry: &Entry) -> String {
    if entry.is_index {
        format!("index {} of {}", entry.name, entry.table)
    } else {
        format!("table {}", entry.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of a database, by their numbers. Each page has 512 bytes.
    #[derive(Default)]
    struct Pages(BTreeMap<u32, Vec<u8>>);

    const BYTES: usize = 512;
    /// The offsets of two numbers in page 1: the free list's first page, and the number that says whether
    /// there are pointer maps.
    const FREE_LIST_HEAD: usize = 32;
    const POINTER_MAPS: usize = 52;

    impl Pages {
        /// Adds a page of a b-tree with these cells. If the page has children, `right` is the right-most
        /// child.
        fn add(&mut self, number: u32, kind: u8, right: u32, cells: &[Vec<u8>]) {
            let mut page = self.0.remove(&number).unwrap_or_else(|| vec![0; BYTES]);
            let header = if number == 1 { 100 } else { 0 };
            page[header] = kind;
            page[header + 3..header + 5].copy_from_slice(&(cells.len() as u16).to_be_bytes());
            let pointers = if kind < 10 {
                page[header + 8..header + 12].copy_from_slice(&right.to_be_bytes());
                header + 12
            } else {
                header + 8
            };
            let mut end = BYTES;
            for (at, cell) in cells.iter().enumerate() {
                end -= cell.len();
                page[end..end + cell.len()].copy_from_slice(cell);
                page[pointers + 2 * at..pointers + 2 * at + 2].copy_from_slice(&(end as u16).to_be_bytes());
            }
            self.0.insert(number, page);
        }

        fn set(&mut self, page: u32, at: usize, numbers: &[u32]) {
            let page = self.0.entry(page).or_insert_with(|| vec![0; BYTES]);
            for (at, number) in (at..).step_by(4).zip(numbers) {
                page[at..at + 4].copy_from_slice(&number.to_be_bytes());
            }
        }

        fn find(&self, wanted: &[u32], most: usize) -> BTreeMap<u32, String> {
            let mut reads = 0;
            let found = owners(&wanted.iter().copied().collect(), most, |page| {
                reads += 1;
                self.0.get(&page).cloned()
            });
            assert!(reads <= most, "{reads}");
            found
        }
    }

    /// Returns a row of `sqlite_schema`.
    fn row(kind: &str, name: &str, table: &str, root: u8) -> Vec<u8> {
        let text = |text: &str| (text.len() * 2 + 13) as u8;
        let mut record = vec![6, text(kind), text(name), text(table), 1, 13];
        record.extend([kind, name, table].concat().bytes());
        record.push(root);
        [vec![record.len() as u8, 1], record].concat()
    }

    fn child(page: u32) -> Vec<u8> {
        [&page.to_be_bytes()[..], &[1]].concat()
    }

    /// Returns a cell of a leaf of a table. The cell has 39 bytes of its row, and two other pages have the
    /// rest.
    fn long(first: u32) -> Vec<u8> {
        let bytes = 39 + 2 * 508_u64;
        let length = [(bytes >> 7) as u8 | 0x80, (bytes & 0x7f) as u8, 1];
        [&length[..], &[7; 39], &first.to_be_bytes()].concat()
    }

    fn database() -> Pages {
        let mut pages = Pages::default();
        let rows = [row("table", "t", "t", 3), row("index", "i", "t", 4)];
        pages.add(1, 5, 20, &[child(2)]);
        pages.add(2, 13, 0, &rows);
        pages.add(20, 13, 0, &[row("table", "u", "u", 5), row("view", "v", "v", 0)]);
        // t has three levels, i has two, u is a leaf.
        pages.add(3, 5, 7, &[child(6)]);
        pages.add(6, 5, 9, &[child(8)]);
        pages.add(7, 5, 11, &[child(10)]);
        for leaf in [8, 9, 10, 11] {
            pages.add(leaf, 13, 0, &[]);
        }
        pages.add(4, 2, 13, &[[&child(12)[..], &[1]].concat()]);
        pages.add(12, 10, 0, &[]);
        pages.add(5, 13, 0, &[]);
        // The free list: two trunks.
        pages.set(1, FREE_LIST_HEAD, &[14]);
        pages.set(14, 0, &[16, 1, 15]);
        pages.set(16, 0, &[0, 0]);
        pages
    }

    #[test]
    fn every_page_is_found_below_its_root() {
        let pages = database();
        let found = pages.find(&(1..=20).collect::<Vec<_>>(), 1000);
        let named = |name: &str| -> Vec<u32> {
            found.iter().filter(|(_, owner)| *owner == name).map(|(page, _)| *page).collect()
        };
        assert_eq!(named(FIRST), [1]);
        assert_eq!(named(SCHEMA), [2, 20]);
        assert_eq!(named("table t"), [3, 6, 7, 8, 9, 10, 11]);
        assert_eq!(named("index i of t"), [4, 12, 13]);
        assert_eq!(named("table u"), [5]);
        assert_eq!(named(FREE_LIST), [14, 15, 16]);
        assert_eq!(found.len(), 17, "{found:?}");
    }

    #[test]
    fn the_search_reads_no_more_than_it_may() {
        let pages = database();
        for most in 0..30 {
            let found = pages.find(&[1, 2, 8, 15, 99], most);
            assert_eq!(found[&1], FIRST);
            assert!(!found.contains_key(&99));
        }
        assert_eq!(pages.find(&[1], 0).len(), 1, "page 1 is known without a look");
        // The search reads page 1, the two leaves of the schema, the three roots, and the left child of t's
        // root.
        assert_eq!(pages.find(&[8], 7).len(), 1);
        assert_eq!(pages.find(&[8], 6).len(), 0);
    }

    #[test]
    fn rests_of_long_rows_are_found() {
        let mut pages = database();
        pages.add(11, 13, 0, &[long(17)]);
        pages.set(17, 0, &[18]);
        pages.set(18, 0, &[19]);
        let found = pages.find(&[17, 18, 19], 1000);
        let owner = "overflow page of table t".to_owned();
        assert_eq!(found, BTreeMap::from([(17, owner.clone()), (18, owner)]));
    }

    #[test]
    fn pointer_maps_are_where_they_have_to_be() {
        let mut pages = database();
        pages.set(1, POINTER_MAPS, &[3]);
        let found = pages.find(&[2, 105, 106], 1000);
        assert_eq!((found[&2].as_str(), found[&105].as_str()), (POINTER_MAP, POINTER_MAP));
        assert!(!found.contains_key(&106));
    }

    #[test]
    fn pages_that_lead_in_a_circle_end_the_search() {
        let mut pages = database();
        pages.add(6, 5, 3, &[child(6)]);
        pages.add(20, 5, 1, &[child(2)]);
        pages.set(16, 0, &[14, u32::MAX]);
        pages.add(8, 13, 0, &[long(17)]);
        pages.set(17, 0, &[17]);
        pages.find(&[99], 1000);
        let random = Pages((1..30).map(|page| (page, vec![page as u8 % 14; BYTES])).collect());
        random.find(&[99], 1000);
        assert!(Pages::default().find(&[99], 1000).is_empty());
    }
}
