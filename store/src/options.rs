//! The options of a store.

use std::path::PathBuf;
use std::time::Duration;

use crate::buffer::smallest_cache_bytes;
use crate::controls::Controls;
#[cfg(feature = "controls")]
use crate::controls::Rule;
use crate::error::Error;
use crate::format::{LARGEST_PAGE, SMALLEST_PAGE};

/// The medium on which the log is kept.
///
/// ```
/// use duralite_store::{LogMedium, Options};
/// let options = Options::default().log(LogMedium::Emulated);
/// assert_ne!(options.log, LogMedium::Disk);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogMedium {
    /// In persistent memory: a directory on a file system with direct access (DAX).
    Nvram(PathBuf),
    /// In ordinary memory, backed by a file in the store's directory. The log survives the death of the process, but
    /// not a power loss.
    Emulated,
    /// In a preallocated file in the store's directory, written with direct I/O.
    #[default]
    Disk,
}

/// The way in which the log is written, named as in table 3 of the NV-Logging paper. All schemes give the same
/// guarantees; they differ in speed.
///
/// ```
/// use duralite_store::{Options, Scheme};
/// let options = Options::default().scheme(Scheme::NvDisk);
/// assert_eq!(options.scheme, Scheme::NvDisk);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// The best scheme for the medium. In memory it is [`FlushOnCommit`](Self::FlushOnCommit). On a disk, each log
    /// object waits in a slot of its own, and group commit writes the objects of all transactions.
    #[default]
    Auto,
    /// On a disk: a central buffer, written by group commit.
    NvDisk,
    /// On a disk: each transaction itself writes the log objects up to its own commit, while other transactions write
    /// theirs.
    NvDiskDecentralized,
    /// In memory: each log object is persistent before its page is changed.
    FlushOnInsert,
    /// In memory: a daemon makes log objects persistent in the background. A commit makes all remaining objects up to
    /// its own persistent.
    FlushOnCommit,
    /// In memory: a log for each thread. The objects of all logs share one sequence of numbers. A commit flushes and
    /// fences (after Wang and Johnson).
    Distributed,
}

impl Scheme {
    /// All schemes, for iterating over them.
    ///
    /// ```
    /// assert!(duralite_store::Scheme::ALL.contains(&duralite_store::Scheme::FlushOnInsert));
    /// ```
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::NvDisk,
        Self::NvDiskDecentralized,
        Self::FlushOnInsert,
        Self::FlushOnCommit,
        Self::Distributed,
    ];

    /// Returns the name that the scheme has in the NV-Logging paper.
    ///
    /// ```
    /// assert_eq!(duralite_store::Scheme::NvDisk.as_str(), "nv-disk");
    /// ```
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::NvDisk => "nv-disk",
            Self::NvDiskDecentralized => "nv-disk-decentralized",
            Self::FlushOnInsert => "flush-on-insert",
            Self::FlushOnCommit => "flush-on-commit",
            Self::Distributed => "distributed",
        }
    }
}

/// The durability for which [`Transaction::commit`](crate::Transaction::commit) waits.
///
/// ```
/// use duralite_store::{Durability, Options};
/// let options = Options::default().durability(Durability::Eventual);
/// assert_ne!(options.durability, Durability::Immediate);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// A commit returns when the transaction is durable.
    #[default]
    Immediate,
    /// A commit returns at once. A crash may lose the newest transactions, about the last 20 ms of them. No older
    /// transaction is lost while a newer one remains.
    Eventual,
}

/// The options of a store. An option that is not set has its value from [`Options::default`].
///
/// ```
/// use duralite_store::{LogMedium, Options};
/// let options = Options::default().cache_bytes(16 << 20).log(LogMedium::Emulated);
/// assert_eq!(options.page_bytes, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// See [`log`](method@Self::log).
    pub log: LogMedium,
    /// See [`scheme`](method@Self::scheme).
    pub scheme: Scheme,
    /// See [`page_bytes`](method@Self::page_bytes).
    pub page_bytes: Option<u32>,
    /// See [`cache_bytes`](method@Self::cache_bytes).
    pub cache_bytes: u64,
    /// See [`log_bytes`](method@Self::log_bytes).
    pub log_bytes: u64,
    /// See [`snapshot_bytes`](method@Self::snapshot_bytes).
    pub snapshot_bytes: u64,
    /// See [`lock_timeout`](method@Self::lock_timeout).
    pub lock_timeout: Duration,
    /// See [`durability`](method@Self::durability).
    pub durability: Durability,
    /// See [`early_lock_release`](method@Self::early_lock_release).
    pub early_lock_release: bool,
    /// See [`lock_inheritance`](method@Self::lock_inheritance).
    pub lock_inheritance: bool,
    /// See [`archive`](method@Self::archive).
    pub archive: Option<PathBuf>,
    /// See [`create`](method@Self::create).
    pub create: bool,
    /// A rule to break from the start. A test that breaks it shows that it would notice such a mistake.
    #[cfg(feature = "controls")]
    #[doc(hidden)]
    pub broken: Option<Rule>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: LogMedium::Disk,
            scheme: Scheme::Auto,
            page_bytes: None,
            cache_bytes: 64 << 20,
            log_bytes: 64 << 20,
            snapshot_bytes: 64 << 20,
            lock_timeout: Duration::from_secs(1),
            durability: Durability::Immediate,
            early_lock_release: true,
            lock_inheritance: true,
            archive: None,
            create: true,
            #[cfg(feature = "controls")]
            broken: None,
        }
    }
}

/// Each of these methods sets one option.
impl Options {
    /// Sets where the log is kept. Default: on the disk.
    #[must_use]
    pub fn log(self, log: LogMedium) -> Self {
        Self { log, ..self }
    }

    /// Sets how the log is written. Default: the best scheme for its medium.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        Self { scheme, ..self }
    }

    /// Sets the page size in bytes, a power of two from 4,096 to 32,768. Default for a new store: 8,192. An existing
    /// store keeps its page size.
    #[must_use]
    pub fn page_bytes(self, bytes: u32) -> Self {
        Self { page_bytes: Some(bytes), ..self }
    }

    /// Sets the size of the memory for pages and their bookkeeping, and for log objects that wait to be written, in
    /// bytes. Default: 64 MiB. The least is [`smallest_cache_bytes`](Self::smallest_cache_bytes).
    #[must_use]
    pub fn cache_bytes(self, bytes: u64) -> Self {
        Self { cache_bytes: bytes, ..self }
    }

    /// Sets the size of the log in bytes, at least 4 MiB. Default: 64 MiB. A transaction may use about a third of the
    /// log.
    #[must_use]
    pub fn log_bytes(self, bytes: u64) -> Self {
        Self { log_bytes: bytes, ..self }
    }

    /// Sets the size of the memory for old row versions while a [`Snapshot`](crate::Snapshot) is open, in bytes.
    /// Default: 64 MiB. An old version takes about 250 bytes in addition to the row itself. If this memory is not
    /// enough, the store ends the oldest snapshots, whose reads then fail with [`Error::SnapshotTooOld`].
    #[must_use]
    pub fn snapshot_bytes(self, bytes: u64) -> Self {
        Self { snapshot_bytes: bytes, ..self }
    }

    /// Sets how long a transaction waits for a lock before it fails with [`Error::Timeout`]. Default: one second.
    #[must_use]
    pub fn lock_timeout(self, limit: Duration) -> Self {
        Self { lock_timeout: limit, ..self }
    }

    /// Sets what a commit waits for. Default: until the transaction is durable.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets whether a transaction releases its locks before its commit is durable. Default: yes. Other transactions may
    /// then read changes that are not durable yet. The commit of such a reader waits until those changes are durable.
    /// So the store never acknowledges a transaction that depends on changes that a crash could undo.
    #[must_use]
    pub fn early_lock_release(self, is_early: bool) -> Self {
        Self { early_lock_release: is_early, ..self }
    }

    /// Sets whether a transaction leaves its table locks to the next transaction on its thread (speculative lock
    /// inheritance). Default: yes.
    #[must_use]
    pub fn lock_inheritance(self, inherits: bool) -> Self {
        Self { lock_inheritance: inherits, ..self }
    }

    /// Sets the directory to which the store copies log objects before it discards them. With the archive, a backup can
    /// be restored to any later moment. The store makes the directory if it does not exist. Default: no archive.
    #[must_use]
    pub fn archive(self, dir: impl Into<PathBuf>) -> Self {
        Self { archive: Some(dir.into()), ..self }
    }

    /// Sets whether opening a store that does not exist makes it. Default: yes. If not, opening a missing store fails
    /// with [`Error::NotAStore`], and makes no file.
    ///
    /// ```
    /// use duralite_store::{Error, Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// let opened = Store::open(dir.path().join("misspelt"), Options::default().create(false));
    /// assert!(matches!(opened, Err(Error::NotAStore { .. })));
    /// assert!(!dir.path().join("misspelt").exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn create(self, creates: bool) -> Self {
        Self { create: creates, ..self }
    }

    /// Breaks a rule from the start. A test that does this shows that it would notice such a mistake.
    #[cfg(feature = "controls")]
    #[doc(hidden)]
    #[must_use]
    pub fn breaking(self, rule: Rule) -> Self {
        Self { broken: Some(rule), ..self }
    }
}

/// The smallest log in bytes.
const SMALLEST_LOG: u64 = 4 << 20;
/// The default page size of a new store, in bytes.
pub(crate) const DEFAULT_PAGE: u32 = 8192;

impl Options {
    #[cfg(feature = "controls")]
    pub(crate) fn controls(&self) -> Controls {
        Controls::breaking(self.broken)
    }

    #[cfg(not(feature = "controls"))]
    #[expect(clippy::unused_self, reason = "with the feature there is something to look at")]
    pub(crate) fn controls(&self) -> Controls {
        Controls::default()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(bytes) = self.page_bytes
            && (!bytes.is_power_of_two() || !(SMALLEST_PAGE..=LARGEST_PAGE).contains(&(bytes as usize)))
        {
            return Err(Error::invalid("the page size has to be a power of two from 4096 to 32768"));
        }
        if self.log_bytes < SMALLEST_LOG || self.log_bytes > 1 << 40 {
            return Err(Error::invalid("the log's size has to be from 4 MiB to 1 TiB"));
        }
        let in_memory =
            matches!(self.scheme, Scheme::FlushOnInsert | Scheme::FlushOnCommit | Scheme::Distributed);
        if in_memory && self.log == LogMedium::Disk {
            return Err(Error::invalid("this scheme needs its log in memory: log = nvram or emulated"));
        }
        Ok(())
    }

    /// Returns the smallest [`cache_bytes`](Self::cache_bytes) for pages of this size: 64 pages, and the buffer of the
    /// page file. Recovery never needs more, however much it has to undo. Log objects that wait to be written take some
    /// additional memory.
    ///
    /// ```
    /// use duralite_store::Options;
    /// let bytes = Options::smallest_cache_bytes(8192);
    /// assert!(bytes < 2 << 20 && bytes < Options::default().cache_bytes);
    /// ```
    #[must_use]
    pub const fn smallest_cache_bytes(page_bytes: u32) -> u64 {
        smallest_cache_bytes(page_bytes as u64)
    }

    /// Checks that the cache is large enough for pages of this size.
    pub(crate) fn check_cache(&self, page_bytes: u32) -> Result<(), Error> {
        let least = Self::smallest_cache_bytes(page_bytes);
        if self.cache_bytes >= least {
            return Ok(());
        }
        let has = self.cache_bytes;
        Err(Error::Invalid {
            what: format!(
                "a cache of {has} bytes is too small for pages of {page_bytes} bytes; set cache_bytes to {least} or more"
            ),
        })
    }

    /// Returns the scheme that these options select for their log medium.
    pub(crate) fn chosen_scheme(&self) -> Scheme {
        match (self.scheme, &self.log) {
            (Scheme::Auto, LogMedium::Nvram(_) | LogMedium::Emulated) => Scheme::FlushOnCommit,
            (scheme, _) => scheme,
        }
    }
}
