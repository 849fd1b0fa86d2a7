//! Row locks, shared or exclusive. Threads queue for them, and hold them until the object of the transaction's commit
//! has a number.

use std::collections::VecDeque;

use super::stations::Time;

/// The number of parts of the lock table. A thread may release a lock before its commit is durable. If another thread
/// then takes a lock in the same part, the commit of that thread depends on the earlier commit.
const PARTS: usize = 16;

/// The answer to a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The thread has the lock. It may have seen changes of commits that are not durable yet, up to the commit with
    /// this number.
    Granted(u64),
    Waits,
    /// If the thread waited, there would be a deadlock. So the thread must give way.
    Circle,
}

/// The locks that a thread holds, the lock for which it waits, and the time at which the wait began.
#[derive(Debug, Default)]
struct Owner {
    has: Vec<usize>,
    wants: Option<usize>,
    since: Time,
}

#[derive(Debug, Default)]
struct Row {
    readers: Vec<usize>,
    writer: Option<usize>,
    waiting: VecDeque<(usize, bool)>,
}

/// The locks of all rows.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Vec<Row>,
    owners: Vec<Owner>,
    early: [u64; PARTS],
    /// The number of times that a thread waited for a row, and the sum of these waiting times.
    pub(super) waits: u64,
    pub(super) waited: Time,
}

impl Rows {
    pub(super) fn new(rows: usize, threads: usize) -> Self {
        Self {
            rows: (0..rows).map(|_| Row::default()).collect(),
            owners: (0..threads).map(|_| Owner::default()).collect(),
            early: [0; PARTS],
            waits: 0,
            waited: 0,
        }
    }

    /// Requests the lock of a row for a thread. Also returns a thread to wake, if there is one.
    pub(super) fn ask(
        &mut self,
        thread: usize,
        row: usize,
        changes: bool,
        now: Time,
    ) -> (Asked, Option<usize>) {
        let (it, owner) = (&mut self.rows[row], &mut self.owners[thread]);
        let reads = it.readers.contains(&thread);
        let is_held = it.writer == Some(thread) || (!changes && reads);
        let others = it.writer.is_some_and(|writer| writer != thread)
            || (changes && it.readers.iter().any(|reader| *reader != thread));
        let is_first = it.waiting.front().is_none_or(|(first, _)| *first == thread);
        if !is_held && (others || !(is_first || reads)) {
            if owner.wants.is_none() {
                self.waits += 1;
                (owner.wants, owner.since) = (Some(row), now);
                it.waiting.push_back((thread, changes));
                if self.is_circle(thread) {
                    return (Asked::Circle, None);
                }
            }
            return (Asked::Waits, None);
        }
        if owner.wants.take().is_some() {
            self.waited += now - owner.since;
            it.waiting.retain(|(waiting, _)| *waiting != thread);
        }
        if !is_held {
            if changes {
                it.writer = Some(thread)
            } else {
                it.readers.push(thread)
            }
            owner.has.push(row);
        }
        // Readers share the row, so the next reader in the queue is woken too.
        let next = it.waiting.front().filter(|(_, changes)| !changes && it.writer.is_none());
        (Asked::Granted(self.early[row % PARTS]), next.map(|(next, _)| *next))
    }

    /// Returns whether the thread is in a circle of threads that wait for each other.
    fn is_circle(&self, thread: usize) -> bool {
        let mut seen = vec![false; self.owners.len()];
        let mut look = vec![thread];
        while let Some(at) = look.pop() {
            let Some(row) = self.owners[at].wants else { continue };
            let row = &self.rows[row];
            let ahead = row.waiting.iter().map(|(waiting, _)| *waiting).take_while(|waiting| *waiting != at);
            for other in row.readers.iter().copied().chain(row.writer).chain(ahead) {
                if other == thread && at != thread {
                    return true;
                }
                if other != at && !std::mem::replace(&mut seen[other], true) {
                    look.push(other);
                }
            }
        }
        false
    }

    /// Releases all locks of a thread, and withdraws its open request, if it has one. `early` is the number of the
    /// thread's commit, or 0 if it has not committed. Returns the threads to wake.
    pub(super) fn release(&mut self, thread: usize, early: u64) -> Vec<usize> {
        let owner = &mut self.owners[thread];
        let has = std::mem::take(&mut owner.has);
        let wants = owner.wants.take();
        let mut woken = Vec::new();
        for row in has.into_iter().chain(wants) {
            let part = &mut self.early[row % PARTS];
            *part = early.max(*part);
            let it = &mut self.rows[row];
            it.readers.retain(|reader| *reader != thread);
            it.writer = it.writer.filter(|writer| *writer != thread);
            it.waiting.retain(|(waiting, _)| *waiting != thread);
            woken.extend(it.waiting.front().map(|(first, _)| *first));
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_by_readers_and_given_in_line() {
        let mut rows = Rows::new(1, 4);
        assert_eq!(rows.ask(0, 0, false, 0), (Asked::Granted(0), None));
        assert_eq!(rows.ask(1, 0, false, 0), (Asked::Granted(0), None));
        assert_eq!(rows.ask(2, 0, true, 0).0, Asked::Waits);
        // A later reader has to queue too, although it could share the lock with its present holders.
        assert_eq!(rows.ask(3, 0, false, 0).0, Asked::Waits);
        assert_eq!(rows.release(0, 5), [2]);
        assert_eq!(rows.ask(2, 0, true, 1).0, Asked::Waits);
        assert_eq!(rows.release(1, 6), [2]);
        assert_eq!(rows.ask(2, 0, true, 7).0, Asked::Granted(6));
        assert_eq!(rows.release(2, 8), [3]);
        assert_eq!(rows.ask(3, 0, false, 9), (Asked::Granted(8), None));
        assert_eq!((rows.waits, rows.waited), (2, 16));
    }

    #[test]
    fn a_reader_that_is_alone_may_change() {
        let mut rows = Rows::new(1, 2);
        rows.ask(0, 0, false, 0);
        assert_eq!(rows.ask(0, 0, true, 0).0, Asked::Granted(0));
        assert_eq!(rows.ask(1, 0, false, 0).0, Asked::Waits);
    }

    #[test]
    fn a_circle_is_seen_by_whoever_closes_it() {
        let mut rows = Rows::new(2, 2);
        rows.ask(0, 0, true, 0);
        rows.ask(1, 1, true, 0);
        assert_eq!(rows.ask(0, 1, true, 0).0, Asked::Waits);
        assert_eq!(rows.ask(1, 0, true, 0).0, Asked::Circle);
        assert_eq!(rows.release(1, 0), [0]);
        assert_eq!(rows.ask(0, 1, true, 0).0, Asked::Granted(0));
    }
}
