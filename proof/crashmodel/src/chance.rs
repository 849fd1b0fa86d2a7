//! States chosen by chance.

/// Chooses in which of its states a crash leaves each piece. A seed makes the same choices on any machine.
#[derive(Debug)]
pub struct Chance {
    random: fastrand::Rng,
    /// Of eight pieces so many stay as they were durable: how much is lost differs from crash to crash.
    lost: u8,
}

impl Chance {
    /// The choices of one crash.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::drawn(&mut fastrand::Rng::with_seed(seed))
    }

    /// The choices of one crash of many.
    #[must_use]
    pub fn drawn(random: &mut fastrand::Rng) -> Self {
        let mut random = random.fork();
        let lost = random.u8(1..=7);
        Self { random, lost }
    }

    /// A state from 0 to `states - 1`. The extremes are the likeliest, and the likeliest to be wrong.
    pub fn state(&mut self, states: usize) -> usize {
        if self.random.u8(..8) < self.lost {
            0
        } else if self.random.bool() {
            states - 1
        } else {
            self.random.usize(..states)
        }
    }
}
