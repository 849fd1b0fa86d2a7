//! Ranges of bytes that are written over a page. Each range is stored as the distance from the end of the range before,
//! its length less one, and its bytes. Ranges ascend, are disjoint, and extend to the end of the payload.

use super::number::{DAMAGED, Reader, put};
use crate::FormatError;
use crate::diff;

/// Up to this many equal bytes between two differences are stored with them, because they cost about as much as the
/// numbers of a second range.
const NOT_WORTH_A_SPLIT: usize = 3;

/// Appends the ranges in which `new` differs from `old`. Both have the same length.
pub(super) fn encode(old: &[u8], new: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(start) = diff::next_difference(old, new, at) {
        let end = diff::end_of_range::<NOT_WORTH_A_SPLIT>(old, new, start);
        put_range(new, at, start..end, out);
        at = end;
    }
}

/// Appends the ranges in which `new` is not zero.
pub(super) fn encode_over_zeros(new: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(start) = next_not_zero(new, at) {
        let end = end_before_zeros(new, start);
        put_range(new, at, start..end, out);
        at = end;
    }
}

fn put_range(new: &[u8], after: usize, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
    put(out, range.start - after);
    put(out, range.len() - 1);
    out.extend_from_slice(&new[range]);
}

/// Writes the ranges in the rest of a payload over `page`.
///
/// # Errors
/// `Damaged` if a range leaves the page, `Short` if a range is cut short. `page` may then hold some of the ranges.
pub(super) fn apply(page: &mut [u8], payload: &mut Reader<'_>) -> Result<(), FormatError> {
    let mut at = 0;
    while !payload.is_empty() {
        at += payload.number()?;
        let length = payload.length()?;
        let bytes = payload.bytes(length)?;
        let end = at + bytes.len();
        page.get_mut(at..end).ok_or(DAMAGED)?.copy_from_slice(bytes);
        at = end;
    }
    Ok(())
}

/// Bytes that are compared with zeros at a time.
const STRIDE: usize = 64;

fn next_not_zero(page: &[u8], from: usize) -> Option<usize> {
    let (strides, _) = page.get(from..)?.as_chunks::<STRIDE>();
    let zeros = strides.iter().take_while(|stride| **stride == [0; STRIDE]).count();
    let at = from + zeros * STRIDE;
    page.get(at..)?.iter().position(|byte| *byte != 0).map(|found| at + found)
}

/// The end of the range from `start` on: after the last byte before zeros that are worth another range.
fn end_before_zeros(page: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    for (at, byte) in page.iter().enumerate().skip(end) {
        if *byte != 0 {
            end = at + 1;
        } else if at - end >= NOT_WORTH_A_SPLIT {
            break;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(old: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut page = old.to_vec();
        apply(&mut page, &mut Reader(payload)).unwrap();
        page
    }

    #[test]
    fn ranges_are_distances_lengths_and_bytes() {
        let old = [0; 512];
        let mut new = old;
        new[3] = 7;
        new[7] = 8;
        new[12..14].fill(9);
        let mut payload = Vec::new();
        encode(&old, &new, &mut payload);
        assert_eq!(payload, [3, 4, 7, 0, 0, 0, 8, 4, 1, 9, 9]);
        assert_eq!(applied(&old, &payload), new);
        let mut over_zeros = Vec::new();
        encode_over_zeros(&new, &mut over_zeros);
        assert_eq!(over_zeros, payload);
    }

    #[test]
    fn a_range_outside_the_page_or_cut_short_is_refused() {
        for payload in [&[128, 127, 2, 1, 1, 1][..], &[0, 1, 9], &[0], &[127, 255, 127, 255, 1]] {
            assert!(apply(&mut [0; 512], &mut Reader(payload)).is_err(), "{payload:?}");
        }
    }

    #[test]
    fn long_runs_of_data_and_of_zeros() {
        let mut page = vec![0; 65536];
        page[40000..].fill(3);
        let mut payload = Vec::new();
        encode_over_zeros(&page, &mut payload);
        assert_eq!(payload.len(), 3 + 2 + 25536);
        assert_eq!(applied(&vec![0; 65536], &payload), page);
    }
}
