//! The write-pending queue of an emulated memory.

use std::collections::VecDeque;

/// The lines that were written back and have not reached the memory yet. All times are readings of one clock,
/// in its own unit.
///
/// The memory works on all lines of the queue at once, and each line reaches the memory a fixed time after it
/// has entered the queue. A line that finds the queue full enters it when the oldest line leaves.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    /// The times at which the lines reach the memory, in the order in which the lines entered.
    arrivals: VecDeque<u64>,
}

impl WriteQueue {
    /// Puts lines into a queue that has room for `depth` lines. Each line reaches the memory `service` after
    /// it has entered the queue. Returns the time from `now` until the last of these lines can enter the
    /// queue.
    pub(crate) fn put(&mut self, now: u64, lines: u64, service: u64, depth: u32) -> u64 {
        let room = depth.max(1) as usize;
        let mut entered = now;
        for _ in 0..lines {
            while let Some(&oldest) = self.arrivals.front()
                && (oldest <= entered || self.arrivals.len() >= room)
            {
                entered = entered.max(oldest);
                self.arrivals.pop_front();
            }
            // Lines leave in the order in which they entered, even if a later line needs less time.
            let newest = self.arrivals.back().copied().unwrap_or(0);
            self.arrivals.push_back(entered.saturating_add(service).max(newest));
        }
        entered - now
    }

    /// Returns how long from `now` it takes until the queue is empty.
    pub(crate) fn time_to_drain(&self, now: u64) -> u64 {
        self.arrivals.back().map_or(0, |newest| newest.saturating_sub(now))
    }

    /// Returns the number of lines in the queue. A line that has left the queue still counts until
    /// [`Self::put`] removes it.
    #[cfg(test)]
    pub(crate) fn lines(&self) -> usize {
        self.arrivals.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: u64 = 100;

    /// Returns how long the thread that writes back these lines has to wait, and how long a fence after that
    /// has to wait.
    fn whole(lines: u64, depth: u32) -> (u64, u64) {
        let mut queue = WriteQueue::default();
        let waited = queue.put(1000, lines, SERVICE, depth);
        (waited, queue.time_to_drain(1000 + waited))
    }

    #[test]
    fn lines_wait_only_for_room_and_the_fence_for_what_is_left() {
        assert_eq!(whole(0, 4), (0, 0));
        assert_eq!(whole(1, 4), (0, SERVICE));
        assert_eq!(whole(4, 4), (0, SERVICE));
        assert_eq!(whole(5, 4), (SERVICE, SERVICE));
        assert_eq!(whole(10, 4), (2 * SERVICE, SERVICE));
        assert_eq!(whole(10, 64), (0, SERVICE));
        // If there is room for one line only, each line waits for the line before it, and the fence waits for
        // the last.
        assert_eq!(whole(10, 1), (9 * SERVICE, SERVICE));
    }

    #[test]
    fn work_between_the_write_back_and_the_fence_hides_the_latency() {
        let mut queue = WriteQueue::default();
        assert_eq!(queue.put(0, 2, SERVICE, 2), 0);
        assert_eq!((queue.time_to_drain(30), queue.time_to_drain(100)), (70, 0));
        // Both lines leave at 100. So of these three lines the first two enter at once, and the third waits
        // until 250.
        assert_eq!(queue.put(150, 3, SERVICE, 2), 100);
        assert_eq!((queue.lines(), queue.time_to_drain(250)), (1, 100));
    }

    #[test]
    fn a_queue_that_became_shorter_takes_a_line_when_it_has_room() {
        let mut queue = WriteQueue::default();
        assert_eq!(queue.put(0, 1, SERVICE, 4), 0);
        assert_eq!(queue.put(10, 1, SERVICE, 4), 0);
        assert_eq!(queue.put(20, 1, SERVICE, 1), 90);
        assert_eq!(queue.time_to_drain(110), SERVICE);
    }

    #[test]
    fn no_line_overtakes_another() {
        let mut queue = WriteQueue::default();
        assert_eq!(queue.put(0, 1, SERVICE, 4), 0);
        assert_eq!(queue.put(0, 1, 1, 4), 0);
        assert_eq!(queue.time_to_drain(0), SERVICE);
        assert_eq!(queue.put(50, 3, 1, 4), 50);
    }
}
