//! Figures of an open store.

/// What a store has done since it was opened, and how it stands. Sizes in bytes.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// let before = store.metrics();
/// store.begin().commit()?;
/// assert_eq!(store.metrics().commits, before.commits + 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Transactions committed, those that changed nothing too.
    pub commits: u64,
    /// Transactions rolled back.
    pub aborts: u64,
    /// Transactions that gave way to others they waited for in a circle.
    pub deadlocks: u64,
    /// Locks that did not come in time.
    pub lock_timeouts: u64,
    /// Locks that were waited for.
    pub lock_waits: u64,
    /// Locks of tables that a transaction had from the one before on its thread.
    pub locks_inherited: u64,
    /// Transactions in progress that have changed something.
    pub active: u64,
    /// Snapshots that are open, those that were ended not counted in.
    pub snapshots: u64,
    /// Bytes of what rows were before they were changed, for snapshots.
    pub snapshot_bytes: u64,
    /// Snapshots that were ended because that took too much.
    pub snapshots_ended: u64,
    /// Log objects written so far, since the store was made.
    pub log_objects: u64,
    /// Bytes of log objects.
    pub log_bytes: u64,
    /// Writes to the log's medium.
    pub log_writes: u64,
    /// Flushes or fences of the log's medium.
    pub log_flushes: u64,
    /// Bytes of the log that are free for certain.
    pub log_free_bytes: u64,
    /// Pages in the page file.
    pub pages: u64,
    /// Pages read from it.
    pub pages_read: u64,
    /// Calls that read them: neighbours that are read ahead are read by one.
    pub page_reads: u64,
    /// Pages that were read before somebody needed them, for scans; a use of one is no miss.
    pub pages_read_ahead: u64,
    /// Those of them that left the cache before anybody did.
    pub pages_read_in_vain: u64,
    /// Pages written home.
    pub pages_written: u64,
    /// Pages in the cache that are not home as they are.
    pub pages_dirty: u64,
    /// Uses of a page that was in the cache; an inner page of a tree of which a thread has a copy at hand is not counted.
    pub cache_hits: u64,
    /// Uses of one that was not.
    pub cache_misses: u64,
    /// Misses that found no page which could leave at once, and waited until some were home.
    pub cache_waits: u64,
    /// Inner pages of trees that left the cache. Each is read again by whoever comes by, so there should be next to none.
    pub inner_pages_left: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// The log object from which on the archive has everything that was given up of the log, 0 for none: a backup that ends
    /// before it cannot be brought to any later moment.
    pub archived_from: u64,
    /// Log objects that opening the store repeated.
    pub recovered_objects: u64,
    /// Transactions that opening the store took back.
    pub recovered_transactions: u64,
    /// What a commit is durable by, for people.
    pub log: String,
}
