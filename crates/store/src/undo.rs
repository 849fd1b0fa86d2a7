//! One step is taken back, by its transaction or by recovery.

use duralite_logfmt::store::Undo;

use crate::engine::Engine;
use crate::error::Error;
use crate::pager::{Author, Logged};

/// Takes one step back. It is found by its key: the row may be on another page by now.
///
/// # Errors
/// Of the pages or the log.
pub(crate) fn undo_step(engine: &Engine, author: Author, undo: &[u8]) -> Result<Logged, Error> {
    let damaged = || Error::corrupt("what a log object says about taking it back");
    match Undo::decode(undo).map_err(|_| damaged())? {
        Undo::Row { root, key, old: Some(old) } => Ok(engine.tree(root).put(author, key, old)?.logged),
        Undo::Row { root, key, old: None } => match engine.tree(root).remove(author, key)? {
            Some(changed) => Ok(changed.logged),
            None => Err(Error::corrupt("a tree, where a row is missing that is to be taken back,")),
        },
        Undo::Page { page } => engine.space.give_back(&engine.pager, author, page),
    }
}
