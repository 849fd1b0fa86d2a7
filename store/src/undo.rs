//! Undoes one step, for a rollback or for recovery.

use crate::controls::Rule;
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{PageId, PageKind, Undo, kind};
use crate::pager::{Author, Logged};
use crate::tree::{Outcome, Reaped};

/// Undoes one step. Finds the row by its key, because the row may have moved to another page.
///
/// # Errors
/// Errors of the pages or the log.
pub(crate) fn undo_step(engine: &Engine, author: Author, undo: &[u8]) -> Result<Logged, Error> {
    let damaged = || Error::corrupt("the undo information of a log object");
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
                    Err(Error::corrupt("a tree, where a row whose change is to be undone is missing,"))
                }
            }
        }
        Undo::Page { page } => {
            if engine.controls.keep(Rule::EmptyTree) {
                empty_tree(engine, page)?;
            }
            engine.space.give_back(&engine.pager, author, page)
        }
        Undo::Pages { first, count } => engine.space.give_run_back(&engine.pager, author, first, count),
    }
}

/// Frees the pages below the root of a table whose creation is being rolled back. The table has no rows left, but may
/// still have empty leaves. The reason is that an empty leaf is freed by a log object of its own. A crash may have
/// prevented that object, or the log may have lacked room for it.
fn empty_tree(engine: &Engine, root: PageId) -> Result<(), Error> {
    while kind(engine.pager.pool.read(root)?.bytes()) == PageKind::Inner {
        match engine.tree(root).reap() {
            Ok(Reaped::Pages) => {}
            // Leaves the pages in use. If recovery failed here for lack of room, the store could never be opened.
            Err(Error::Full { .. }) => return Ok(()),
            Ok(Reaped::LongRow { .. } | Reaped::Root) => {
                return Err(Error::Corrupt {
                    what: "a table whose creation is rolled back, but which has rows,".to_owned(),
                    page: Some(root),
                });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
