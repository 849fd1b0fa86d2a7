//! Makes one step: appends an object to the log, and applies the object's changes to the pages.
//!
//! Invariant 35: a page is changed only by applying a log object. The thread latches the page before the object gets
//! its number, and holds the latch until the change is applied.

use std::cell::Cell;
use std::sync::Arc;

use crate::buffer::{Pool, Writing};
use crate::error::Error;
use crate::format::{Change, Lsn, Object, ObjectKind, TxId};
use crate::log::Log;
use crate::poison::Poison;

thread_local! {
    /// The buffer in which this thread builds its objects. The buffer keeps the size of the largest object.
    static OBJECT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The author of a step, and how the step is marked in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Author {
    pub(crate) kind: ObjectKind,
    pub(crate) tx: TxId,
    /// The value for the object's field `previous`.
    pub(crate) previous: Lsn,
}

impl Author {
    /// The author of steps that belong to no transaction, and are never undone.
    pub(crate) const SYSTEM: Self = Self { kind: ObjectKind::System, tx: 0, previous: 0 };
}

/// The object that a step logged: its number and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) lsn: Lsn,
    pub(crate) bytes: u64,
}

/// The cache of pages, and the log of their changes.
#[derive(Debug)]
pub(crate) struct Pager {
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) poison: Arc<Poison>,
}

impl Pager {
    /// Logs changes of latched pages as one object, and applies the changes to the pages. Each change names its page by
    /// an index into `pages`.
    ///
    /// # Errors
    /// [`Error::Full`] if the log has no room; no page has changed then. [`Error::Poisoned`].
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
        // In a thread that is ending, the buffer no longer exists, so a new one is made.
        let mut object = OBJECT.try_with(Cell::take).unwrap_or_default();
        Object::build_in(&mut object, (author.kind, author.tx, author.previous), undo, named);
        let (appended, bytes) = (self.log.append(&mut object), object.len() as u64);
        let _ = OBJECT.try_with(|kept| kept.set(object));
        let lsn = appended?;
        for (at, change) in changes {
            if let Some(page) = pages.get_mut(*at) {
                // The object is already in the log. Recovery could not apply the change either, so the store stops
                // here.
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
