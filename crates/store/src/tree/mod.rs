//! B-trees. The root of a tree is one page for ever. Readers, and writers whose leaf has room, go down by copies of the inner
//! pages and latch the leaf only: they change no word that all have to do with. Whoever splits a page, or gives an
//! empty one back, holds a page's latch until it has the child's, and does it by one object of its own, which no
//! transaction takes back.

mod ahead;
mod cursor;
mod grow;
mod overflow;
mod reap;
mod relocate;
mod shrink;

use duralite_logfmt::FormatError;
use duralite_logfmt::store::{
    Change, Lsn, ObjectKind, PAGE_HEADER_BYTES, PageId, PageKind, Undo, cell, cell_count, child_at,
    child_for, free_bytes, kind, level, lsn, search,
};

use crate::buffer::{Latched, Way, Writing};
use crate::error::Error;
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

/// More splits than one row can ever need, if others who take the room meanwhile are counted in.
const MOST_SPLITS: u32 = 1000;
/// Bytes of a slot.
const SLOT: usize = 2;

/// The longest cell that stays in its leaf.
pub(crate) fn inline_limit(page_bytes: usize) -> usize {
    (page_bytes - PAGE_HEADER_BYTES) / 4
}

/// A tree, by its root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree<'a> {
    pub(crate) pager: &'a Pager,
    pub(crate) space: &'a Space,
    pub(crate) root: PageId,
    /// Where the row that is about to be changed was found a moment ago.
    pub(crate) found: Option<Found>,
}

/// A leaf that had a row, and its newest change then. As long as it has no newer one it has the row: a leaf with rows is
/// not given back, and whatever moves rows changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    leaf: PageId,
    lsn: Lsn,
}

/// The leaf and the cell that are about to be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    pub(crate) leaf: PageId,
    pub(crate) old: Option<&'a [u8]>,
}

/// Whether what taking a change back may need is there. Asked with the leaf latched, right before the change.
pub(crate) type MayChange<'f> = dyn FnMut(&Before<'_>) -> Result<bool, Error> + 'f;

/// What came of a change that was asked about.
#[derive(Debug)]
pub(crate) enum Outcome {
    Changed(Changed),
    /// There is no row to be removed.
    NoRow,
    /// It may not be: nothing has happened.
    Refused,
}

/// What became of a change.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) logged: Logged,
    /// The undo as it is in the log.
    pub(crate) undo: Vec<u8>,
}

fn damaged(page: PageId) -> impl Fn(FormatError) -> Error {
    move |error| Error::page(page, error)
}

/// The cell with this key.
fn find<'a>(page: &'a [u8], id: PageId, key: &[u8]) -> Result<Option<&'a [u8]>, Error> {
    match search(page, key).map_err(damaged(id))? {
        Ok(index) => cell(page, index).map(Some).map_err(damaged(id)),
        Err(_) => Ok(None),
    }
}

/// Whether a page of a tree is a leaf. It has to be on the level below `above`, the page that led to it: so nobody goes
/// down for ever, whatever a page says.
fn is_leaf(page: &[u8], id: PageId, above: Option<u8>) -> Result<bool, Error> {
    let is_below = above.is_none_or(|above| u16::from(level(page)) + 1 == u16::from(above));
    match (kind(page), level(page)) {
        (PageKind::Leaf, 0) if is_below => Ok(true),
        (PageKind::Inner, 1..) if is_below => Ok(false),
        _ => Err(Error::Corrupt {
            what: "a tree, which has a page that is none of it,".to_owned(),
            page: Some(id),
        }),
    }
}

/// The child at a place. It is not the page itself, which is latched.
fn child_of(page: &[u8], id: PageId, place: usize) -> Result<PageId, Error> {
    let child = child_at(page, place).map_err(damaged(id))?;
    if child == id {
        Err(Error::page(id, FormatError::Damaged { what: "a page of a tree" }))
    } else {
        Ok(child)
    }
}

/// The place of the child that has a key.
fn place_for(page: &[u8], id: PageId, key: &[u8]) -> Result<usize, Error> {
    child_for(page, key).map_err(damaged(id))
}

/// The child that has a key.
fn child(page: &[u8], id: PageId, key: &[u8]) -> Result<PageId, Error> {
    child_of(page, id, place_for(page, id, key)?)
}

impl<'a> Tree<'a> {
    /// A leaf, latched by `latch`, and what was found out on the way to it. `choose` says to which child of an inner page
    /// one goes. If a page on the way has changed meanwhile one goes again.
    fn down<L: Latched, F: Default>(
        &self,
        latch: impl Fn(PageId) -> Result<L, Error>,
        choose: impl Fn(&[u8], PageId, &mut F) -> Result<usize, Error>,
    ) -> Result<(L, F), Error> {
        let mut way = self.pager.pool.way();
        loop {
            let gone = self.go_down(&mut way, &latch, &choose);
            // With the leaf latched. What does not fit together may be of different moments.
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
                    // One that has been copied is none, but it may be on another level than is looked for.
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

    /// The cell of a row, and where it was found.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Found)>, Error> {
        let (page, ()) = self.down(|id| self.pager.pool.read(id), |page, id, ()| place_for(page, id, key))?;
        let found = Found { leaf: page.id(), lsn: lsn(page.bytes()) };
        Ok(find(page.bytes(), page.id(), key)?.map(|cell| (cell.to_vec(), found)))
    }

    /// The leaf in which the row was found, if nobody has changed it since.
    fn found_leaf(&self) -> Option<Writing<'a>> {
        let Found { leaf, lsn } = self.found?;
        // Whoever goes down the tree is told what is wrong with it.
        self.pager.pool.write(leaf).ok().filter(|page| page.lsn() == lsn)
    }

    /// The leaf for a key, latched for a change.
    fn leaf(&self, key: &[u8]) -> Result<Writing<'a>, Error> {
        if let Some(leaf) = self.found_leaf() {
            return Ok(leaf);
        }
        let latch = |id| self.pager.pool.write(id);
        self.down(latch, |page, id, ()| place_for(page, id, key)).map(|(leaf, ())| leaf)
    }

    /// Puts a row's cell in, in place of the one with its key if there is one.
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
            self.make_room(key, new.len(), purpose)?;
        }
        Err(Error::Corrupt { what: "a tree, where splits make no room,".to_owned(), page: Some(self.root) })
    }

    /// Takes a row out.
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
            // The row is out, and has to be taken back with the transaction whatever becomes of the leaf: one that
            // stays is found by whoever inserts there next.
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

/// Whether a cell of so many bytes fits in the place of the one with its key.
fn has_room(page: &[u8], old: Option<&[u8]>, bytes: usize) -> bool {
    free_bytes(page) + old.map_or(0, |old| old.len() + SLOT) >= bytes + SLOT
}
