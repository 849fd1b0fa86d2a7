//! How many connections of this process share each lock. The process has a lock in the segment as long as one does.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::SLOTS;

/// The counts. From 0 and to 0 they go under the table's mutex; between, without it: threads that read the same
/// snapshot do not wait for one another.
#[derive(Default)]
pub(crate) struct Shares([Count; SLOTS]);

/// On a cache line of its own: other locks are taken meanwhile.
#[derive(Default)]
#[repr(align(64))]
struct Count(AtomicU32);

impl Shares {
    /// Whether anybody shares a lock. Under the mutex it stays as it is, if nobody does.
    pub(crate) fn any(&self, slot: usize) -> bool {
        self.0[slot].0.load(Ordering::Acquire) > 0
    }

    /// One more, beside those that there are; `false` where there are none.
    pub(crate) fn join(&self, slot: usize) -> bool {
        let more = |count: u32| if count > 0 { count.checked_add(1) } else { None };
        self.0[slot].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// One less, beside others; `false` for the last one.
    pub(crate) fn leave(&self, slot: usize) -> bool {
        let less = |count: u32| if count > 1 { Some(count - 1) } else { None };
        self.0[slot].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// The first one, under the mutex, once the process has the lock in the segment.
    pub(crate) fn begin(&self, slot: usize) {
        self.0[slot].0.store(1, Ordering::Release);
    }

    /// The last one, under the mutex, before the process gives the lock in the segment back. `false` if another one
    /// has joined meanwhile, who stays, or there was none.
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
