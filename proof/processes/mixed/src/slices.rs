//! Divides a round into time slices. In some slices one of the two sides mostly stays away. The other side
//! then has the databases almost to itself until the slice ends. So Duralite sets and removes the guard
//! several times in a round.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Plan, Side};

/// Returns the time in nanoseconds, by a clock that is the same for all processes.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0)).as_nanos() as u64
}

/// The time slices of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slices {
    seed: u64,
    start_ns: u64,
    length_ns: u64,
    end_ns: u64,
}

impl Slices {
    pub(crate) fn new(plan: &Plan, start_ns: u64) -> Self {
        let ms = 1_000_000;
        let length_ns = plan.slice_ms.max(1) * ms;
        Self { seed: plan.seed, start_ns, length_ns, end_ns: start_ns + plan.millis * ms }
    }

    pub(crate) fn is_over(self) -> bool {
        now_ns() >= self.end_ns
    }

    /// Returns whether a side should use the databases in the present slice.
    pub(crate) fn welcomes(self, side: Side) -> bool {
        let slice = now_ns().saturating_sub(self.start_ns) / self.length_ns;
        match fastrand::Rng::with_seed(self.seed.wrapping_add(slice.wrapping_mul(0x9e37_79b9))).u32(..5) {
            0 => side == Side::Stock,
            1 => side == Side::Ours,
            _ => true,
        }
    }
}
