//! Numbers of generations: 64 bits, of which many fields hold the low ones only.
//!
//! A log starts over some thousand times a second at most, so 60 bits do not run out. Fields of
//! fewer bits hold the low ones; what is above them goes into the seeds of the checksums, where it
//! changes nothing as long as it is 0.

/// Generations stay below this: it only keeps arithmetic on damaged numbers from wrapping.
pub const GENERATION_LIMIT: u64 = 1 << 60;

/// What the part of a generation above its low `bits` adds to a seed: 0 while there is none.
pub(crate) fn above(generation: u64, bits: u32) -> u64 {
    (generation >> bits).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Low and high half, as they are stored.
pub(crate) fn halves(generation: u64) -> [u32; 2] {
    [generation as u32, (generation >> 32) as u32]
}

/// The number of two halves.
pub(crate) fn of_halves(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_make_the_number_and_only_what_is_above_matters() {
        for generation in [1, u64::from(u32::MAX), 1 << 32, (1 << 45) + 7] {
            let [low, high] = halves(generation);
            assert_eq!(of_halves(low, high), generation);
        }
        assert_eq!(above((1 << 29) - 1, 29), 0);
        assert_ne!(above(1 << 29, 29), 0);
        assert_ne!(above(1 << 29, 29), above(2 << 29, 29));
    }
}
