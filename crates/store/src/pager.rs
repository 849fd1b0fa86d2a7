//! One step: an object goes into the log, and its changes into the pages.
//!
//! Invariant 35: nothing changes a page but an object of the log, with the page latched from before the object has its
//! number until the page holds the change.

use std::cell::Cell;
use std::sync::Arc;

use duralite_logfmt::store::{Change, Lsn, Object, ObjectKind, TxId};

use crate::buffer::{Pool, Writing};
use crate::error::Error;
use crate::log::Log;
use crate::poison::Poison;

thread_local! {
    /// Where a thread builds its objects. Of at most the bytes of the largest object.
    static OBJECT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// In whose name a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Author {
    pub(crate) kind: ObjectKind,
    pub(crate) tx: TxId,
    /// What the object's field of that name is to say.
    pub(crate) previous: Lsn,
}

impl Author {
    /// Of steps that belong to no transaction's fate.
    pub(crate) const SYSTEM: Self = Self { kind: ObjectKind::System, tx: 0, previous: 0 };
}

/// What was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) lsn: Lsn,
    pub(crate) bytes: u64,
}

/// Pages and their log.
#[derive(Debug)]
pub(crate) struct Pager {
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) poison: Arc<Poison>,
}

impl Pager {
    /// Logs changes of latched pages, each named by its place in `pages`, as one object, and makes them.
    ///
    /// # Errors
    /// [`Error::Full`] if the log has no room: nothing has happened then. [`Error::Poisoned`].
    pub(crate) fn step(
        &self,
        author: Author,
        undo: &[u8],
        pages: &mut [&mut Writing<'_>],
        changes: &[(usize, Change<'_>)],
    ) -> Result<Logged, Error> {
        let next = self.log.next();
        pages.iter().for_each(|page| page.announce(next));
        let named = changes.iter().filter_map(|(at, change)| Some((pages.get(*at)?.id(), *change)));
        // A thread that ends has none any more.
        let mut object = OBJECT.try_with(Cell::take).unwrap_or_default();
        Object::build_in(&mut object, (author.kind, author.tx, author.previous), undo, named);
        let (appended, bytes) = (self.log.append(&mut object), object.len() as u64);
        let _ = OBJECT.try_with(|kept| kept.set(object));
        let lsn = appended?;
        for (at, change) in changes {
            if let Some(page) = pages.get_mut(*at) {
                // It is in the log already: what cannot be done now cannot be done at recovery either.
                page.apply(change, lsn).map_err(|error| self.poison.set(&error))?;
            }
        }
        Ok(Logged { lsn, bytes })
    }

    /// Logs an object that changes no page.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(crate) fn say(&self, author: Author, body: &[u8]) -> Result<Logged, Error> {
        self.step(author, body, &mut [], &[])
    }
}
