//! Metrics of an open store.

/// Counts of what a store has done since it was opened, and its present state. Sizes are in bytes.
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
    /// Transactions that failed with [`Error::Deadlock`](crate::Error::Deadlock), because they waited for each other in
    /// a cycle.
    pub deadlocks: u64,
    /// Lock requests that were not granted within the lock timeout.
    pub lock_timeouts: u64,
    /// Lock requests that had to wait.
    pub lock_waits: u64,
    /// Table locks that a transaction inherited from the previous transaction on its thread.
    pub locks_inherited: u64,
    /// Open transactions that have changed something.
    pub active: u64,
    /// Open snapshots, not counting those that the store has ended.
    pub snapshots: u64,
    /// Bytes of old row versions that are kept for snapshots.
    pub snapshot_bytes: u64,
    /// Snapshots that the store ended because old versions took too much memory.
    pub snapshots_ended: u64,
    /// Log objects written.
    pub log_objects: u64,
    /// Bytes of these log objects.
    pub log_bytes: u64,
    /// The number of the newest log object. Log objects are numbered from 1 on since the store was made.
    pub newest_object: u64,
    /// Writes to the log's medium.
    pub log_writes: u64,
    /// Flushes of the log's medium, or fences.
    pub log_flushes: u64,
    /// Bytes that are sure to fit into the log.
    pub log_free_bytes: u64,
    /// Pages in the page file.
    pub pages: u64,
    /// Pages that were read from the page file.
    pub pages_read: u64,
    /// Read calls that read these pages. Read-ahead reads adjacent pages with one call.
    pub page_reads: u64,
    /// Pages that were read ahead for scans. The first use of such a page is not a miss.
    pub pages_read_ahead: u64,
    /// Pages that were read ahead, but evicted unused.
    pub pages_read_in_vain: u64,
    /// Pages that were written home, from the cache or by bulk loads.
    pub pages_written: u64,
    /// Dirty pages in the cache.
    pub pages_dirty: u64,
    /// Page uses that found the page in the cache. Uses of a thread's own copy of an inner page are not counted.
    pub cache_hits: u64,
    /// Page uses that did not find the page in the cache.
    pub cache_misses: u64,
    /// Misses that found no page to evict at once, and had to wait until dirty pages were written home.
    pub cache_waits: u64,
    /// Inner pages of trees that were evicted. The next descent that passes such a page has to read it again, so this
    /// number should stay small.
    pub inner_pages_left: u64,
    /// Checkpoints that were completed.
    pub checkpoints: u64,
    /// The first object from which on the archive has every log object; 0 if the archive is empty. A backup that ends
    /// before this object cannot be restored to any later moment.
    pub archived_from: u64,
    /// Log objects that recovery redid when the store was opened.
    pub recovered_objects: u64,
    /// Transactions that recovery rolled back when the store was opened.
    pub recovered_transactions: u64,
    /// How commits become durable, as text to be displayed.
    pub log: String,
}
