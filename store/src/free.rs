//! Frees the pages of long values that a committed transaction replaced or removed, one page at a time.

use crate::engine::Engine;
use crate::error::Error;
use crate::format::{ObjectKind, PageId, TxId};
use crate::pager::Author;
use crate::tree::free_chain_step;

/// Frees chains of overflow pages, and then logs that all of them are free. Each chain is given by its first page. If a
/// crash interrupts the work, recovery continues it. If the rest of a chain cannot be read, its pages stay in use. No
/// row refers to them any more, so `verify` reports them as unreachable.
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
                        // The rest of the chain cannot be read. This object tells recovery that the chain ends here, so
                        // that recovery continues with the next chain.
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
