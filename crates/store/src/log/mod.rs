//! The log: objects with consecutive numbers, of which a prefix is durable.
//!
//! Invariant 30: what is recovered is the longest run of whole objects from the head on, without a gap and with
//! epochs that never go back. Everything acknowledged is in it, because it is acknowledged only when everything
//! up to it is durable.

mod damage;
pub(crate) mod disk;
pub(crate) mod nv;
pub(crate) mod rings;
mod window;

use std::fmt;

use duralite_logfmt::store::Lsn;

pub(crate) use self::damage::{Damage, OnDamage, refuse};
use crate::error::Error;

/// No number of an object and no place in a log is ever so large: what says so is damaged, and is not reckoned with.
pub(crate) const BEYOND: u64 = 1 << 62;

/// What is free of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// Bytes that objects can still take for certain.
    pub(crate) free_bytes: u64,
    /// Objects that it can still take.
    pub(crate) free_objects: u64,
    /// Bytes when it is empty.
    pub(crate) all_bytes: u64,
    /// Objects when it is empty.
    pub(crate) all_objects: u64,
    /// Bytes that making something durable may take besides those of the objects.
    pub(crate) force_bytes: u64,
}

/// What a log has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCounters {
    /// Bytes of objects appended.
    pub(crate) bytes: u64,
    /// Writes of groups of objects, or objects made persistent.
    pub(crate) writes: u64,
    /// Flushes of a device, or fences.
    pub(crate) flushes: u64,
}

/// A log of objects. Whoever is about to change a page appends the object while it holds the page, so that a
/// page's changes have ascending numbers.
pub(crate) trait Log: Send + Sync + fmt::Debug {
    /// Numbers and seals an object, and keeps a copy of it. Not durable on return.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room; nothing has happened then. [`Error::Poisoned`].
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error>;

    /// The number that the next object will have, or one before that.
    fn next(&self) -> Lsn;

    /// Objects below this are durable.
    fn durable(&self) -> Lsn;

    /// Objects below this are not needed any more.
    fn head(&self) -> Lsn;

    /// Makes everything up to this object durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`] or what the medium says: then nothing is known of what was not durable before.
    fn force(&self, upto: Lsn) -> Result<(), Error>;

    /// Shows durable objects, `from..to`, in order. What is below the head is not shown.
    ///
    /// # Errors
    /// [`Error::Corrupt`], an error of the medium, or one of the visitor's.
    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error>;

    /// Gives up everything below `head`, which must be durable. Durable on return.
    ///
    /// # Errors
    /// What the medium says.
    fn truncate(&self, head: Lsn) -> Result<(), Error>;

    /// What is free.
    fn space(&self) -> Space;

    /// Makes some of what is not durable so, if there is enough of it to be worth while.
    fn persist_some(&self);

    /// What it has done.
    fn counters(&self) -> LogCounters;

    /// Bytes of ordinary memory that it takes, about, at most.
    fn memory_bytes(&self) -> u64;

    /// What makes a commit durable, for people.
    fn describe(&self) -> String;

    /// What checksums of its objects begin with.
    fn seed(&self) -> u64;
}

/// Is shown objects, whole and checked.
pub(crate) type Visit<'a> = dyn FnMut(Lsn, &[u8]) -> Result<(), Error> + 'a;
