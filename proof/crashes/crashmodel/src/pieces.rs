//! Cuts a range into aligned pieces: words, cache lines, sectors or pages.

/// Cuts the range of `len` bytes at `at` along multiples of `unit` bytes. Each item is one part of the range:
/// its offset, counted from the same origin as `at`, and its length in bytes.
pub fn pieces(at: u64, len: usize, unit: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = at + len as u64;
    let mut next = at;
    std::iter::from_fn(move || {
        (next < end).then(|| {
            let room = unit as u64 - next % unit as u64;
            let piece = (next, room.min(end - next) as usize);
            next += piece.1 as u64;
            piece
        })
    })
}

/// Returns the `N` bytes of `from` that begin at `at`, padded with zeros past the end of `from`.
pub(crate) fn whole<const N: usize>(from: &[u8], at: u64) -> [u8; N] {
    let mut out = [0; N];
    let from = from.get(at as usize..).unwrap_or_default();
    let len = from.len().min(N);
    out[..len].copy_from_slice(&from[..len]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_cover_the_range() {
        assert_eq!(pieces(100, 1000, 512).collect::<Vec<_>>(), [(100, 412), (512, 512), (1024, 76)]);
        assert_eq!(pieces(8, 8, 8).collect::<Vec<_>>(), [(8, 8)]);
        assert_eq!(pieces(5, 0, 8).count(), 0);
    }

    #[test]
    fn what_lies_beyond_the_end_is_zeros() {
        assert_eq!(whole::<4>(&[1, 2, 3], 1), [2, 3, 0, 0]);
        assert_eq!(whole::<4>(&[1, 2, 3], 9), [0; 4]);
    }
}
