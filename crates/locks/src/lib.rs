//! The eight locks of SQLite's wal-index, in memory that the processes of a database share.
//!
//! **State.** There is no global lock state. Each process has one word: which locks it holds shared, which
//! exclusively, and which it claims. Within a process the table counts connections ([`Holder`]s). Only the
//! first and the last connection of a lock change the word, and they do it under a mutex. The connections
//! between them take no mutex.
//!
//! **Mutual exclusion.** Announce, then look. A process that wants a lock sets its bit and then reads the
//! words of all others. Every operation is sequentially consistent, so of two processes that exclude each
//! other at least one sees the other. A shared bit or an exclusive bit in the way means *busy*. Of two
//! exclusive claims the one with the lower process slot goes on, and waits until the other is withdrawn. A
//! shared lock waits likewise until a claim is settled. A claim waits for nothing but a claim with a higher
//! slot, so no circle of waiters can arise.
//!
//! **Death.** A process's word is its own. A process that finds the word of a dead process in its way clears
//! that word by a compare-and-exchange. The word has an epoch, and the slot's next process advances it, so
//! the word of a living process is never mistaken for that of the dead one.
//!
//! **Fairness of WRITE.** SQLite answers *busy* by dropping its snapshot and calling the busy handler, which
//! sleeps in the VFS. That sleep is [`Holder::wait_for_write`]. The connection queues, is woken when it is
//! the oldest waiter, and gets the lock *reserved*, so SQLite finds the lock free when it tries again with a
//! fresh snapshot. A connection that does not sleep there has no place in the queue: one whose busy handler
//! does not use the VFS, and one that has read in its transaction, for which SQLite asks no busy handler.
//!
//! Turns are of time, not of transactions: each hand-over costs a wake-up, and empties SQLite's page cache. A
//! turn begins with a reservation and lasts for the time given to [`Table::with_turn`]. During it any running
//! connection may take a free lock although others wait; then the oldest waiter is next, and any other
//! connection is told that WRITE is *busy* even while it is free. A waiter may take a free lock during a turn
//! as well. The exception is a waiter that is known to come back at once: it leaves the lock to the connection
//! that has the turn, as long as that one keeps coming back too.
//!
//! A connection that gives the lock back wakes the oldest waiter, unless the turn is not over and the
//! connection always comes back at once. If it does not come back this time, the oldest waiter's sleep ends
//! with the turn. If it comes back later, it is refused, and wakes the oldest waiter then.
//!
//! A reservation that is not taken up may be taken away after a while. A wake-up that is lost with a dead
//! process costs the sleeper one slice of its sleep. A waiter that is dead or stopped is passed over after a
//! few slices.
//!
//! **Starting the log over** takes CHECKPOINT along with the read marks (invariant 45). SQLite before 3.51.3
//! does not notice if the log starts over between a checkpoint's look at its header and its work. It then
//! writes home frames that it has not got, and counts commits as written home that are not. So no connection
//! starts the log over while another one checkpoints, and none begins to checkpoint meanwhile.
//!
//! **Readers who may not write** the segment are users who may only read the database. Such a reader cannot
//! announce itself in a word. It holds its mark as a lock of a byte of the file, which takes no right to
//! write, and then looks at the processes' words. If a living process holds or claims the mark exclusively,
//! the reader is *busy*. A process that takes marks exclusively announces that in its word, and then asks the
//! kernel for such readers. Asking each time would be a system call in every transaction that moves its own
//! mark. So a process asks only where it matters:
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

#![forbid(unsafe_code)]

mod deaths;
pub mod file;
mod layout;
mod observe;
mod queue;
mod table;
mod wait;

pub use layout::{CHECKPOINT, FIRST_READ, LAYOUT_BYTES, OUTSIDE, SLOTS, WRITE};
pub use observe::{Held, LockActivity, observe};
pub use table::{Holder, LockError, Table, is_start_over};

#[cfg(test)]
mod tests;
