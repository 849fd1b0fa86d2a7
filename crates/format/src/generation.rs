//! Generation numbers. They have 64 bits, but many fields store only the low bits.
//!
//! A log starts over a few thousand times a second at most, so 60 bits do not run out. Where a field stores only the
//! low bits, the high bits go into the seed of the checksum. While the high bits are 0 they do not change the seed.

/// Generations are below this number. The bound only keeps arithmetic on damaged numbers from overflowing.
pub const GENERATION_LIMIT: u64 = 1 << 60;

/// What the bits of a generation above its low `bits` contribute to a seed. The contribution is 0 if those bits are 0.
pub(crate) fn above(generation: u64, bits: u32) -> u64 {
    (generation >> bits).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The low and the high half of a generation, as they are stored.
pub(crate) fn halves(generation: u64) -> [u32; 2] {
    [generation as u32, (generation >> 32) as u32]
}

/// The generation that these two halves make.
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
