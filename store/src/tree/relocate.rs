//! Moves the pages of a tree towards the beginning of the file, so that the end of the file becomes free.

use super::{Tree, child_of, damaged, is_leaf, place_for};
use crate::buffer::Writing;
use crate::error::Error;
use crate::format::{
    Change, PageId, PageKind, blank, cell, cell_count, cell_key, inner_cell, level, set_extra,
};
use crate::pager::Author;
use crate::space::{GivenPage, Purpose};

/// The largest number of pages that one call moves. The caller has reserved room in the log for them.
pub(crate) const MOST_MOVES: u64 = 4;

/// The number of pages that one call has moved, and the place where the next call continues.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) pages: u64,
    /// The key from which the next call continues; `None` at the end of the tree.
    pub(crate) next: Option<Vec<u8>>,
}

impl<'a> Tree<'a> {
    /// Moves some pages to free pages before `limit`. Considers the inner pages on the path to a key, and all children
    /// of the lowest of these pages. Moves those that are at `limit` or after it. The root stays where it is.
    pub(crate) fn relocate(&self, key: &[u8], limit: PageId) -> Result<Moved, Error> {
        let mut moved = Moved { pages: 0, next: None };
        let mut page = self.pager.pool.write(self.root)?;
        let mut above = None;
        while !is_leaf(page.bytes(), page.id(), above)? {
            above = Some(level(page.bytes()));
            let places = if above == Some(1) {
                0..=cell_count(page.bytes())
            } else {
                let place = place_for(page.bytes(), page.id(), key)?;
                if place < cell_count(page.bytes()) {
                    let fence = cell(page.bytes(), place).and_then(|cell| cell_key(PageKind::Inner, cell));
                    moved.next = Some(fence.map_err(damaged(page.id()))?.to_vec());
                }
                place..=place
            };
            let (first, lowest) = (*places.start(), above == Some(1));
            for place in places {
                if moved.pages == MOST_MOVES {
                    // This call has moved as many pages as it may. The next call continues with the remaining pages.
                    moved.next = Some(key.to_vec());
                    return Ok(moved);
                }
                moved.pages += u64::from(self.move_child(&mut page, place, limit)?);
            }
            if lowest {
                break;
            }
            let child = child_of(page.bytes(), page.id(), first)?;
            page = self.pager.pool.write(child)?;
        }
        Ok(moved)
    }

    /// Moves a child of a latched page, if there is a free page before `limit`. Returns whether it has moved the child.
    /// The log object is never undone.
    fn move_child(&self, parent: &mut Writing<'a>, place: usize, limit: PageId) -> Result<bool, Error> {
        let id = child_of(parent.bytes(), parent.id(), place)?;
        if id < limit {
            return Ok(false);
        }
        let mut old = self.pager.pool.write(id)?;
        is_leaf(old.bytes(), id, Some(level(parent.bytes())))?;
        let mut given = self.space.find(self.pager, 1, Purpose::Do)?;
        let GivenPage { id: new, set, .. } = given.pages[0];
        if new >= limit || new == parent.id() {
            return Ok(false);
        }
        let image = old.bytes().to_vec();
        let mut above = parent.bytes().to_vec();
        match place.checked_sub(1) {
            None => set_extra(&mut above, new),
            Some(index) => {
                let key = cell(&above, index).and_then(|cell| cell_key(PageKind::Inner, cell));
                let pointer = inner_cell(key.map_err(damaged(parent.id()))?, new);
                Change::Put { cell: &pointer }.apply(&mut above).map_err(damaged(parent.id()))?;
            }
        }
        // The change also gives the old page a new LSN. A thread that has just found a row there sees this, and
        // searches for the row again.
        let mut nothing = image.clone();
        blank(&mut nothing, PageKind::Leaf, 0);
        let (map, bit) = self.space.place_of(id);
        let own_map = given.maps.iter().position(|given| given.id() == map);
        let mut other_map = if own_map.is_none() { Some(self.pager.pool.write(map)?) } else { None };
        let mut new_page = self.pager.pool.make(new)?;
        let changes = [
            (0, set),
            (1, Change::image_of(&image)),
            (2, Change::image_of(&above)),
            (3, Change::image_of(&nothing)),
            (if own_map.is_some() { 0 } else { 4 }, Change::MapClear { bit }),
        ];
        let mut pages = vec![&mut given.maps[0], &mut new_page, parent, &mut old];
        pages.extend(&mut other_map);
        let logged = self.pager.step(Author::SYSTEM, &[], &mut pages, &changes)?;
        given.taken();
        self.space.freed(id, logged.lsn);
        Ok(true)
    }
}
