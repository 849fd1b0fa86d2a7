//! The log: objects with consecutive numbers, of which a prefix is durable.
//!
//! Invariant 30: recovery finds the longest run of valid objects from the head on, without a gap and with epochs that
//! never decrease. Everything acknowledged is in that run, because the store acknowledges a commit only when everything
//! up to it is durable.

mod damage;
pub(crate) mod disk;
pub(crate) mod nv;
pub(crate) mod rings;
mod window;

use std::fmt;

pub(crate) use self::damage::{Damage, OnDamage, refuse};
use crate::error::Error;
use crate::format::Lsn;

/// No object number and no place in a log is ever this large. A larger value means damage, and the code computes
/// nothing with it.
pub(crate) const BEYOND: u64 = 1 << 62;

/// The space in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// Bytes of objects that surely fit into the log.
    pub(crate) free_bytes: u64,
    /// Objects that still fit into the log.
    pub(crate) free_objects: u64,
    /// `free_bytes` of the empty log.
    pub(crate) all_bytes: u64,
    /// `free_objects` of the empty log.
    pub(crate) all_objects: u64,
    /// Bytes that a force may write in addition to the objects.
    pub(crate) force_bytes: u64,
}

/// Counts of the log's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCounters {
    /// Bytes of objects appended.
    pub(crate) bytes: u64,
    /// Writes of groups of objects, or objects made persistent.
    pub(crate) writes: u64,
    /// Flushes of a device, or fences.
    pub(crate) flushes: u64,
}

/// A log of objects. A thread that changes a page appends the object while it has the page latched, so that the changes
/// of a page have ascending numbers.
pub(crate) trait Log: Send + Sync + fmt::Debug {
    /// Numbers and seals an object, and keeps a copy of it. Not durable on return.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room; then nothing has changed. [`Error::Poisoned`].
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error>;

    /// The number of the next object, or a smaller one if other threads append meanwhile.
    fn next(&self) -> Lsn;

    /// All objects below this number are durable.
    fn durable(&self) -> Lsn;

    /// Objects below this number are no longer needed.
    fn head(&self) -> Lsn;

    /// Makes everything up to the object `upto` durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`], or an error of the medium. After an error, objects that were not durable before may be
    /// durable or not.
    fn force(&self, upto: Lsn) -> Result<(), Error>;

    /// Passes the durable objects in `from..to` to `visit`, in order. Objects below the head are skipped.
    ///
    /// # Errors
    /// [`Error::Corrupt`], an error of the medium, or an error of `visit`.
    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error>;

    /// Gives up all objects below `head`, which must be durable. Durable on return.
    ///
    /// # Errors
    /// Errors of the medium.
    fn truncate(&self, head: Lsn) -> Result<(), Error>;

    /// The space that is free.
    fn space(&self) -> Space;

    /// Makes some waiting objects durable, if there are enough of them to be worth it.
    fn persist_some(&self);

    /// Counts of the log's operations.
    fn counters(&self) -> LogCounters;

    /// Bytes of ordinary memory that the log takes at most, roughly.
    fn memory_bytes(&self) -> u64;

    /// How the log makes commits durable, as text for people.
    fn describe(&self) -> String;

    /// The seed of the objects' checksums.
    fn seed(&self) -> u64;
}

/// A function that is called with each object, which is whole and checked.
pub(crate) type Visit<'a> = dyn FnMut(Lsn, &[u8]) -> Result<(), Error> + 'a;
