//! Draws random numbers that a seed reproduces.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A xorshift64* generator, which draws the same numbers on any machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns a generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Mix the seed, because small seeds would otherwise yield small first numbers.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// Returns a random number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Returns true in one of `one_in` calls on average.
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// Returns one of `choices`.
    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}

/// Runs `case` with the seeds 1 to `count`, or only with the seed in `DURALITE_SEED`. A failure names its
/// seed.
pub fn for_seeds(count: u64, case: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("DURALITE_SEED") {
        return case(seed.parse().unwrap());
    }
    for seed in 1..=count {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(seed))) {
            eprintln!("failed with DURALITE_SEED={seed}");
            resume_unwind(panic);
        }
    }
}
