//! Encodes and applies the differences between two images of a page, byte by byte (NVWAL, section 3.2). The encoding
//! consists of ranges of bytes. Two differences that are close together are stored in one range if two ranges would not
//! take fewer bytes.
//!
//! The encoding of each range is `offset u16, length-1 u16, bytes`. Ranges are ascending and disjoint.

use crate::FormatError;
use crate::bytes::u16_le;

/// Size in bytes of a range's header, which precedes the range's data. If at most this many equal bytes lie between two
/// differences, one range stores both differences and the equal bytes, because a second header would take at least as
/// much space.
pub const RANGE_HEADER_BYTES: usize = 4;

/// Appends to `out` the ranges in which `new` differs from `old`. Returns the number of ranges. Both images have the
/// same size, at most 65536 bytes.
pub fn encode(old: &[u8], new: &[u8], out: &mut Vec<u8>) -> u16 {
    debug_assert!(old.len() == new.len() && new.len() <= 65536);
    let mut ranges = 0;
    let mut at = 0;
    while let Some(start) = next_difference(old, new, at) {
        let end = end_of_range::<RANGE_HEADER_BYTES>(old, new, start);
        out.extend_from_slice(&(start as u16).to_le_bytes());
        out.extend_from_slice(&((end - start - 1) as u16).to_le_bytes());
        out.extend_from_slice(&new[start..end]);
        ranges += 1;
        at = end;
    }
    ranges
}

/// Appends the whole page as one range, for logs without differential logging.
pub fn encode_whole(page: &[u8], out: &mut Vec<u8>) -> u16 {
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&((page.len() - 1) as u16).to_le_bytes());
    out.extend_from_slice(page);
    1
}

/// Writes encoded ranges over `page`.
///
/// # Errors
/// `Damaged` if a range reaches beyond the end of the page, the ranges are out of order, or the payload does not hold
/// exactly `ranges` ranges. Some of the ranges may then have been written to `page`.
pub fn apply(page: &mut [u8], ranges: u16, mut payload: &[u8]) -> Result<(), FormatError> {
    let damaged = FormatError::Damaged { what: "a page difference" };
    let mut floor = 0;
    for _ in 0..ranges {
        let start = usize::from(u16_le(payload, 0));
        let length = usize::from(u16_le(payload, 2)) + 1;
        let bytes = payload.get(RANGE_HEADER_BYTES..RANGE_HEADER_BYTES + length).ok_or(damaged)?;
        if start < floor {
            return Err(damaged);
        }
        page.get_mut(start..start + length).ok_or(damaged)?.copy_from_slice(bytes);
        floor = start + length;
        payload = &payload[RANGE_HEADER_BYTES + length..];
    }
    if payload.is_empty() { Ok(()) } else { Err(damaged) }
}

/// How many bytes are compared in one step while the pages are equal. Each step costs a function call, so the steps are
/// long.
const STRIDE: usize = 256;
const WORD: usize = 8;

/// Compares two pages in the 8-byte word at offset `at`. Returns the bits that differ. The caller makes sure that the
/// word is within the pages.
#[inline(always)]
fn differing(old: &[u8], new: &[u8], at: usize) -> u64 {
    let word = |page: &[u8]| {
        page.get(at..at + WORD).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    word(old) ^ word(new)
}

/// Returns the first byte at or after `from` in which two pages of the same size differ.
pub(crate) fn next_difference(old: &[u8], new: &[u8], from: usize) -> Option<usize> {
    let (old_strides, _) = old.get(from..)?.as_chunks::<STRIDE>();
    let (new_strides, _) = new.get(from..)?.as_chunks::<STRIDE>();
    let equal = old_strides.iter().zip(new_strides).take_while(|(a, b)| a == b).count();
    let mut at = from + equal * STRIDE;
    while at + WORD <= new.len() {
        let word = differing(old, new, at);
        if word != 0 {
            return Some(at + word.trailing_zeros() as usize / 8);
        }
        at += WORD;
    }
    let tail = old.get(at..)?.iter().zip(new.get(at..)?);
    tail.into_iter().position(|(a, b)| a != b).map(|i| at + i)
}

/// Returns the end of the range that begins with the difference at `start`. The range ends before the first run of more
/// than `EQUAL` equal bytes. If there is no such run, it ends after the page's last difference.
pub(crate) fn end_of_range<const EQUAL: usize>(old: &[u8], new: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    let mut at = end;
    while at < new.len() && at - end <= EQUAL {
        if at + WORD <= new.len() {
            let word = differing(old, new, at);
            let equal_first = word.trailing_zeros() as usize / 8;
            // Every run of equal bytes that ends in this word has at most `EQUAL` bytes. So the range goes on at least
            // to the word's last difference.
            if WORD - bytes_that_differ(word) <= EQUAL && at - end + equal_first <= EQUAL {
                at += WORD;
                end = at - word.leading_zeros() as usize / 8;
                continue;
            }
        }
        if old[at] != new[at] {
            end = at + 1;
        }
        at += 1;
    }
    end
}

/// Returns how many bytes of the word are not zero.
#[inline(always)]
fn bytes_that_differ(word: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW_BITS: u64 = 0x7f * ONES;
    let high_bits = ((word & LOW_BITS) + LOW_BITS) | word;
    ((high_bits >> 7 & ONES).wrapping_mul(ONES) >> 56) as usize
}

/// Returns the length of the longest common suffix of two slices.
pub(crate) fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let word = |bytes: &[u8], after: usize| {
        let end = bytes.len().checked_sub(after)?;
        bytes.get(end.checked_sub(16)?..end)?.try_into().ok().map(u128::from_ne_bytes)
    };
    let mut same = 0;
    while let (Some(one), Some(other)) = (word(a, same), word(b, same))
        && one == other
    {
        same += 16;
    }
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    same + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(old: &[u8], new: &[u8]) -> (u16, usize) {
        let mut payload = Vec::new();
        let ranges = encode(old, new, &mut payload);
        let mut page = old.to_vec();
        apply(&mut page, ranges, &payload).unwrap();
        assert_eq!(page, new);
        (ranges, payload.len())
    }

    #[test]
    fn equal_pages_have_no_ranges() {
        assert_eq!(round_trip(&[1; 512], &[1; 512]), (0, 0));
    }

    #[test]
    fn a_whole_largest_page_is_one_range() {
        assert_eq!(round_trip(&[0; 65536], &[1; 65536]), (1, 65540));
        let mut payload = Vec::new();
        assert_eq!(encode_whole(&[7; 65536], &mut payload), 1);
        let mut page = vec![0; 65536];
        apply(&mut page, 1, &payload).unwrap();
        assert_eq!(page, [7; 65536]);
    }

    #[test]
    fn close_differences_share_a_range_and_far_ones_do_not() {
        let old = [0; 512];
        let mut new = old;
        new[10] = 1;
        new[15] = 1;
        assert_eq!(round_trip(&old, &new), (1, 10));
        new[16 + 5] = 1;
        assert_eq!(round_trip(&old, &new), (2, 15));
        new[511] = 1;
        assert_eq!(round_trip(&old, &new).0, 3);
    }

    #[test]
    fn ranges_outside_the_page_out_of_order_or_cut_short_are_refused() {
        let mut page = [0; 512];
        assert!(apply(&mut page, 1, &[255, 1, 1, 0, 9, 9]).is_err());
        assert!(apply(&mut page, 2, &[9, 0, 0, 0, 1, 3, 0, 0, 0, 1]).is_err());
        assert!(apply(&mut page, 1, &[0, 0, 9, 0, 1]).is_err());
        assert!(apply(&mut page, 1, &[0, 0, 0, 0, 1, 7]).is_err());
        assert!(apply(&mut page, 1, &[]).is_err());
    }

    /// Encodes a difference slowly, byte by byte, for comparison with `encode`.
    fn encode_slowly(old: &[u8], new: &[u8]) -> Vec<u8> {
        let differences: Vec<usize> = (0..new.len()).filter(|&i| old[i] != new[i]).collect();
        let mut out = Vec::new();
        for run in differences.chunk_by(|a, b| b - a - 1 <= RANGE_HEADER_BYTES) {
            let (start, end) = (run[0], run[run.len() - 1] + 1);
            out.extend_from_slice(&(start as u16).to_le_bytes());
            out.extend_from_slice(&((end - start - 1) as u16).to_le_bytes());
            out.extend_from_slice(&new[start..end]);
        }
        out
    }

    /// Returns the fewest bytes that an encoding can take. At each gap between two differences, the encoding either
    /// stores the gap or begins another range, whichever is shorter.
    fn least_bytes(old: &[u8], new: &[u8]) -> usize {
        let differences: Vec<usize> = (0..new.len()).filter(|&i| old[i] != new[i]).collect();
        let gaps = differences.windows(2).map(|two| (two[1] - two[0] - 1).min(RANGE_HEADER_BYTES));
        let first = if differences.is_empty() { 0 } else { RANGE_HEADER_BYTES };
        first + differences.len() + gaps.sum::<usize>()
    }

    /// Returns two pages with short alternating runs of equal and of different bytes.
    fn dense() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let runs = prop::collection::vec((0usize..9, 0usize..12, 1u8..), 0..90);
        runs.prop_map(|runs| {
            let differing = runs.into_iter().flat_map(|(equal, differing, byte)| {
                std::iter::repeat_n(0, equal).chain(std::iter::repeat_n(byte, differing))
            });
            let old: Vec<u8> = (0..512u32).map(|i| (i * 7 % 251) as u8).collect();
            let new = old.iter().zip(differing.chain(std::iter::repeat(0))).map(|(a, b)| a ^ b).collect();
            (old, new)
        })
    }

    #[test]
    fn bytes_that_differ_are_counted() {
        for word in
            [0, 1, 0x80, 0x0100_0000_0000_00ff, 0x7f00_8000_0100_0000, u64::MAX, 0x0101_0101_0101_0101]
        {
            let counted = word.to_le_bytes().iter().filter(|byte| **byte != 0).count();
            assert_eq!(bytes_that_differ(word), counted, "{word:x}");
        }
    }

    proptest! {
        #[test]
        fn ranges_are_as_few_and_as_short_as_they_can_be((old, new) in dense()) {
            let mut payload = Vec::new();
            let ranges = encode(&old, &new, &mut payload);
            prop_assert_eq!(payload.len(), least_bytes(&old, &new));
            prop_assert_eq!(&payload, &encode_slowly(&old, &new));
            let mut page = old;
            apply(&mut page, ranges, &payload).unwrap();
            prop_assert_eq!(page, new);
        }

        #[test]
        fn encodes_what_the_definition_says(
            seed in prop::collection::vec((0usize..512, 1usize..30, any::<u8>()), 0..20),
        ) {
            let old: Vec<u8> = (0..512u32).map(|i| (i * 7 % 251) as u8).collect();
            let mut new = old.clone();
            for (at, length, byte) in seed {
                new.iter_mut().skip(at).take(length).for_each(|slot| *slot = slot.wrapping_add(byte));
            }
            let mut payload = Vec::new();
            encode(&old, &new, &mut payload);
            prop_assert_eq!(payload, encode_slowly(&old, &new));
        }

        #[test]
        fn any_two_pages(seed in prop::collection::vec((0usize..1024, any::<u8>()), 0..80)) {
            let old: Vec<u8> = (0..1024u32).map(|i| (i * 7 % 251) as u8).collect();
            let mut new = old.clone();
            for (at, byte) in seed {
                new[at] = byte;
            }
            round_trip(&old, &new);
        }

        #[test]
        fn any_bytes_are_refused_or_applied(ranges in 0u16..9, payload in prop::collection::vec(any::<u8>(), 0..99)) {
            let _ = apply(&mut [0; 512], ranges, &payload);
        }
    }
}
