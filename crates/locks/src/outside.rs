//! Readers who may read the segment and not write it, as a user who may only read the database.
//!
//! Such a reader cannot announce itself in a word. It holds its mark as a lock of a byte of the file, which takes
//! no right to write, and then looks at the processes' words: an exclusive lock or a claim of the mark that a living
//! process has means *busy*. A process that takes marks exclusively has announced that in its word, and then asks
//! the kernel for such readers. That would be a system call in every transaction that moves its own mark, so it
//! is asked only where it matters:
//!
//! 1. *several marks at once*: the log is about to start over, under whoever reads frames of it;
//! 2. *a mark while anybody holds CHECKPOINT*, this process included: a checkpoint goes by the marks;
//! 3. *CHECKPOINT itself*: it is not to be had while such a reader holds any mark.
//!
//! So a process may move the mark under such a reader when nobody checkpoints. Nothing goes by the mark then; and
//! whoever wants to checkpoint later finds the reader by rule 3. When a checkpoint runs, no mark is moved
//! under such a reader: let it have found no process at the mark when it looked. A process that claims the mark
//! after that either sees CHECKPOINT, and finds the reader by rule 2; or it does not, and then CHECKPOINT was
//! announced later still, and rule 3 found the reader. A mark that was moved before the reader looked has
//! another value than the reader began with, which SQLite compares once it has the lock.
//!
//! Every side announces first and looks then, with a barrier in between: [`Segment::has_outside_readers`] and
//! [`Segment::hold_mark`] have it. Recovery of the wal-index takes CHECKPOINT together with RECOVER, and need not
//! wait for such readers: it writes nothing to the database, and a mark that it finds taken by rule 2 it leaves
//! as it is.
//!
//! The price: a reader of this kind that stays long keeps checkpoints from running, all of them, where another
//! one keeps back what it reads only.
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

    /// Whether readers from outside let a process have these locks exclusively, which it has claimed.
    /// `checkpoints` tells whether this process holds CHECKPOINT.
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

    /// Takes a lock shared as a reader from outside, the first one of this process; `false` when somebody has it
    /// exclusively. What is no mark SQLite takes to see whether it is free, and gives back at once: it is looked
    /// at only.
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
