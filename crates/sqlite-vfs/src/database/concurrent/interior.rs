//! Changes of interior pages of a table's b-tree that do not overtake a transaction (invariant 63).
//!
//! Such a page has rowids and children, and nothing else. A transaction learns from the page only under which
//! child to look for a rowid. If each child that the transaction has read or written still lies between the
//! same two rowids, the transaction would have learned the same from the new page. The children themselves,
//! and the parent pages, are checked like all other pages. (The interior pages of an index hold entries, and
//! count as data.)
//!
//! A transaction writes such a page when it splits or balances children: it replaces neighbouring children by
//! others, between two rowids. Two transactions may replace different children of one page. The later one then
//! commits the page of the earlier one with its own children put in place ([`merged`]).

use std::collections::BTreeSet;

use super::btree_page::{number, put_varint, varint};
use super::page_set::PageSet;

/// The type of an interior page of a table (sqlite.org/fileformat2.html, section 1.6).
const INTERIOR_OF_TABLE: u8 = 5;
const HEADER_BYTES: usize = 12;

/// A child page. Its rowids are greater than `from`, and at most `to`. The first child of a page has no `from`,
/// and the last child has no `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Child {
    page: u32,
    from: Option<i64>,
    to: Option<i64>,
}

impl Child {
    /// Returns whether this child ends before `other`.
    fn ends_before(&self, other: &Self) -> bool {
        match (self.to, other.to) {
            (Some(to), Some(other)) => to < other,
            (to, None) => to.is_some(),
            (None, Some(_)) => false,
        }
    }
}

/// From this size on, in pages, a database may have overflow pages that look like interior pages of a table.
/// An overflow page begins with the number of the next page, and in such a database that number may begin
/// with the type of an interior page.
const NUMBERS_LOOK_INTERIOR: u32 = (INTERIOR_OF_TABLE as u32) << 24;

/// Returns whether both images are of an interior page of a table, and each child in `used` lies between the
/// same rowids in both. `pages` is the size of the database in pages.
pub fn is_same_for(before: &[u8], after: &[u8], pages: u32, used: impl Fn(u32) -> bool) -> bool {
    if pages >= NUMBERS_LOOK_INTERIOR {
        return false;
    }
    let (Some(before), Some(after)) = (children(before), children(after)) else { return false };
    let mut later = after.iter();
    before.iter().filter(|child| used(child.page)).all(|child| {
        // Children that stay keep their order.
        let found = later.find(|found| found.page == child.page);
        found.is_some_and(|found| (found.from, found.to) == (child.from, child.to))
    })
}

/// Returns the page `newest` with the changes that make `own` from `before`. All three are images of one
/// interior page of a table: `before` as of the transaction's snapshot, `own` as the transaction has written it,
/// and `newest` as others have committed it. Returns `None` if others have changed a child that the transaction
/// has replaced, or if the result does not fit on a page. `pages` is the size of the database in pages.
///
/// The caller has made sure that [`is_same_for`] holds for `before` and `newest`, that the page was not free in
/// the snapshot, and that the transaction has not freed it. The pages must have no reserved bytes at their ends, because a VFS above this one may
/// keep there what depends on the rest of the page.
pub fn merged(before: &[u8], own: &[u8], newest: &[u8], pages: u32) -> Option<Vec<u8>> {
    if pages >= NUMBERS_LOOK_INTERIOR {
        return None;
    }
    let (old, own, mut others) = (children(before)?, children(own)?, children(newest)?);
    let (mut from, mut own_from) = (0, 0);
    while from < old.len() {
        // Find the next rowid that ends a child in both images. Both images end without a rowid, so the search
        // ends there at the latest.
        let (mut to, mut own_to) = (from, own_from);
        while old[to].to != own[own_to].to {
            if old[to].ends_before(&own[own_to]) { to += 1 } else { own_to += 1 }
        }
        let (were, are) = (&old[from..=to], &own[own_from..=own_to]);
        if were != are {
            let at = others.iter().position(|child| child.from == were[0].from)?;
            if others.get(at..at + were.len()) != Some(were) {
                return None;
            }
            others.splice(at..at + were.len(), are.iter().copied());
        }
        (from, own_from) = (to + 1, own_to + 1);
    }
    let distinct: BTreeSet<u32> = others.iter().map(|child| child.page).collect();
    if distinct.len() < others.len() {
        return None;
    }
    interior_page(&others, newest.len())
}

/// Returns an interior page of a table with these children, or `None` if they do not fit, or if there are too
/// few of them.
fn interior_page(children: &[Child], bytes: usize) -> Option<Vec<u8>> {
    let (last, others) = children.split_last().filter(|(_, others)| !others.is_empty())?;
    let mut page = vec![0; bytes];
    let mut start = bytes;
    let mut pointers = Vec::with_capacity(2 * others.len());
    for child in others {
        let mut cell = child.page.to_be_bytes().to_vec();
        put_varint(&mut cell, child.to?.cast_unsigned());
        start = start.checked_sub(cell.len())?;
        page[start..start + cell.len()].copy_from_slice(&cell);
        pointers.extend_from_slice(&(start as u16).to_be_bytes());
    }
    if start < HEADER_BYTES + pointers.len() {
        return None;
    }
    page[0] = INTERIOR_OF_TABLE;
    page[3..5].copy_from_slice(&(others.len() as u16).to_be_bytes());
    page[5..7].copy_from_slice(&(start as u16).to_be_bytes());
    page[8..HEADER_BYTES].copy_from_slice(&last.page.to_be_bytes());
    page[HEADER_BYTES..HEADER_BYTES + pointers.len()].copy_from_slice(&pointers);
    Some(page)
}

/// Returns whether this is an image of an interior page of a table.
pub fn is_interior(page: &[u8]) -> bool {
    page.first() == Some(&INTERIOR_OF_TABLE)
}

/// Returns the children of an interior page of a table, from left to right, or `None` for any other page.
fn children(page: &[u8]) -> Option<Vec<Child>> {
    if !is_interior(page) {
        return None;
    }
    let cells = usize::from(u16::from_be_bytes(page.get(3..5)?.try_into().ok()?));
    let mut children = Vec::with_capacity(cells + 1);
    let mut from = None;
    for cell in 0..cells {
        let pointer = HEADER_BYTES + 2 * cell;
        let at = usize::from(u16::from_be_bytes(page.get(pointer..pointer + 2)?.try_into().ok()?));
        let to = Some(varint(page.get(at + 4..)?)?.0.cast_signed());
        children.push(Child { page: number(page, at)?, from, to });
        from = to;
    }
    children.push(Child { page: number(page, 8)?, from, to: None });
    Some(children)
}

/// Returns the set of pages that the transaction has read or written, in the form that [`is_same_for`] takes.
pub fn uses<'a>(read: &'a PageSet, written: &'a [u32]) -> impl Fn(u32) -> bool + 'a {
    |page| read.contains(page) || written.binary_search(&page).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a database in pages.
    const PAGES: u32 = 1000;

    /// Returns an interior page of a table with these children, and the rowids between them.
    fn page(children: &[u32], rowids: &[u64]) -> Vec<u8> {
        let mut page = vec![0; 512];
        page[0] = INTERIOR_OF_TABLE;
        page[3..5].copy_from_slice(&(rowids.len() as u16).to_be_bytes());
        page[8..12].copy_from_slice(&children[rowids.len()].to_be_bytes());
        let mut at = 512;
        for (cell, (child, rowid)) in children.iter().zip(rowids).enumerate() {
            let low = [(rowid >> 7) as u8 | 0x80, (rowid & 0x7f) as u8];
            at -= 6;
            page[at..at + 4].copy_from_slice(&child.to_be_bytes());
            page[at + 4..at + 6].copy_from_slice(&low);
            page[12 + 2 * cell..14 + 2 * cell].copy_from_slice(&(at as u16).to_be_bytes());
        }
        page
    }

    #[test]
    fn a_split_elsewhere_is_no_matter() {
        let before = page(&[3, 4, 5], &[100, 200]);
        let split = page(&[3, 9, 4, 5], &[50, 100, 200]);
        for (used, same) in [(&[4, 5][..], true), (&[3], false), (&[], true), (&[5], true)] {
            assert_eq!(is_same_for(&before, &split, PAGES, |page| used.contains(&page)), same, "{used:?}");
        }
    }

    #[test]
    fn inv63_a_child_that_is_gone_moved_or_of_other_bounds_matters() {
        let before = page(&[3, 4, 5], &[100, 200]);
        for after in [
            page(&[3, 5], &[100]),
            page(&[4, 3, 5], &[100, 200]),
            page(&[3, 4, 5], &[100, 201]),
            page(&[3, 4, 5], &[99, 200]),
            page(&[3, 5, 4], &[100, 200]),
        ] {
            assert!(!is_same_for(&before, &after, PAGES, |page| page == 4));
        }
        let leaf = {
            let mut leaf = before.clone();
            leaf[0] = 13;
            leaf
        };
        assert!(!is_same_for(&before, &leaf, PAGES, |_| false));
        let index = {
            let mut index = before.clone();
            index[0] = 2;
            index
        };
        assert!(!is_same_for(&index, &index, PAGES, |_| false));
    }

    #[test]
    fn changes_of_different_children_are_merged() {
        let before = page(&[3, 4, 5, 6], &[100, 200, 300]);
        let split = page(&[3, 9, 4, 5, 6], &[50, 100, 200, 300]);
        for (other, pages, rowids) in [
            // Another leaf is split, and the last one.
            (
                page(&[3, 4, 5, 8, 6], &[100, 200, 250, 300]),
                &[3, 9, 4, 5, 8, 6][..],
                &[50, 100, 200, 250, 300][..],
            ),
            (page(&[3, 4, 5, 6, 8], &[100, 200, 300, 310]), &[3, 9, 4, 5, 6, 8], &[50, 100, 200, 300, 310]),
            // The rows of two leaves go to one, or are divided in another way.
            (page(&[3, 4, 6], &[100, 300]), &[3, 9, 4, 6], &[50, 100, 300]),
            (page(&[3, 4, 5, 6], &[100, 210, 300]), &[3, 9, 4, 5, 6], &[50, 100, 210, 300]),
            // A neighbour gets another page, and nothing changes.
            (page(&[3, 7, 5, 6], &[100, 200, 300]), &[3, 9, 7, 5, 6], &[50, 100, 200, 300]),
            (before.clone(), &[3, 9, 4, 5, 6], &[50, 100, 200, 300]),
        ] {
            for (own, newest) in [(&split, &other), (&other, &split)] {
                let merged = merged(&before, own, newest, PAGES).expect("no child is the same");
                assert_eq!(children(&merged), children(&page(pages, rowids)));
            }
        }
    }

    #[test]
    fn inv63_changes_of_the_same_child_are_not_merged() {
        let before = page(&[3, 4, 5, 6], &[100, 200, 300]);
        let split = page(&[3, 4, 9, 5, 6], &[100, 150, 200, 300]);
        for other in [
            split.clone(),
            page(&[3, 4, 9, 5, 6], &[100, 160, 200, 300]),
            page(&[3, 4, 5, 6], &[110, 200, 300]),
            page(&[3, 5, 6], &[100, 300]),
            page(&[3, 8, 5, 6], &[100, 200, 300]),
            // The page has given half of its children to another one.
            page(&[3, 4], &[100]),
            page(&[7, 8], &[150]),
            // Both have taken the same page.
            page(&[3, 4, 5, 9, 6], &[100, 200, 250, 300]),
        ] {
            assert_eq!(merged(&before, &split, &other, PAGES), None);
            assert_eq!(merged(&before, &other, &split, PAGES), None);
        }
        let other = page(&[3, 4, 5, 8, 6], &[100, 200, 250, 300]);
        assert!(merged(&before, &split, &other, (5 << 24) - 1).is_some());
        assert_eq!(merged(&before, &split, &other, 5 << 24), None);
        assert_eq!(merged(&[0; 512], &split, &other, PAGES), None);
        assert_eq!(merged(&before, &[13; 512], &other, PAGES), None);
    }

    #[test]
    fn what_does_not_fit_on_a_page_is_not_merged() {
        // A cell has 6 bytes, and its pointer 2.
        let most = (512 - HEADER_BYTES) / 8;
        for (cells, fits) in [(most - 2, true), (most - 1, false)] {
            let rowids: Vec<u64> = (1..=cells as u64).map(|cell| 128 + 10 * cell).collect();
            let pages: Vec<u32> = (10..=10 + cells as u32).collect();
            let with = |at: usize, child: u32| {
                let (mut pages, mut rowids) = (pages.clone(), rowids.clone());
                pages.insert(at, child);
                rowids.insert(at, rowids[at] - 5);
                page(&pages, &rowids)
            };
            let both = merged(&page(&pages, &rowids), &with(3, 900), &with(40, 901), PAGES);
            assert_eq!(both.is_some(), fits, "{cells} cells");
        }
    }

    /// Replaces some neighbouring children by others, as SQLite does when it balances them. Returns the place of
    /// the first of them, and the place after the last.
    fn replace(children: &mut Vec<Child>, random: &mut fastrand::Rng, fresh: &mut u32) -> (usize, usize) {
        let first = random.usize(..children.len());
        let end = (first + random.usize(1..=3)).min(children.len());
        let (from, to) = (children[first].from, children[end - 1].to);
        let between = from.map_or(-1_000_000, |from| from + 1)..to.unwrap_or(1_000_000);
        let count = if between.is_empty() { 0 } else { random.usize(..4) };
        let rowids: BTreeSet<i64> = (0..count).map(|_| random.i64(between.clone())).collect();
        let bounds: Vec<_> = std::iter::once(from).chain(rowids.into_iter().map(Some)).chain([to]).collect();
        let new = bounds.windows(2).map(|two| {
            *fresh += 1;
            Child { page: *fresh, from: two[0], to: two[1] }
        });
        children.splice(first..end, new.collect::<Vec<_>>());
        (first, end)
    }

    /// A merged page has to be the page that results if one transaction follows the other.
    #[test]
    fn inv63_a_merged_page_has_the_changes_of_both() {
        let (mut random, mut merges, mut conflicts) = (fastrand::Rng::with_seed(7), 0, 0);
        for _ in 0..20_000 {
            let mut fresh = 1;
            let mut old = vec![Child { page: 1, from: None, to: None }];
            while old.len() < 12 {
                replace(&mut old, &mut random, &mut fresh);
            }
            let image =
                |children: &[Child]| interior_page(children, 1024).expect("a page with several children");
            let (mut own, mut others) = (old.clone(), old.clone());
            let mine = replace(&mut own, &mut random, &mut fresh);
            let theirs = replace(&mut others, &mut random, &mut fresh);
            assert_eq!(children(&image(&old)).as_ref(), Some(&old));
            let merged = merged(&image(&old), &image(&own), &image(&others), PAGES);
            if mine.0 < theirs.1 && theirs.0 < mine.1 {
                assert_eq!(merged, None, "{old:?}: {mine:?} and {theirs:?}");
                conflicts += 1;
                continue;
            }
            // Of two places without a child in common, the earlier one keeps its number.
            let new = &own[mine.0..mine.1 + own.len() - old.len()];
            let before = if theirs.1 <= mine.0 { others.len() } else { old.len() };
            others.splice(before + mine.0 - old.len()..before + mine.1 - old.len(), new.iter().copied());
            assert_eq!(merged.as_deref().and_then(children), Some(others));
            merges += 1;
        }
        assert!(merges > 1000 && conflicts > 1000, "{merges} merges, {conflicts} conflicts");
    }

    /// An overflow page begins with the number of the next overflow page. The page of this test leads to page
    /// 0x0500_0003.
    #[test]
    fn inv63_an_overflow_page_of_a_huge_database_matters() {
        let before = page(&[3, 4, 5], &[100, 200]);
        assert_eq!(number(&before, 0).map(|next| next >> 24), Some(5));
        assert!(is_same_for(&before, &before, (5 << 24) - 1, |_| true));
        assert!(!is_same_for(&before, &before, 5 << 24, |_| true));
    }

    #[test]
    fn a_damaged_page_matters() {
        let mut damaged = page(&[3, 4], &[100]);
        damaged[12..14].copy_from_slice(&[2, 0]);
        assert!(!is_same_for(&damaged, &damaged, PAGES, |_| false));
        assert_eq!(varint(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0x81, 0]), Some((128, 2)));
        assert_eq!(varint(&[0x80; 3]), None);
    }
}
