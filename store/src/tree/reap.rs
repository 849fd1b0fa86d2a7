//! Frees a tree that is no longer used, beginning with the leaves. One log object frees several leaves, if only a few
//! space maps cover them.

use std::collections::BTreeSet;

use super::shrink::without_child;
use super::{Tree, child_of, damaged, find, is_leaf};
use crate::buffer::Writing;
use crate::error::Error;
use crate::format::{
    Change, PageId, PageKind, Value, blank, cell, cell_count, cell_key, leaf_value, level, set_extra,
};
use crate::pager::Author;

/// The largest number of maps that are latched for one log object.
const MOST_MAPS: usize = 4;
/// The largest number of leaves that one log object frees. The object must have room for the changes of the leaves'
/// space maps.
const MOST_PAGES: usize = 128;

/// The result of freeing part of a tree.
#[derive(Debug)]
pub(crate) enum Reaped {
    /// Some pages were freed, and more are left.
    Pages,
    /// This row has a long value, whose chain the caller has to free first.
    LongRow { key: Vec<u8>, first: PageId, bytes: u64 },
    /// Only the root is left, and no row in it has a chain.
    Root,
}

impl<'a> Tree<'a> {
    /// Frees some leaves, from the left. No other thread uses the tree, and the caller has reserved room for the
    /// largest log object. That object needs no undo, because the tree has no rows, or because the transaction that
    /// dropped it has committed.
    pub(crate) fn reap(&self) -> Result<Reaped, Error> {
        // The end of the path down to the lowest inner page. It begins at the last page that has several children, or
        // at the root if no page has.
        let mut path = vec![self.pager.pool.write(self.root)?];
        let mut above = None;
        while let Some(page) = path.last() {
            if is_leaf(page.bytes(), page.id(), above)? {
                let long = long_row(page.bytes(), page.id())?;
                return Ok(long.unwrap_or(Reaped::Root));
            }
            if level(page.bytes()) == 1 {
                break;
            }
            above = Some(level(page.bytes()));
            let id = child_of(page.bytes(), page.id(), 0)?;
            let has_others = cell_count(page.bytes()) > 0;
            self.check_new(&path, id)?;
            let child = self.pager.pool.write(id)?;
            if has_others {
                path.drain(..path.len() - 1);
            }
            path.push(child);
        }
        let Some(lowest) = path.last() else { return Ok(Reaped::Root) };
        let leaves = match self.leaves_of(lowest, &path)? {
            Ok(leaves) => leaves,
            Err(long) => return Ok(long),
        };
        self.take_away(path, leaves)?;
        Ok(Reaped::Pages)
    }

    fn check_new(&self, path: &[Writing<'a>], id: PageId) -> Result<(), Error> {
        if path.iter().any(|page| page.id() == id) {
            return Err(Error::Corrupt { what: "a tree".to_owned(), page: Some(id) });
        }
        Ok(())
    }

    /// Finds the first leaves of a page that one log object can free. If the first leaf has a row with a chain, returns
    /// that row instead.
    fn leaves_of(
        &self,
        lowest: &Writing<'a>,
        path: &[Writing<'a>],
    ) -> Result<Result<Vec<PageId>, Reaped>, Error> {
        let mut maps = BTreeSet::new();
        let mut leaves = Vec::new();
        for place in 0..=cell_count(lowest.bytes()).min(MOST_PAGES - 1) {
            let id = child_of(lowest.bytes(), lowest.id(), place)?;
            self.check_new(path, id)?;
            maps.insert(self.space.place_of(id).0);
            if maps.len() > MOST_MAPS || leaves.contains(&id) {
                break;
            }
            let leaf = self.pager.pool.read(id)?;
            is_leaf(leaf.bytes(), id, Some(1))?;
            match long_row(leaf.bytes(), id)? {
                Some(long) if leaves.is_empty() => return Ok(Err(long)),
                Some(_) => break,
                None => leaves.push(id),
            }
        }
        Ok(Ok(leaves))
    }

    /// Frees leaves below the last page of a path. If that page has no other leaves, also frees the page itself. Then
    /// also frees each page above it on the path that has no other child.
    fn take_away(&self, mut path: Vec<Writing<'a>>, mut gone: Vec<PageId>) -> Result<(), Error> {
        let Some(lowest) = path.last() else { return Ok(()) };
        let all_of_it = gone.len() == cell_count(lowest.bytes()) + 1;
        let (at, mut image);
        if !all_of_it {
            at = path.len() - 1;
            image = lowest.bytes().to_vec();
            for _ in &gone {
                without_child(&mut image, 0).map_err(damaged(lowest.id()))?;
            }
        } else {
            at = 0;
            let top = &path[0];
            image = top.bytes().to_vec();
            if path.len() == 1 || cell_count(&image) == 0 {
                blank(&mut image, PageKind::Leaf, 0);
                set_extra(&mut image, 0);
            } else {
                without_child(&mut image, 0).map_err(damaged(top.id()))?;
            }
            gone.extend(path.iter().skip(1).map(Writing::id));
        }
        self.replace(&mut path[at], &image, &gone)
    }

    /// Removes a row and frees a page, by one log object that is never undone.
    pub(crate) fn remove_with_page(&self, key: &[u8], page: PageId) -> Result<(), Error> {
        let mut leaf = self.leaf(key)?;
        if find(leaf.bytes(), leaf.id(), key)?.is_none() {
            return Err(Error::corrupt("the list of tables"));
        }
        let (map, bit) = self.space.place_of(page);
        let mut map = self.pager.pool.write(map)?;
        let changes = [(0, Change::Remove { key }), (1, Change::MapClear { bit })];
        let logged = self.pager.step(Author::SYSTEM, &[], &mut [&mut leaf, &mut map], &changes)?;
        self.space.freed(page, logged.lsn);
        let is_empty = cell_count(leaf.bytes()) == 0 && leaf.id() != self.root;
        drop((leaf, map));
        if is_empty {
            // If the leaf cannot be freed, it stays empty until a row is inserted there. So an error does not matter.
            let _ = self.give_empty_back(key);
        }
        Ok(())
    }
}

/// Finds a row of a leaf whose long value has a chain of pages. The chain has to be freed before the leaf. Returns
/// `None` if the leaf has no such row.
fn long_row(leaf: &[u8], id: PageId) -> Result<Option<Reaped>, Error> {
    for index in 0..cell_count(leaf) {
        let cell = cell(leaf, index).map_err(damaged(id))?;
        if let Value::Long { bytes, first: first @ 1.. } = leaf_value(cell).map_err(damaged(id))? {
            let key = cell_key(PageKind::Leaf, cell).map_err(damaged(id))?.to_vec();
            return Ok(Some(Reaped::LongRow { key, first, bytes }));
        }
    }
    Ok(None)
}
