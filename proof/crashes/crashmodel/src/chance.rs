//! Chooses states of pieces at random.

/// Chooses what a crash leaves of each sector, cache line or other piece in doubt. The same seed makes the
/// same choices on any machine.
#[derive(Debug)]
pub struct Chance {
    random: fastrand::Rng,
    /// On average, this many pieces out of eight keep their durable content, so their newer content is lost.
    /// The number is drawn anew for each crash.
    lost: u8,
}

impl Chance {
    /// Returns the choices of one crash.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::drawn(&mut fastrand::Rng::with_seed(seed))
    }

    /// Returns a chooser for one crash. Many crashes can draw from the same generator `random`.
    #[must_use]
    pub fn drawn(random: &mut fastrand::Rng) -> Self {
        let mut random = random.fork();
        let lost = random.u8(1..=7);
        Self { random, lost }
    }

    /// Returns a state from 0 to `states - 1`. Chooses the first and the last state most often, because they
    /// are the likeliest to show a bug.
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
