//! Long values that a committed transaction gave up go, page by page.

use duralite_logfmt::store::{ObjectKind, PageId, TxId};

use crate::engine::Engine;
use crate::error::Error;
use crate::pager::Author;
use crate::tree::free_chain_step;

/// Gives chains back, each from a page on, and says so when it is done. Where it is stopped recovery goes on. A chain that
/// cannot be read on stays where that is so: its row is gone, and `verify` finds the pages that nothing leads to.
///
/// # Errors
/// The store is poisoned.
pub(crate) fn free_chains(engine: &Engine, tx: TxId, chains: &[PageId]) -> Result<(), Error> {
    if chains.is_empty() {
        return Ok(());
    }
    let free = || {
        for first in chains {
            let mut next = *first;
            while next != 0 {
                engine.poison.check()?;
                next = match free_chain_step(&engine.pager, &engine.space, tx, next) {
                    Err(Error::Corrupt { .. } | Error::Io { .. }) => {
                        // Recovery takes it for the end of this chain, and goes on with the next one.
                        engine.pager.say(Author { tx, ..Author::SYSTEM }, &[])?;
                        0
                    }
                    next => next?,
                };
            }
        }
        engine.pager.say(Author { kind: ObjectKind::End, tx, previous: 0 }, &[]).map(|_| ())
    };
    free().map_err(|error| engine.poison.set(&error))
}
