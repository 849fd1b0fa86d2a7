//! Acknowledging a commit: this process tells the others which commit was acknowledged last. Here too are the
//! metrics of a process's use of a log, for other processes that look on.

use duralite_wal::engine::Fill;
use duralite_wal::log::follow;
use duralite_wal::metrics::Counter;

use super::Attachment;

impl Attachment {
    /// Notes that a commit is acknowledged, as [`duralite_wal::Log::newest_commit`] names it (invariant
    /// 15). Counts it, with the time at which SQLite began to write it and with how full the log was after
    /// it.
    pub fn acknowledge(&self, commit: u64, began_ns: u64, fill: Fill) {
        follow::acknowledge(&*self.segment, commit);
        let Some(recorder) = &self.recorder else { return };
        recorder.committed(began_ns, fill);
        if let Some(committer) = self.durability_waiter() {
            recorder.led(committer.led());
        }
    }

    /// Counts an event other than a commit.
    pub fn count(&self, counter: Counter) {
        if let Some(recorder) = &self.recorder {
            recorder.count(counter, 1);
        }
    }
}
