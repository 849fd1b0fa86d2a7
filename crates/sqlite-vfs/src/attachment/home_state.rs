//! What the users of a log know of the database file: whether it was synced, and whether that has failed.

use duralite_journal::directory::{HARDENED, HOME_FAILURES, HOME_SYNCED, HOME_WRITES};
use duralite_medium::Segment as _;

use super::Attachment;

impl Attachment {
    /// How often syncing the database has failed since all was written to it anew, in any process.
    pub fn home_failures(&self) -> u64 {
        self.segment.load(HOME_FAILURES)
    }

    /// Notes that syncing the database has failed (invariant 6).
    pub fn home_failed(&self) {
        self.segment.fetch_add(HOME_FAILURES, 1);
    }

    /// Notes that the database file has been written to. A process that dies in between has not finished its checkpoint,
    /// and the next one writes the page again.
    pub fn home_written(&self) {
        self.segment.fetch_add(HOME_WRITES, 1);
    }

    /// For [`Self::home_synced`], before a sync begins.
    pub fn home_writes(&self) -> u64 {
        self.segment.load(HOME_WRITES)
    }

    /// Notes that the database file has been synced, as it was after so many writes, or later.
    pub fn home_synced(&self, writes: u64) {
        self.segment.store(HOME_SYNCED, writes + 1);
    }

    /// Notes that something is about to be written to it that is synced at once: until then it is not.
    pub fn home_in_doubt(&self) {
        self.segment.store(HOME_SYNCED, 0);
    }

    /// Whether everything in the database file is durable, the guard with it. Whoever begins the shared memory anew does not
    /// know: a process may have died before its sync.
    pub fn home_is_synced(&self) -> bool {
        self.home_failures() == 0 && self.segment.load(HOME_SYNCED) == self.home_writes() + 1
    }

    /// Whether log and guard are known to be durable, and the guard is not provisional.
    pub fn is_hardened(&self) -> bool {
        self.segment.load(HARDENED) != 0
    }

    /// Notes that they are.
    pub fn set_hardened(&self) {
        self.segment.store(HARDENED, 1);
    }

    /// Notes that everything in the log has been written to the database anew and synced, if syncing has not
    /// failed since it had failed for the `failures`-th time.
    pub fn home_settled(&self, failures: u64) {
        let _ = self.segment.compare_exchange(HOME_FAILURES, failures, 0);
    }
}
