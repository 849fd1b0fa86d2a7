//! Freeing the long values that a committed transaction replaced or removed, page by page.

use crate::engine::Engine;
use crate::error::Error;
use crate::format::{ObjectKind, PageId, TxId};
use crate::pager::Author;
use crate::tree::free_chain_step;

/// Frees chains, each from a page on, and then logs that this is done. If a crash interrupts it, recovery continues. If
/// the rest of a chain cannot be read, its pages stay in use: no row leads to them any more, and `verify` reports them
/// as unreachable.
///
/// # Errors
/// Any error has poisoned the store.
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
                        // Recovery takes this object for the end of the chain, and continues with the next chain.
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
