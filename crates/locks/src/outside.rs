//! Readers who may read the segment and not write it: users who may only read the database.
//!
//! Such a reader cannot announce itself in a word. It holds its mark as a lock of a byte of the file, which
//! takes no right to write, and then looks at the processes' words. If a living process holds or claims the
//! mark exclusively, the reader is *busy*. A process that takes marks exclusively announces that in its word,
//! and then asks the kernel for such readers. Asking each time would be a system call in every transaction
//! that moves its own mark. So a process asks only where it matters:
//!
//! 1. It takes *several marks at once*: the log is about to start over, and readers may be reading its
//!    frames.
//! 2. It takes *a mark while any process holds CHECKPOINT*, this one included: a checkpoint goes by the
//!    marks.
//! 3. It takes *CHECKPOINT itself*, which cannot be had while such a reader holds any mark.
//!
//! So a process may move the mark of such a reader while no connection checkpoints. Nothing depends on the
//! mark then, and a connection that wants to checkpoint later finds the reader by rule 3. While a checkpoint
//! runs, no process moves the mark of such a reader. Proof: say that the reader found no process at the mark
//! when it looked. A process that claims the mark afterwards either sees CHECKPOINT, and finds the reader by
//! rule 2. Or it does not see CHECKPOINT. Then CHECKPOINT was announced later still, and rule 3 found the
//! reader. If the mark was moved before the reader looked, it has another value than the reader began with,
//! and SQLite compares the values once it has the lock.
//!
//! Every side announces first and then looks, with a barrier in between: [`Segment::has_outside_readers`] and
//! [`Segment::hold_mark`] have it. Recovery of the wal-index takes CHECKPOINT together with RECOVER and need
//! not wait for such readers. It writes nothing to the database, and leaves a mark that it finds taken by
//! rule 2 as it is.
//!
//! The price: a reader of this kind that stays long keeps all checkpoints from running. Any other reader
//! keeps back only what it reads.
//!
//! [`Segment::has_outside_readers`]: duralite_medium::Segment::has_outside_readers
//! [`Segment::hold_mark`]: duralite_medium::Segment::hold_mark

use super::{CHECKPOINT, CLAIMED, FIRST_READ, HELD, LockError, OUTSIDE, SLOTS, Table};

impl Table {
    /// Whether a reader from outside holds one of these marks.
    pub(super) fn has_outside(&self, first: usize, count: usize) -> Result<bool, LockError> {
        let possible = self.segment.can_be_read_only() && self.segment.load(self.base + OUTSIDE) != 0;
        Ok(possible && self.segment.has_outside_readers(first, count)?)
    }

    /// Whether readers from outside let this process have the locks exclusively that it has claimed.
    /// `checkpoints` says whether this process holds CHECKPOINT.
    pub(super) fn outside_permits(
        &self,
        checkpoints: bool,
        first: usize,
        count: usize,
    ) -> Result<bool, LockError> {
        if !self.segment.can_be_read_only() {
            return Ok(true);
        }
        let marks = first.max(FIRST_READ)..first + count;
        if first == CHECKPOINT && count == 1 {
            Ok(!self.has_outside(FIRST_READ, SLOTS - FIRST_READ)?)
        } else if !marks.is_empty() && (count > 1 || checkpoints || self.somebody_checkpoints()) {
            Ok(!self.has_outside(marks.start, marks.len())?)
        } else {
            Ok(true)
        }
    }

    fn somebody_checkpoints(&self) -> bool {
        let mask = 1 << CHECKPOINT << HELD | 1 << CHECKPOINT << CLAIMED;
        (0..self.high()).any(|process| self.segment.load(self.process_slot(process)) & mask != 0)
    }

    /// Takes a lock shared as a reader from outside, for the first connection of this process. Returns
    /// `false` when a process has it exclusively. SQLite takes a lock that is no mark only to see whether it
    /// is free, and gives it back at once, so such a lock is only looked at.
    pub(super) fn lock_from_outside(&self, slot: usize) -> Result<bool, LockError> {
        if slot >= FIRST_READ && !self.segment.hold_mark(slot)? {
            return Ok(false);
        }
        let free = self.is_free(slot);
        if free != Ok(true) {
            self.unlock_from_outside(slot);
        }
        free
    }

    pub(super) fn unlock_from_outside(&self, slot: usize) {
        if slot >= FIRST_READ {
            self.segment.release_mark(slot);
        }
    }

    /// Whether no living process holds or claims a lock exclusively.
    fn is_free(&self, slot: usize) -> Result<bool, LockError> {
        let mask = 1 << slot << HELD | 1 << slot << CLAIMED;
        for process in 0..self.high() {
            if self.segment.load(self.process_slot(process)) & mask != 0 && self.segment.is_alive(process)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
