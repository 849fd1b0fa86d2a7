//! Measures how long a thread waits for its turn. All threads stand in a ring, and each only passes the turn
//! on to the next.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The time for which a lock holder may continue while others wait.
pub(super) const TURN: Duration = Duration::from_micros(300);

struct Ring {
    whose: AtomicUsize,
    over: AtomicBool,
    threads: OnceLock<Vec<Thread>>,
}

/// Returns the longest time that one of `count` threads waited between the end of its turn and the start of
/// its next.
pub(super) fn longest_wait(count: usize, time: Duration) -> Duration {
    let ring =
        Ring { whose: AtomicUsize::new(count), over: AtomicBool::new(false), threads: OnceLock::new() };
    thread::scope(|scope| {
        let ring = &ring;
        let workers: Vec<_> = (0..count).map(|own| scope.spawn(move || ring.take_turns(own))).collect();
        let threads = ring.threads.get_or_init(|| workers.iter().map(|one| one.thread().clone()).collect());
        ring.pass_to(0);
        thread::sleep(time);
        ring.over.store(true, Ordering::Release);
        threads.iter().for_each(Thread::unpark);
        workers.into_iter().map(|worker| worker.join().unwrap_or_default()).max().unwrap_or_default()
    })
}

impl Ring {
    fn pass_to(&self, next: usize) {
        self.whose.store(next, Ordering::Release);
        if let Some(thread) = self.threads.get().and_then(|threads| threads.get(next)) {
            thread.unpark();
        }
    }

    fn take_turns(&self, own: usize) -> Duration {
        let mut longest = Duration::ZERO;
        let mut since = None;
        loop {
            while self.whose.load(Ordering::Acquire) != own && !self.over.load(Ordering::Acquire) {
                thread::park();
            }
            if self.over.load(Ordering::Acquire) {
                return longest;
            }
            let began = Instant::now();
            longest = longest.max(since.map_or(Duration::ZERO, |since| began - since));
            while began.elapsed() < TURN {
                spin_loop();
            }
            since = Some(Instant::now());
            let count = self.threads.get().map_or(1, Vec::len);
            self.pass_to((own + 1) % count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_a_turn_waits_for_those_of_the_others() {
        let waited = longest_wait(4, TURN * 40);
        assert!(waited >= TURN * 3, "{waited:?}");
    }
}
