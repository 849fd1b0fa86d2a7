//! How long this VFS waits on its own, beyond what the application's busy handler asks for.
//!
//! Opening and closing a log takes the database alone for some milliseconds, where stock SQLite takes it for
//! none. Other connections wait that long, as for a mutex, and no longer, so a busy timeout keeps its
//! meaning. Waits are counted over all tries of a connection until one succeeds. Time in which this process
//! stands still (stopped, or without a processor) does not count as waiting: no other connection gained from
//! it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait in all, until something succeeds.
const LIMIT: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);
/// A sleep counts for at most this many times its intended length.
const OVERSLEPT: u32 = 4;

/// The patience of one connection.
#[derive(Default)]
pub struct Patience {
    waited_us: AtomicU64,
}

impl Patience {
    /// Sleeps before try number `tries`, counted from 0. `false` when there is no patience left.
    pub fn pause(&self, tries: u32) -> bool {
        self.sleep(FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST))
    }

    /// Sleeps for `pause`. `false` when there is no patience left.
    pub fn sleep(&self, pause: Duration) -> bool {
        let left = self.left();
        if left.is_zero() {
            return false;
        }
        let (start, pause) = (Instant::now(), pause.min(left));
        std::thread::sleep(pause);
        self.slept(pause, start.elapsed());
        true
    }

    fn slept(&self, pause: Duration, took: Duration) {
        self.spend(took.min(pause * OVERSLEPT));
    }

    /// The patience that is left.
    pub fn left(&self) -> Duration {
        LIMIT.saturating_sub(Duration::from_micros(self.waited_us.load(Ordering::Relaxed)))
    }

    /// Counts time that was waited in another way.
    pub fn spend(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    /// A try has succeeded: counts from 0 again.
    pub fn renew(&self) {
        self.waited_us.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_and_is_renewed() {
        let patience = Patience::default();
        patience.spend(LIMIT - FIRST);
        assert!(patience.pause(3));
        assert!(!patience.pause(0));
        patience.renew();
        assert!(patience.pause(0));
    }

    #[test]
    fn it_outlasts_a_process_that_is_stopped_in_it() {
        let patience = Patience::default();
        patience.slept(LONGEST, Duration::from_secs(60));
        assert_eq!(patience.left(), LIMIT - LONGEST * OVERSLEPT);
        patience.slept(LONGEST, LONGEST);
        assert_eq!(patience.left(), LIMIT - LONGEST * (OVERSLEPT + 1));
    }
}
