//! How long this VFS waits on its own, beyond what the application's busy handler asks for.
//!
//! Opening and closing a log takes the database alone for some milliseconds, where stock SQLite takes it for
//! none. Others wait that long, as for a mutex, and no longer: a busy timeout keeps its meaning. What is waited is
//! counted over all tries of a connection until one succeeds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// In all, until something succeeds.
const LIMIT: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);

/// Of one connection.
#[derive(Default)]
pub struct Patience {
    waited_us: AtomicU64,
    /// Whether somebody was in the way of attaching the log, so that it is still to be waited for.
    refused: AtomicBool,
}

impl Patience {
    /// Sleeps before try number `tries`, counted from 0; `false` when there is no patience left.
    pub fn pause(&self, tries: u32) -> bool {
        let left = self.left();
        if left.is_zero() {
            return false;
        }
        let pause = FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST).min(left);
        let start = std::time::Instant::now();
        std::thread::sleep(pause);
        self.spend(start.elapsed());
        true
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        LIMIT.saturating_sub(Duration::from_micros(self.waited_us.load(Ordering::Relaxed)))
    }

    /// Counts time that was waited otherwise.
    pub fn spend(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    /// What was waited for has come.
    pub fn renew(&self) {
        self.refused.store(false, Ordering::Relaxed);
        self.waited_us.store(0, Ordering::Relaxed);
    }

    /// The log could not be attached: that SHARED comes, with which every try begins, is not what is waited for.
    pub fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// SHARED has come.
    pub fn renew_at_shared(&self) {
        if !self.refused.load(Ordering::Relaxed) {
            self.renew();
        }
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
    fn it_lasts_over_all_tries_to_attach_a_log() {
        let patience = Patience::default();
        patience.spend(LIMIT);
        patience.refuse();
        patience.renew_at_shared();
        assert!(!patience.pause(0), "the next try waits as long again");
        patience.renew();
        patience.spend(LIMIT);
        patience.renew_at_shared();
        assert!(patience.pause(0));
    }
}
