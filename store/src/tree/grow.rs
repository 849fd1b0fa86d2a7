//! Splits pages, from the root downwards, until a leaf has room.

use super::{SLOT, Tree, child, damaged, find, has_room, is_leaf};
use crate::buffer::Writing;
use crate::error::Error;
use crate::format::{
    Change, INNER_CELL_HEAD, KEY_LIMIT, PageId, PageKind, blank, cell, cell_count, cell_key, child_at, extra,
    free_bytes, inner_cell, kind, level, search, set_extra,
};
use crate::pager::Author;
use crate::space::{GivenPage, Purpose};

/// The number of bytes that an inner page must have free, so that it can take any key from a split of a child.
const ROOM_FOR_A_CHILD: usize = INNER_CELL_HEAD + KEY_LIMIT + SLOT;

/// The result of a split: the right page, and the smallest key that belongs to it.
struct Halves {
    right: Vec<u8>,
    separator: Vec<u8>,
    /// The key at which the page is split. The left page keeps the cells with keys below it.
    cut: Vec<u8>,
}

impl<'a> Tree<'a> {
    /// Splits one page on the path to the leaf for a key, if one of these pages is full. The caller repeats this until
    /// the leaf has room.
    pub(super) fn make_room(&self, key: &[u8], bytes: usize, purpose: Purpose) -> Result<(), Error> {
        let mut page = self.pager.pool.write(self.root)?;
        if is_full(&page, key, bytes)? {
            return self.split_root(&mut page, key, purpose);
        }
        let mut above = None;
        while !is_leaf(page.bytes(), page.id(), above)? {
            above = Some(level(page.bytes()));
            let mut child = self.pager.pool.write(child(page.bytes(), page.id(), key)?)?;
            is_leaf(child.bytes(), child.id(), above)?;
            if is_full(&child, key, bytes)? {
                return self.split(&mut page, &mut child, key, purpose);
            }
            page = child;
        }
        Ok(())
    }

    fn split(
        &self,
        parent: &mut Writing<'a>,
        page: &mut Writing<'a>,
        key: &[u8],
        purpose: Purpose,
    ) -> Result<(), Error> {
        let halves = halves(page, key)?;
        let mut given = self.space.find(self.pager, 1, purpose)?;
        let GivenPage { id, set, .. } = given.pages[0];
        not_in_use(&given.pages, &[page.id(), parent.id()])?;
        let mut right = self.pager.pool.make(id)?;
        let pointer = inner_cell(&halves.separator, id);
        let changes = [
            (0, set),
            (1, Change::image_of(&halves.right)),
            (2, Change::Cut { key: &halves.cut }),
            (3, Change::Put { cell: &pointer }),
        ];
        let pages = &mut [&mut given.maps[0], &mut right, page, parent];
        self.pager.step(Author::SYSTEM, &[], pages, &changes)?;
        given.taken();
        Ok(())
    }

    /// Splits the root. The root keeps its page number, so both halves go to new pages.
    fn split_root(&self, root: &mut Writing<'a>, key: &[u8], purpose: Purpose) -> Result<(), Error> {
        let halves = halves(root, key)?;
        let mut left = root.bytes().to_vec();
        Change::Cut { key: &halves.cut }.apply(&mut left).map_err(damaged(root.id()))?;
        let mut given = self.space.find(self.pager, 2, purpose)?;
        let [first, second] = [given.pages[0], given.pages[1]];
        not_in_use(&given.pages, &[root.id()])?;
        let mut left_page = self.pager.pool.make(first.id)?;
        let mut right_page = self.pager.pool.make(second.id)?;
        let mut new_root = root.bytes().to_vec();
        blank(&mut new_root, PageKind::Inner, level(root.bytes()) + 1);
        set_extra(&mut new_root, first.id);
        let pointer = inner_cell(&halves.separator, second.id);
        Change::Put { cell: &pointer }.apply(&mut new_root).map_err(damaged(root.id()))?;
        // `pages` begins with the three tree pages, and the maps follow. There may be one map or two, because the same
        // map may cover both new pages.
        let changes = [
            (first.map + 3, first.set),
            (second.map + 3, second.set),
            (0, Change::image_of(&left)),
            (1, Change::image_of(&halves.right)),
            (2, Change::image_of(&new_root)),
        ];
        let mut pages = vec![&mut left_page, &mut right_page, root];
        pages.extend(&mut given.maps);
        self.pager.step(Author::SYSTEM, &[], &mut pages, &changes)?;
        given.taken();
        Ok(())
    }
}

/// Checks that this thread has not latched any of the pages that the allocator has found. A latched page is in use. If
/// the allocator takes it for a free page, the space map must be damaged.
fn not_in_use(given: &[GivenPage], latched: &[PageId]) -> Result<(), Error> {
    match given.iter().find(|page| latched.contains(&page.id)) {
        Some(page) => Err(Error::Corrupt { what: "the space map".to_owned(), page: Some(page.id) }),
        None => Ok(()),
    }
}

/// Returns whether a page must be split before a cell is added to it or to a page below it.
fn is_full(page: &Writing<'_>, key: &[u8], bytes: usize) -> Result<bool, Error> {
    if kind(page.bytes()) == PageKind::Inner {
        return Ok(free_bytes(page.bytes()) < ROOM_FOR_A_CHILD);
    }
    let old = find(page.bytes(), page.id(), key)?;
    Ok(!has_room(page.bytes(), old, bytes))
}

fn halves(page: &Writing<'_>, key: &[u8]) -> Result<Halves, Error> {
    let (bytes, damaged) = (page.bytes(), damaged(page.id()));
    let (kind, cells) = (kind(bytes), cell_count(bytes));
    if cells < 2 {
        return Err(Error::Corrupt { what: "a full page with one cell".to_owned(), page: Some(page.id()) });
    }
    // If rows are added in ascending order, a split leaves the left page full, and moves only the last cell.
    let is_append = search(bytes, key).map_err(&damaged)? == Err(cells) && kind == PageKind::Leaf;
    let middle = if is_append { cells - 1 } else { middle(page)? };
    let at = |index| cell(bytes, index).map_err(&damaged);
    let key_at = |index| cell_key(kind, at(index)?).map_err(&damaged);
    let mut right = vec![0; bytes.len()];
    blank(&mut right, kind, level(bytes));
    let first = if kind == PageKind::Inner {
        set_extra(&mut right, child_at(bytes, middle + 1).map_err(&damaged)?);
        middle + 1
    } else {
        middle
    };
    for index in first..cells {
        Change::Put { cell: at(index)? }.apply(&mut right).map_err(&damaged)?;
    }
    let cut = key_at(middle)?.to_vec();
    let separator =
        if kind == PageKind::Inner { cut.clone() } else { shortest_between(key_at(middle - 1)?, &cut) };
    debug_assert!(kind == PageKind::Leaf || extra(&right) != 0);
    Ok(Halves { right, separator, cut })
}

/// Returns the index of the cell with which the right page begins, so that each page gets about half of the bytes. It
/// is never the first cell. In an inner page, it is never the last one either.
fn middle(page: &Writing<'_>) -> Result<usize, Error> {
    let bytes = page.bytes();
    let cells = cell_count(bytes);
    let mut sizes = Vec::with_capacity(cells);
    for index in 0..cells {
        sizes.push(cell(bytes, index).map_err(damaged(page.id()))?.len());
    }
    let half = sizes.iter().sum::<usize>() / 2;
    let mut before = 0;
    let middle = sizes.iter().position(|size| {
        before += size;
        before > half
    });
    let most = if kind(bytes) == PageKind::Inner && cells > 2 { cells - 2 } else { cells - 1 };
    Ok(middle.unwrap_or(1).clamp(1, most.max(1)))
}

/// Returns the shortest key above `left` that is not above `right`.
pub(crate) fn shortest_between(left: &[u8], right: &[u8]) -> Vec<u8> {
    let same = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..(same + 1).min(right.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::shortest_between;

    #[test]
    fn separators_are_short_and_in_between() {
        for (left, right, short) in
            [("abc", "abd", "abd"), ("ab", "abcd", "abc"), ("a", "zebra", "z"), ("", "a", "a")]
        {
            assert_eq!(shortest_between(left.as_bytes(), right.as_bytes()), short.as_bytes());
        }
    }
}
