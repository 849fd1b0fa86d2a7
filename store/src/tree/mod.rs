//! B-trees. The root of a tree keeps its page number.
//!
//! On the way down, readers use copies of the inner pages, and latch only the leaf. Writers do the same if the leaf has
//! room. So none of these threads writes to a word that all threads share. A thread that splits a page or frees an
//! empty one holds the latch of each page until it has the child's latch. It logs the split or the freeing as a
//! separate object, which is never undone.

mod ahead;
mod cursor;
mod grow;
mod overflow;
mod reap;
mod relocate;
mod shrink;

use duralite_format::FormatError;

use crate::buffer::{Latched, Way, Writing};
use crate::error::Error;
use crate::format::{
    Change, Lsn, ObjectKind, PAGE_HEADER_BYTES, PageId, PageKind, Undo, cell, cell_count, child_at,
    child_for, free_bytes, kind, level, lsn, search,
};
use crate::pager::{Author, Logged, Pager};
use crate::space::{Purpose, Space};

pub(crate) use self::ahead::Ahead;
pub(crate) use self::cursor::{LeafCopy, Rows};
pub(crate) use self::grow::shortest_between;
pub(crate) use self::overflow::{
    Chain, ChainPage, add_to_chain, chain_pages, chain_piece, end_chain, free_chain_step, read_chain,
};
pub(crate) use self::reap::Reaped;
pub(crate) use self::relocate::MOST_MOVES;

/// The largest number of splits that make room for one row. An undamaged tree never needs so many, even if other
/// transactions keep using the room before this one can.
const MOST_SPLITS: u32 = 1000;
/// The size of a slot in bytes.
const SLOT: usize = 2;

/// Returns the largest size in bytes of a cell whose value is in the leaf itself. A longer value goes to a chain of
/// pages.
pub(crate) fn inline_limit(page_bytes: usize) -> usize {
    (page_bytes - PAGE_HEADER_BYTES) / 4
}

/// A tree, which is identified by its root page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree<'a> {
    pub(crate) pager: &'a Pager,
    pub(crate) space: &'a Space,
    pub(crate) root: PageId,
    /// The place where the caller has just found the row that it will change.
    pub(crate) found: Option<Found>,
}

/// A leaf in which a row was found, and the leaf's LSN at that moment. As long as the leaf has this LSN, the row is
/// still in the leaf. The reason is that a leaf with rows is not freed, and that a step that moves rows changes the
/// LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    leaf: PageId,
    lsn: Lsn,
}

/// The leaf of a change that is about to be made, and the row's old cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    pub(crate) leaf: PageId,
    pub(crate) old: Option<&'a [u8]>,
}

/// A check that is called before a change, with the leaf latched. It returns whether the transaction has reserved
/// everything that undoing the change would need.
pub(crate) type MayChange<'f> = dyn FnMut(&Before<'_>) -> Result<bool, Error> + 'f;

/// The outcome of a requested change.
#[derive(Debug)]
pub(crate) enum Outcome {
    Changed(Changed),
    /// There was no row to remove.
    NoRow,
    /// [`MayChange`] has refused the change, and nothing has changed.
    Refused,
}

/// A change that was made and logged.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) logged: Logged,
    /// The undo of the change, in the log's format.
    pub(crate) undo: Vec<u8>,
}

fn damaged(page: PageId) -> impl Fn(FormatError) -> Error {
    move |error| Error::page(page, error)
}

/// Returns the cell with this key, if there is one.
fn find<'a>(page: &'a [u8], id: PageId, key: &[u8]) -> Result<Option<&'a [u8]>, Error> {
    match search(page, key).map_err(damaged(id))? {
        Ok(index) => cell(page, index).map(Some).map_err(damaged(id)),
        Err(_) => Ok(None),
    }
}

/// Returns whether a page of a tree is a leaf. Fails unless the page is one level below `above`, the level of the page
/// that led to it. Because of this check, a descent ends even if pages are damaged.
fn is_leaf(page: &[u8], id: PageId, above: Option<u8>) -> Result<bool, Error> {
    let is_below = above.is_none_or(|above| u16::from(level(page)) + 1 == u16::from(above));
    match (kind(page), level(page)) {
        (PageKind::Leaf, 0) if is_below => Ok(true),
        (PageKind::Inner, 1..) if is_below => Ok(false),
        _ => Err(Error::Corrupt {
            what: "a tree, which leads to a page of another kind or level,".to_owned(),
            page: Some(id),
        }),
    }
}

/// Returns the child at this index. Fails if the child is the page itself, because latching that page again would block
/// forever.
fn child_of(page: &[u8], id: PageId, place: usize) -> Result<PageId, Error> {
    let child = child_at(page, place).map_err(damaged(id))?;
    if child == id {
        Err(Error::page(id, FormatError::Damaged { what: "a page of a tree" }))
    } else {
        Ok(child)
    }
}

/// Returns the index of the child that covers a key.
fn place_for(page: &[u8], id: PageId, key: &[u8]) -> Result<usize, Error> {
    child_for(page, key).map_err(damaged(id))
}

/// Returns the child that covers a key.
fn child(page: &[u8], id: PageId, key: &[u8]) -> Result<PageId, Error> {
    child_of(page, id, place_for(page, id, key)?)
}

impl<'a> Tree<'a> {
    /// Goes down to a leaf, and latches it with `latch`. On each inner page, `choose` selects a child. Returns the
    /// leaf, and what `choose` has collected on the path. If a page on the path changes before the leaf is latched,
    /// goes down again.
    fn down<L: Latched, F: Default>(
        &self,
        latch: impl Fn(PageId) -> Result<L, Error>,
        choose: impl Fn(&[u8], PageId, &mut F) -> Result<usize, Error>,
    ) -> Result<(L, F), Error> {
        let mut way = self.pager.pool.way();
        loop {
            let gone = self.go_down(&mut way, &latch, &choose);
            // Checks the path while the leaf is latched. If the path is outdated, its pages may be from different
            // moments and may not fit together. So the result is ignored, even if it is an error.
            if way.is_current() {
                return gone;
            }
            drop(gone);
            way = self.pager.pool.way().pinning();
        }
    }

    fn go_down<L: Latched, F: Default>(
        &self,
        way: &mut Way<'_>,
        latch: &impl Fn(PageId) -> Result<L, Error>,
        choose: &impl Fn(&[u8], PageId, &mut F) -> Result<usize, Error>,
    ) -> Result<(L, F), Error> {
        let (mut id, mut above, mut found) = (self.root, None, F::default());
        loop {
            let at_hand = if above == Some(1) { None } else { way.by_copy(id) };
            let page = match at_hand {
                Some(page) => {
                    // There are copies only of inner pages. But if pages are damaged, this page may be on the wrong
                    // level.
                    is_leaf(page.bytes(), id, above)?;
                    page
                }
                None => {
                    let page = latch(id)?;
                    if is_leaf(page.content().bytes(), id, above)? {
                        return Ok((page, found));
                    }
                    way.by(&page)
                }
            };
            above = Some(level(page.bytes()));
            id = child_of(page.bytes(), id, choose(page.bytes(), id, &mut found)?)?;
        }
    }

    /// Returns the cell of a row, and where the row was found.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Found)>, Error> {
        let (page, ()) = self.down(|id| self.pager.pool.read(id), |page, id, ()| place_for(page, id, key))?;
        let found = Found { leaf: page.id(), lsn: lsn(page.bytes()) };
        Ok(find(page.bytes(), page.id(), key)?.map(|cell| (cell.to_vec(), found)))
    }

    /// Returns the leaf in which the row was found, latched for writing, if the leaf has not changed since.
    fn found_leaf(&self) -> Option<Writing<'a>> {
        let Found { leaf, lsn } = self.found?;
        // If the page cannot be read, this returns `None`, and the descent from the root reports the error.
        self.pager.pool.write(leaf).ok().filter(|page| page.lsn() == lsn)
    }

    /// Returns the leaf that covers a key, latched for writing.
    fn leaf(&self, key: &[u8]) -> Result<Writing<'a>, Error> {
        if let Some(leaf) = self.found_leaf() {
            return Ok(leaf);
        }
        let latch = |id| self.pager.pool.write(id);
        self.down(latch, |page, id, ()| place_for(page, id, key)).map(|(leaf, ())| leaf)
    }

    /// Stores a row's cell, in place of the cell with the same key if there is one.
    pub(crate) fn put(
        &self,
        author: Author,
        key: &[u8],
        new: &[u8],
        may: &mut MayChange<'_>,
    ) -> Result<Outcome, Error> {
        let purpose = if author.kind == ObjectKind::Compensation { Purpose::Undo } else { Purpose::Do };
        for _ in 0..MOST_SPLITS {
            let mut leaf = self.leaf(key)?;
            let old = find(leaf.bytes(), leaf.id(), key)?;
            if has_room(leaf.bytes(), old, new.len()) {
                if !may(&Before { leaf: leaf.id(), old })? {
                    return Ok(Outcome::Refused);
                }
                let undo = self.undo(author, key, old);
                let logged =
                    self.pager.step(author, &undo, &mut [&mut leaf], &[(0, Change::Put { cell: new })])?;
                return Ok(Outcome::Changed(Changed { logged, undo }));
            }
            drop(leaf);
            if purpose == Purpose::Do {
                self.space.prepare(self.pager)?;
            }
            self.make_room(key, new.len(), purpose)?;
        }
        Err(Error::Corrupt {
            what: "a tree, where page splits free no space,".to_owned(),
            page: Some(self.root),
        })
    }

    /// Removes a row, and frees its leaf if that becomes empty.
    pub(crate) fn remove(
        &self,
        author: Author,
        key: &[u8],
        may: &mut MayChange<'_>,
    ) -> Result<Outcome, Error> {
        let mut leaf = self.leaf(key)?;
        let Some(old) = find(leaf.bytes(), leaf.id(), key)? else {
            return Ok(Outcome::NoRow);
        };
        if !may(&Before { leaf: leaf.id(), old: Some(old) })? {
            return Ok(Outcome::Refused);
        }
        let undo = self.undo(author, key, Some(old));
        let logged = self.pager.step(author, &undo, &mut [&mut leaf], &[(0, Change::Remove { key })])?;
        let is_empty = cell_count(leaf.bytes()) == 0 && leaf.id() != self.root;
        drop(leaf);
        if is_empty {
            // The row is removed, and its undo is needed whether or not the leaf can be freed. If the leaf cannot be
            // freed, it stays empty until a row is inserted there. So an error does not matter.
            let _ = self.give_empty_back(key);
        }
        Ok(Outcome::Changed(Changed { logged, undo }))
    }

    fn undo(&self, author: Author, key: &[u8], old: Option<&[u8]>) -> Vec<u8> {
        let mut undo = Vec::new();
        if author.kind == ObjectKind::Update {
            Undo::Row { root: self.root, key, old }.encode(&mut undo);
        }
        undo
    }
}

/// Returns whether a cell of this size fits into the page. If the page has an old cell with the same key, that cell is
/// removed first.
fn has_room(page: &[u8], old: Option<&[u8]>, bytes: usize) -> bool {
    free_bytes(page) + old.map_or(0, |old| old.len() + SLOT) >= bytes + SLOT
}
