//! The log: a sequence of objects with consecutive numbers. The beginning of the sequence is durable, up to some
//! object.
//!
//! Invariant 30: recovery finds the longest sequence of valid objects that begins at the head, has no gap, and whose
//! epochs do not decrease. Every acknowledged commit is in that sequence, because the store acknowledges a commit only
//! when all objects up to it are durable.

mod damage;
pub(crate) mod disk;
pub(crate) mod nv;
pub(crate) mod rings;
mod window;

use std::fmt;

pub(crate) use self::damage::{Damage, OnDamage, refuse};
use crate::error::Error;
use crate::format::Lsn;

/// Object numbers, and places in a log, stay below this limit. Any other value means damage, so the code reports it and
/// does not compute with it.
pub(crate) const BEYOND: u64 = 1 << 62;

/// What the superblock of a page file says about the file's log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// The seed of the log's checksums.
    pub(crate) seed: u64,
    /// The page file has the changes of all log objects below this number; 0 if that is not known.
    pub(crate) home: Lsn,
}

impl Named {
    /// Checks that a log with this seed is the log that the page file names.
    fn check_seed(self, seed: u64) -> Result<(), Error> {
        let what = "the log is not the one that the page file names, but another store's, or one that this store had at \
                    another time; put back a page file and a log of the same moment, or restore the store from a backup \
                    and its archive";
        if seed == self.seed { Ok(()) } else { Err(Error::invalid(what)) }
    }

    /// Checks that a log that begins with the object `head` still has every change that the page file may lack.
    ///
    /// Invariant 76: before the log discards objects, the page file records that it has their changes. So if the log
    /// has discarded objects beyond that record, this page file is an older copy.
    fn check_head(self, head: Lsn) -> Result<(), Error> {
        let Self { home, .. } = self;
        if home == 0 || head <= home {
            Ok(())
        } else {
            Err(older_pages(&format!("changes from log object {home} on")))
        }
    }

    /// Returns whether durable objects are missing from a log that ends before the object `next`. They are missing if
    /// the page file records that it has the changes of that object.
    fn proves(self, next: Lsn) -> bool {
        self.home > next
    }
}

/// Returns the error for a page file that lacks changes which its log no longer has.
pub(crate) fn older_pages(lacks: &str) -> Error {
    let what = format!(
        "the page file is older than its log: it lacks {lacks}, which the log no longer has; put back a page \
         file and a log of the same moment, or restore the store from a backup and its archive"
    );
    Error::Invalid { what }
}

/// The space that a log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// The number of bytes of objects that are sure to fit into the log.
    pub(crate) free_bytes: u64,
    /// The number of further objects that fit into the log.
    pub(crate) free_objects: u64,
    /// The value of `free_bytes` if the log were empty.
    pub(crate) all_bytes: u64,
    /// The value of `free_objects` if the log were empty.
    pub(crate) all_objects: u64,
    /// The number of bytes that a force may write besides the objects.
    pub(crate) force_bytes: u64,
}

/// Counts of what the log has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCounters {
    /// The length of all appended objects, in bytes.
    pub(crate) bytes: u64,
    /// The number of writes to the log's medium; in persistent memory, the number of stores.
    pub(crate) writes: u64,
    /// The number of flushes of the log's medium; in persistent memory, the number of fences.
    pub(crate) flushes: u64,
}

/// A log of objects. A thread that changes a page appends the object while it has the page latched. So later changes of
/// a page have larger numbers.
pub(crate) trait Log: Send + Sync + fmt::Debug {
    /// Numbers and seals an object, and appends a copy of it. The object is not durable on return.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room; the log is then unchanged. [`Error::Poisoned`].
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error>;

    /// Returns the number of the next object. If other threads append during the call, the result may already be too
    /// small.
    fn next(&self) -> Lsn;

    /// Returns a number below which all objects are durable. Later objects may be durable too.
    fn durable(&self) -> Lsn;

    /// Returns the number of the log's head. Objects below the head are no longer needed.
    fn head(&self) -> Lsn;

    /// Makes everything up to the object `upto` durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`], or an error of the medium. After an error, objects that were not durable before may or may
    /// not be durable.
    fn force(&self, upto: Lsn) -> Result<(), Error>;

    /// Passes the durable objects in `from..to` to `visit`, in order. Skips objects below the head.
    ///
    /// # Errors
    /// [`Error::Corrupt`], an error of the medium, or an error of `visit`.
    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error>;

    /// Discards all objects below `head`, which must be durable. The new head is durable on return.
    ///
    /// # Errors
    /// Errors of the medium.
    fn truncate(&self, head: Lsn) -> Result<(), Error>;

    /// Returns how much space is free, and how much space the log has in total.
    fn space(&self) -> Space;

    /// Makes some waiting objects durable, if enough are waiting.
    fn persist_some(&self);

    /// Returns what the log has done so far.
    fn counters(&self) -> LogCounters;

    /// Returns about how much ordinary memory the log may take, in bytes.
    fn memory_bytes(&self) -> u64;

    /// Returns how the log makes commits durable, as text to be displayed.
    fn describe(&self) -> String;

    /// Returns the seed of the objects' checksums.
    fn seed(&self) -> u64;

    /// Returns whether the log was made for this kind of medium. If not, the log works, but a new log would suit the
    /// medium better.
    fn fits_medium(&self) -> bool {
        true
    }
}

/// A function that is called with each object. The object is complete, and its checksum was verified.
pub(crate) type Visit<'a> = dyn FnMut(Lsn, &[u8]) -> Result<(), Error> + 'a;
