//! How many connections of this process share each lock. As long as one does, the process has that lock in
//! the segment.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::SLOTS;

/// The counts. A count leaves 0 and returns to 0 under the table's mutex. In between it changes without the
/// mutex, so threads that read the same snapshot do not wait for one another.
#[derive(Default)]
pub(crate) struct Shares([Count; SLOTS]);

/// A count on a cache line of its own, since other locks are taken at the same time.
#[derive(Default)]
#[repr(align(64))]
struct Count(AtomicU32);

impl Shares {
    /// Whether any connection shares a lock. Under the mutex a count of 0 stays 0.
    pub(crate) fn any(&self, slot: usize) -> bool {
        self.0[slot].0.load(Ordering::Acquire) > 0
    }

    /// Counts one more connection beside others; `false` where there are no others.
    pub(crate) fn join(&self, slot: usize) -> bool {
        let more = |count: u32| if count > 0 { count.checked_add(1) } else { None };
        self.0[slot].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Counts one connection less beside others; `false` for the last one.
    pub(crate) fn leave(&self, slot: usize) -> bool {
        let less = |count: u32| if count > 1 { Some(count - 1) } else { None };
        self.0[slot].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// Counts the first connection, under the mutex, once the process has the lock in the segment.
    pub(crate) fn begin(&self, slot: usize) {
        self.0[slot].0.store(1, Ordering::Release);
    }

    /// Counts the last connection out, under the mutex, before the process gives the lock in the segment
    /// back. Returns `false` if another connection has joined meanwhile and stays, or if there was none.
    pub(crate) fn end(&self, slot: usize) -> bool {
        while self.any(slot) {
            if self.leave(slot) {
                return false;
            }
            if self.0[slot].0.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_are_told_apart_from_those_between() {
        let shares = Shares::default();
        assert!(!shares.join(3) && !shares.any(3));
        shares.begin(3);
        assert!(shares.any(3) && !shares.any(2));
        assert!(shares.join(3));
        assert!(shares.leave(3));
        assert!(!shares.leave(3), "the last one leaves under the mutex");
        assert!(shares.end(3));
        assert!(!shares.any(3) && !shares.end(3) && !shares.leave(3));
    }

    #[test]
    fn one_who_joins_the_last_keeps_the_lock() {
        let shares = Shares::default();
        shares.begin(0);
        assert!(!shares.leave(0));
        assert!(shares.join(0), "before the last one has the mutex");
        assert!(!shares.end(0));
        assert!(shares.any(0));
        assert!(shares.end(0));
    }
}
