//! The eight locks of SQLite's wal-index, in memory that the processes of a database share.
//!
//! **State.** There is no global lock state. Each process has one word, which says which locks the process
//! holds shared, which it holds exclusively, and which it claims. Within a process the table counts the
//! connections ([`Holder`]s) that share a lock. Only the first connection that takes the lock, and the last
//! that gives it back, change the word, under a mutex. The other connections take no mutex.
//!
//! **Mutual exclusion.** A process that wants a lock first announces that, by setting its bit, and then looks
//! at the words of all others. Every operation is sequentially consistent, so of two processes that exclude
//! each other at least one sees the other. If another process holds the lock in a way that excludes this one,
//! the lock is *busy*. Of two processes that claim a lock exclusively, the process with the lower slot
//! continues, and waits until the other process has withdrawn its claim. A process that wants the lock shared
//! waits until the claiming process has got the lock or has withdrawn its claim. A process with a claim waits
//! only for processes with a higher slot, so no deadlock can arise. A process that has withdrawn its claim on
//! WRITE waits, without a claim, until the other process has got WRITE or has withdrawn too. Then it tries
//! again: both may have failed because of a third process, and that process may have given WRITE back by
//! then.
//!
//! **Death.** Only a process itself sets bits in its word. A process that finds the word of a dead process in
//! its way clears that word by a compare-and-exchange. The word contains an epoch, which the next process in
//! the slot advances. So the compare-and-exchange fails if a new process has taken over the slot.
//!
//! **Fairness of WRITE.** SQLite handles *busy* by dropping its snapshot and calling the busy handler, which
//! sleeps in the VFS. That sleep is [`Holder::wait_for_write`]. During this sleep the connection is in the
//! queue. When it is the oldest waiter, another connection wakes it, and then the lock is *reserved* for it.
//! So SQLite finds the lock free when it tries again with a new snapshot. Two kinds of connections do not
//! sleep there, and have no place in the queue: those whose busy handler does not use the VFS, and those that
//! have already read in their transaction, for which SQLite calls no busy handler.
//!
//! Turns are measured in time, not in transactions, because each hand-over costs a wake-up and empties
//! SQLite's page cache. A turn begins with a reservation and lasts for the time given to
//! [`Table::with_turn`]. During a turn any running connection may take a free WRITE although others wait.
//! After the turn the oldest waiter is next, so any other connection gets *busy* for WRITE, even if WRITE is
//! free. A waiter may also take a free WRITE during a turn, with one exception. Some connections are known to
//! ask for WRITE again at once, each time that they have given it back. If the waiter and the connection
//! whose turn it is are both of this kind, the waiter leaves WRITE to that connection.
//!
//! A connection that gives WRITE back wakes the oldest waiter, with one exception: within its turn, a
//! connection that is known to ask for WRITE again at once wakes nobody. If it then does not ask again, the
//! oldest waiter's sleep ends with the turn. If it asks after its turn, it gets *busy*, and wakes the oldest
//! waiter at that moment.
//!
//! If a connection does not take up its reservation in time, other connections may take the reservation away.
//! If a process dies before it wakes a sleeper, the sleeper notices that after one slice of its sleep. If a
//! waiter is dead or stopped, the others pass over it after a few slices.
//!
//! **Starting the log over** takes CHECKPOINT together with the read marks (invariant 45). In a checkpoint,
//! SQLite before 3.51.3 reads the header and then does its work, and does not notice if the log starts over
//! in between. Such a checkpoint writes frames to the database file that the log no longer has. It also
//! records newer commits as checkpointed although it has not written them to the database file. So no
//! connection starts the log over while another connection checkpoints, and no connection begins to
//! checkpoint while the log starts over.
//!
//! **Readers who may not write** the segment are users who may only read the database. Such a reader cannot
//! announce itself in a word. Instead it holds its mark as a lock on a byte of the file, which requires no
//! right to write, and then looks at the processes' words. If a living process holds or claims the mark
//! exclusively, the reader is *busy*. A process that takes marks exclusively announces that in its word, and
//! may then ask the kernel whether such readers hold the marks. If the process asked each time, every
//! transaction that sets its read mark to a newer frame would cost a system call. So a process asks only in
//! three cases:
//!
//! 1. It takes *several marks at once*, because then the log is about to start over, and readers may be
//!    reading its frames.
//! 2. It takes *a mark while any process holds CHECKPOINT*, itself included, because a checkpoint relies on
//!    the marks.
//! 3. It takes *CHECKPOINT itself*, which is refused while such a reader holds any mark.
//!
//! So a process may move the mark of such a reader while no connection checkpoints. At such a time nothing
//! depends on the mark, and a connection that wants to checkpoint later finds the reader by rule 3. While a
//! checkpoint runs, no process moves the mark of such a reader. Proof: assume that the reader found no
//! process at the mark when it looked. A process that claims the mark after that either sees CHECKPOINT, and
//! finds the reader by rule 2, or it does not see CHECKPOINT. In that case the checkpointer announced
//! CHECKPOINT later still, and found the reader by rule 3. If the mark was moved before the reader looked,
//! the mark has another value than the reader expects, and SQLite compares the values once it has the lock.
//!
//! Each side, the process and the reader, announces itself first and then looks, with a barrier in between;
//! [`Segment::has_outside_readers`] and [`Segment::hold_mark`] contain the barrier. Recovery of the wal-index
//! takes CHECKPOINT together with RECOVER, but need not wait for such readers. It writes nothing to the
//! database, and changes no mark that rule 2 finds taken.
//!
//! This has a price: a reader of this kind that reads for long prevents all checkpoints, whereas any other
//! reader only keeps checkpoints from going beyond the frames that it reads.
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
