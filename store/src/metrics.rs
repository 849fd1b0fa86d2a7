//! Metrics of an open store.

/// What a store has done since it was opened, and its present state. Sizes are in bytes.
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
    /// Transactions committed, including those that changed nothing.
    pub commits: u64,
    /// Transactions rolled back.
    pub aborts: u64,
    /// Transactions that gave way in a cycle of transactions that waited for each other.
    pub deadlocks: u64,
    /// Locks that were not granted within the lock timeout.
    pub lock_timeouts: u64,
    /// Locks that a transaction had to wait for.
    pub lock_waits: u64,
    /// Table locks that a transaction inherited from the one before on its thread.
    pub locks_inherited: u64,
    /// Transactions in progress that have changed something.
    pub active: u64,
    /// Open snapshots; those that the store has ended are not counted.
    pub snapshots: u64,
    /// Bytes of old row versions that the store keeps for snapshots.
    pub snapshot_bytes: u64,
    /// Snapshots that the store ended because old versions took too much memory.
    pub snapshots_ended: u64,
    /// Log objects written since the store was made.
    pub log_objects: u64,
    /// Bytes of log objects.
    pub log_bytes: u64,
    /// Writes to the log's medium.
    pub log_writes: u64,
    /// Flushes or fences of the log's medium.
    pub log_flushes: u64,
    /// Bytes that surely fit into the log.
    pub log_free_bytes: u64,
    /// Pages in the page file.
    pub pages: u64,
    /// Pages read from the page file.
    pub pages_read: u64,
    /// Calls that read pages. Read-ahead reads adjacent pages with one call.
    pub page_reads: u64,
    /// Pages that were read ahead for scans. The first use of such a page is not a miss.
    pub pages_read_ahead: u64,
    /// Pages that were read ahead and evicted before any use.
    pub pages_read_in_vain: u64,
    /// Pages written home.
    pub pages_written: u64,
    /// Dirty pages in the cache.
    pub pages_dirty: u64,
    /// Uses of a page that was in the cache. Uses of a thread's own copy of an inner page are not counted.
    pub cache_hits: u64,
    /// Uses of a page that was not in the cache.
    pub cache_misses: u64,
    /// Misses that found no page to evict at once, and had to wait until dirty pages were home.
    pub cache_waits: u64,
    /// Inner pages of trees that were evicted. The next descent has to read such a page again, so there should be
    /// hardly any.
    pub inner_pages_left: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// From this log object on the archive has everything that the store has given up; 0 if the archive is empty. A
    /// backup that ends before this object cannot be brought to any later moment.
    pub archived_from: u64,
    /// Log objects that recovery redid when the store was opened.
    pub recovered_objects: u64,
    /// Transactions that recovery rolled back when the store was opened.
    pub recovered_transactions: u64,
    /// How commits become durable, as text for people.
    pub log: String,
}
