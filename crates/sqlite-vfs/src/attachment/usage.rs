//! Tells which connections and processes use a log. Each process counts its own connections in memory.
//! Processes see each other through locks of the segment.
//!
//! SQLite's locks of the database file cannot tell which connections use a log. The locks belong to the
//! process, and SQLite itself keeps account of which connection holds which lock. A forked child inherits
//! that account although it has no locks, and two copies of SQLite in one process do not share it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_format::LogId;
use duralite_medium::{FileSegment, MediumError, SegmentUse};
use duralite_sqlite_ffi as ffi;

use crate::errors::Failure;

/// The purpose for which a connection begins to use a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entering {
    /// To keep rollback journals in the log. While such a connection is idle, another connection may still
    /// become the only user of the WAL.
    Journal,
    /// To use the WAL together with other connections.
    Wal,
    /// To use the WAL as its only user.
    WalAlone,
}

/// The connections of this process that use a log for one purpose (`SegmentUse`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Users {
    #[default]
    Nobody,
    /// One connection and `others` more connections. Other processes may have connections too.
    Shared { others: u32 },
    /// One connection, and no other process has a connection.
    Alone,
}

impl Users {
    /// Returns the users that are left when one connection ends its use.
    fn less(self) -> Self {
        match self {
            Self::Nobody | Self::Alone | Self::Shared { others: 0 } => Self::Nobody,
            Self::Shared { others } => Self::Shared { others: others - 1 },
        }
    }
}

/// The connections of this process that use a log at all, and those that have its WAL open.
#[derive(Default)]
struct Kinds {
    any: Users,
    wal: Users,
}

impl Kinds {
    fn of(&mut self, kind: SegmentUse) -> &mut Users {
        match kind {
            SegmentUse::Any => &mut self.any,
            SegmentUse::Wal => &mut self.wal,
        }
    }
}

/// Counts the connections of this process that use one log.
pub struct Usage {
    log: LogId,
    segment: Arc<FileSegment>,
    kinds: Mutex<Kinds>,
}

impl Usage {
    pub fn new(log: LogId, segment: Arc<FileSegment>) -> Self {
        Self { log, segment, kinds: Mutex::default() }
    }

    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. `is_wal` says whether it uses the WAL, or only rollback journals.
    pub fn join(&self, is_wal: bool) -> Result<(), Failure> {
        let mut kinds = self.kinds();
        self.add(&mut kinds, SegmentUse::Any)?;
        if is_wal && let Err(failure) = self.add(&mut kinds, SegmentUse::Wal) {
            kinds.any = kinds.any.less();
            return Err(failure);
        }
        Ok(())
    }

    fn add(&self, kinds: &mut Kinds, kind: SegmentUse) -> Result<(), Failure> {
        let users = kinds.of(kind);
        *users = match *users {
            Users::Shared { others } => Users::Shared { others: others + 1 },
            Users::Nobody if self.ask(self.segment.share_use(kind))? => Users::Shared { others: 0 },
            Users::Nobody | Users::Alone => return Err(in_use()),
        };
        Ok(())
    }

    /// Removes a connection. If it used the log alone, other connections may use the log again.
    pub fn leave(&self, is_wal: bool) {
        let mut kinds = self.kinds();
        self.let_in(&mut kinds);
        kinds.any = kinds.any.less();
        if is_wal {
            kinds.wal = kinds.wal.less();
            if kinds.wal == Users::Nobody {
                self.segment.end_use(SegmentUse::Wal);
            }
        }
    }

    /// Tries to keep all other processes from using the log for the purpose `kind`. Does so only if exactly
    /// one connection of this process uses the log for that purpose. Returns whether that connection is now
    /// the only one in all processes.
    pub fn take_alone(&self, kind: SegmentUse) -> Result<bool, Failure> {
        let mut kinds = self.kinds();
        let users = kinds.of(kind);
        if *users == (Users::Shared { others: 0 }) && self.ask(self.segment.take_use(kind))? {
            *users = Users::Alone;
        }
        Ok(*users == Users::Alone)
    }

    /// Lets other connections use the log again, after [`Self::take_alone`].
    pub fn share(&self) {
        self.let_in(&mut self.kinds());
    }

    fn let_in(&self, kinds: &mut Kinds) {
        for kind in [SegmentUse::Any, SegmentUse::Wal] {
            let users = kinds.of(kind);
            if *users == Users::Alone {
                *users = Users::Shared { others: 0 };
                // This cannot fail, because an exclusive lock that is held can always become a shared one.
                let _ = self.segment.share_use(kind);
            }
        }
    }

    fn ask(&self, answer: Result<bool, MediumError>) -> Result<bool, Failure> {
        answer.map_err(|error| {
            Failure::new(
                ffi::IOERR_LOCK,
                format!("cannot lock the shared memory of log {}: {error}", self.log),
            )
        })
    }
}

pub fn in_use() -> Failure {
    Failure::new(ffi::BUSY, "another connection uses the database exclusively, or is closing it")
}
