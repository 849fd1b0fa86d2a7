//! One step is taken back, by its transaction or by recovery.

use duralite_logfmt::store::Undo;

use crate::engine::Engine;
use crate::error::Error;
use crate::pager::{Author, Logged};
use crate::tree::Outcome;

/// Takes one step back. It is found by its key: the row may be on another page by now.
///
/// # Errors
/// Of the pages or the log.
pub(crate) fn undo_step(engine: &Engine, author: Author, undo: &[u8]) -> Result<Logged, Error> {
    let damaged = || Error::corrupt("what a log object says about taking it back");
    match Undo::decode(undo).map_err(|_| damaged())? {
        Undo::Row { root, key, old } => {
            let tree = engine.tree(root);
            let done = match old {
                Some(old) => tree.put(author, key, old, &mut |_| Ok(true))?,
                None => tree.remove(author, key, &mut |_| Ok(true))?,
            };
            match done {
                Outcome::Changed(changed) => Ok(changed.logged),
                Outcome::NoRow | Outcome::Refused => {
                    Err(Error::corrupt("a tree, where a row is missing that is to be taken back,"))
                }
            }
        }
        Undo::Page { page } => engine.space.give_back(&engine.pager, author, page),
    }
}
