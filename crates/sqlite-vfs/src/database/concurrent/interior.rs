//! Changes of an interior page of a table's b-tree that do not overtake a transaction (invariant 63).
//!
//! Such a page has rowids and children, and nothing else. A transaction learns from the page only under which
//! child to look for a rowid. If each child that the transaction has read or written still lies between the
//! same two rowids, the transaction would have learned the same from the new page. The children themselves,
//! and the parent pages, are checked like all other pages. (The interior pages of an index hold entries, and
//! count as data.)

use super::btree_page::{number, varint};
use super::page_set::PageSet;

/// The type of an interior page of a table (sqlite.org/fileformat2.html, section 1.6).
const INTERIOR_OF_TABLE: u8 = 5;
const HEADER_BYTES: usize = 12;

/// A child page. All rowids under it lie between `from` and `to`. The first child of a page has no `from`,
/// and the last child has no `to`.
struct Child {
    page: u32,
    from: Option<u64>,
    to: Option<u64>,
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
        let to = Some(varint(page.get(at + 4..)?)?.0);
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
