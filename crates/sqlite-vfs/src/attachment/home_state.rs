//! What the users of a log know of the database file: whether it was synced, and whether a sync has failed.

use duralite_medium::Segment as _;
use duralite_wal::placement::{HARDENED, HOME_FAILURES, HOME_SYNCED, HOME_WRITES};

use super::Attachment;

impl Attachment {
    /// How often syncing the database has failed, in any process, since everything was last written to it
    /// anew.
    pub fn home_failures(&self) -> u64 {
        self.segment.load(HOME_FAILURES)
    }

    /// Notes that syncing the database has failed (invariant 6).
    pub fn home_failed(&self) {
        self.segment.fetch_add(HOME_FAILURES, 1);
    }

    /// Notes that the database file has been written to. A process that dies between the write and this note
    /// has not finished its checkpoint, and the next checkpoint writes the page again.
    pub fn home_written(&self) {
        self.segment.fetch_add(HOME_WRITES, 1);
    }

    /// The number of writes so far, to be taken before a sync begins, for [`Self::home_synced`].
    pub fn home_writes(&self) -> u64 {
        self.segment.load(HOME_WRITES)
    }

    /// Notes that the database file has been synced, with at least this many writes in it.
    pub fn home_synced(&self, writes: u64) {
        self.segment.store(HOME_SYNCED, writes + 1);
    }

    /// Notes that something is about to be written to the file and synced at once. Until that sync the file
    /// counts as not synced.
    pub fn home_in_doubt(&self) {
        self.segment.store(HOME_SYNCED, 0);
    }

    /// Whether everything in the database file is durable, the guard with it. A process that has begun the
    /// shared memory anew does not know: another one may have died before its sync.
    pub fn home_is_synced(&self) -> bool {
        self.home_failures() == 0 && self.segment.load(HOME_SYNCED) == self.home_writes() + 1
    }

    /// Whether log and guard are known to be durable, and the guard is not provisional.
    pub fn is_hardened(&self) -> bool {
        self.segment.load(HARDENED) != 0
    }

    /// Notes that log and guard are durable, and that the guard is not provisional.
    pub fn set_hardened(&self) {
        self.segment.store(HARDENED, 1);
    }

    /// Notes that everything in the log has been written to the database anew and synced, unless syncing has
    /// failed again since the `failures`-th failure.
    pub fn home_settled(&self, failures: u64) {
        let _ = self.segment.compare_exchange(HOME_FAILURES, failures, 0);
    }
}
