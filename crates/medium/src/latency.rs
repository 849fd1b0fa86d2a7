//! Added latency: how much slower an emulated medium is than the memory that emulates it.
#![allow(unsafe_code)] // the time stamp counter is read with an intrinsic

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Nanoseconds added to the time that the memory itself takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Latency {
    /// The time added for each line that is written back (paper, section 5.1), in nanoseconds.
    pub write_ns: u32,
    /// The time added for each persist barrier, in nanoseconds.
    pub fence_ns: u32,
    /// The time added for each line that a read touches, in nanoseconds.
    pub read_ns: u32,
    /// The time added for each line of a non-temporal store, in nanoseconds. If it is `None`, `write_ns`
    /// applies.
    pub stream_ns: Option<u32>,
    /// How many lines fit into the write-pending queue of the emulated memory. The memory works on all lines
    /// in the queue at once, and each line takes its own latency. A thread waits for a line only while the
    /// queue is full, and a fence waits until the queue is empty. With 0 there is no queue, and the thread
    /// waits for the latency of each line.
    pub queue_lines: u32,
}

impl Latency {
    /// Returns the latency added for a line of a non-temporal store, in nanoseconds.
    #[must_use]
    pub fn per_streamed_line(&self) -> u32 {
        self.stream_ns.unwrap_or(self.write_ns)
    }

    /// Returns whether all added times are 0. The length of the queue does not matter for that.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        Self { queue_lines: 0, ..*self } == Self::default()
    }
}

/// A latency that can be changed while it is in use.
#[derive(Debug, Default)]
pub(crate) struct LatencyCell {
    write_ns: AtomicU32,
    fence_ns: AtomicU32,
    read_ns: AtomicU32,
    /// The latency of a line of a non-temporal store in nanoseconds, plus 1; 0 stands for `None`.
    stream_ns: AtomicU64,
    queue_lines: AtomicU32,
}

impl LatencyCell {
    pub(crate) fn set(&self, latency: Latency) {
        self.write_ns.store(latency.write_ns, Ordering::Relaxed);
        self.fence_ns.store(latency.fence_ns, Ordering::Relaxed);
        self.read_ns.store(latency.read_ns, Ordering::Relaxed);
        let stream_ns = latency.stream_ns.map_or(0, |ns| u64::from(ns) + 1);
        self.stream_ns.store(stream_ns, Ordering::Relaxed);
        self.queue_lines.store(latency.queue_lines, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Latency {
        Latency {
            write_ns: self.write_ns.load(Ordering::Relaxed),
            fence_ns: self.fence_ns.load(Ordering::Relaxed),
            read_ns: self.read_ns.load(Ordering::Relaxed),
            stream_ns: self
                .stream_ns
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .and_then(|ns| u32::try_from(ns).ok()),
            queue_lines: self.queue_lines.load(Ordering::Relaxed),
        }
    }
}

/// The number of bits after the binary point in the stored ticks per nanosecond.
const FRACTION_BITS: u32 = 24;

/// The number of ticks of the time stamp counter per nanosecond, with [`FRACTION_BITS`] bits after the binary
/// point. 0 if there is no reliable counter.
static TICKS_PER_NS: OnceLock<u64> = OnceLock::new();

fn ticks_per_ns() -> u64 {
    *TICKS_PER_NS.get_or_init(calibrate)
}

/// Calibrates the clock now. Otherwise the first wait would do that, and take longer than later waits.
pub(crate) fn calibrate_clock() {
    ticks_per_ns();
}

/// Returns the time by the clock that this module uses for its waits. This clock is the time stamp counter,
/// or the system's clock in nanoseconds if the machine has no reliable counter.
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();

    if ticks_per_ns() != 0 {
        return ticks();
    }
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Converts nanoseconds to the unit of [`now`].
pub(crate) fn ticks_of(ns: u64) -> u64 {
    match ticks_per_ns() {
        0 => ns,
        rate => u64::try_from((u128::from(ns) * u128::from(rate)) >> FRACTION_BITS).unwrap_or(u64::MAX),
    }
}

/// Waits for at least `ns` nanoseconds without yielding the processor.
pub(crate) fn spin(ns: u64) {
    if ns != 0 {
        spin_from(now(), ticks_of(ns));
    }
}

/// Waits until more than `wait` has passed since `start`, without yielding the processor. Both values are in
/// the unit of [`now`].
pub(crate) fn spin_from(start: u64, wait: u64) {
    if ticks_per_ns() == 0 {
        while now().wrapping_sub(start) <= wait {}
        return;
    }
    // Spin without a pause instruction, because one pause instruction takes longer than many of these waits.
    while ticks().wrapping_sub(start) <= wait {}
}

#[cfg(target_arch = "x86_64")]
fn calibrate() -> u64 {
    use std::arch::x86_64::__cpuid;
    use std::time::Duration;

    // The counter is usable as a clock only if it runs at the same rate in every power state.
    const INVARIANT: u32 = 1 << 8;
    let known = __cpuid(0x8000_0000).eax;
    if known < 0x8000_0007 || __cpuid(0x8000_0007).edx & INVARIANT == 0 {
        return 0;
    }
    // Use the median of several rounds, because a round is wrong if the thread is preempted between reading
    // the two clocks.
    let mut rates = [0u64; 5];
    for rate in &mut rates {
        let (clock, first) = (Instant::now(), ticks());
        while clock.elapsed() < Duration::from_millis(1) {}
        let (elapsed, last) = (clock.elapsed(), ticks());
        let ticks = u128::from(last.wrapping_sub(first)) << FRACTION_BITS;
        *rate = u64::try_from(ticks / elapsed.as_nanos().max(1)).unwrap_or(0);
    }
    rates.sort_unstable();
    rates[rates.len() / 2]
}

#[cfg(not(target_arch = "x86_64"))]
fn calibrate() -> u64 {
    0
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn waits_are_not_shorter_than_asked() {
        calibrate_clock();
        // The test compares two clocks, so allow half a percent for the calibration.
        for ns in [1_000u64, 10_000, 1_000_000] {
            let start = Instant::now();
            spin(ns);
            let took = start.elapsed();
            assert!(took >= Duration::from_nanos(ns - ns / 200), "{ns}: {took:?}");
        }
        let start = Instant::now();
        for _ in 0..10_000 {
            spin(100);
        }
        assert!(start.elapsed() >= Duration::from_micros(995));
    }

    #[test]
    fn cell_holds_what_was_set() {
        let cell = LatencyCell::default();
        assert!(cell.get().is_zero());
        for stream_ns in [None, Some(0), Some(u32::MAX)] {
            let latency = Latency { write_ns: 1, fence_ns: 2, read_ns: 3, stream_ns, queue_lines: 4 };
            cell.set(latency);
            assert_eq!(cell.get(), latency);
            assert!(!latency.is_zero());
            assert_eq!(latency.per_streamed_line(), stream_ns.unwrap_or(1));
        }
        assert!(Latency { queue_lines: 4, ..Latency::default() }.is_zero());
    }
}
