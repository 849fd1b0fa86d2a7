//! The bytes of a payload: its first byte, numbers, and ranges.
//!
//! The first byte says the kind of the change. Numbers of 0..=65535 take one to three bytes. Most of the numbers are
//! small, because they are slots, distances and lengths of cells. The numbers in a list of ranges add up to at most the
//! size of a page, and so at most one of them needs three bytes.
//!
//! Ranges are bytes that a reader writes over a page. A payload stores each range as the distance from the end of the
//! previous range, its length less one, and its bytes. Ranges ascend, are disjoint, and fill the rest of the payload.

use crate::{FormatError, diff};

/// The first byte of a payload of cell operations, without the bits [`PAGE_ONE`] and [`ZEROED`].
pub(super) const KIND_CELLS: u8 = 1;
/// The first byte of a payload of the kind `ChangeKind::Moves`.
pub(super) const KIND_MOVES: u8 = 2;
/// The first byte of a payload of the kind `ChangeKind::Ranges`.
pub(super) const KIND_RANGES: u8 = 3;
/// The first byte of a payload of the kind `ChangeKind::Whole`.
pub(super) const KIND_WHOLE: u8 = 4;
/// With [`KIND_CELLS`], the bit that says that the b-tree header follows the database header, as on page 1.
pub(super) const PAGE_ONE: u8 = 0x10;
/// With [`KIND_CELLS`], the bit that says that operations fill freed bytes with zeros (`PRAGMA secure_delete`).
pub(super) const ZEROED: u8 = 0x20;
/// Size in bytes of the database header, with which page 1 begins.
pub(super) const DATABASE_HEADER_BYTES: usize = 100;

/// Returns how many bytes of a page precede its b-tree header.
#[must_use]
pub fn header_bytes(page_number: u32) -> usize {
    if page_number == 1 { DATABASE_HEADER_BYTES } else { 0 }
}

/// The form in which a change is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A reader inserts, deletes and replaces cells of a b-tree page by slot, and then writes ranges.
    Cells,
    /// A reader moves bytes within the page, and then writes ranges.
    Moves,
    /// A reader writes ranges over the page.
    Ranges,
    /// A reader writes ranges over a page of zeros.
    Whole,
}

impl ChangeKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Cells, Self::Moves, Self::Ranges, Self::Whole];

    /// Returns the name of the kind, for people and in status tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cells => "cells",
            Self::Moves => "moves",
            Self::Ranges => "ranges",
            Self::Whole => "whole",
        }
    }
}

/// Returns the kind of a payload, from its first byte.
///
/// # Errors
/// `Short` if the payload is empty, `Damaged` if its first byte names no kind.
pub fn kind(payload: &[u8]) -> Result<ChangeKind, FormatError> {
    match Reader(payload).byte()? {
        KIND_MOVES => Ok(ChangeKind::Moves),
        KIND_RANGES => Ok(ChangeKind::Ranges),
        KIND_WHOLE => Ok(ChangeKind::Whole),
        byte if byte & !(PAGE_ONE | ZEROED) == KIND_CELLS => Ok(ChangeKind::Cells),
        _ => Err(DAMAGED),
    }
}

/// Returns the first byte of a payload of cell operations.
pub(super) fn first_byte_of_cells(header_bytes: usize, zeroed: bool) -> u8 {
    let page_one = if header_bytes == 0 { 0 } else { PAGE_ONE };
    KIND_CELLS | page_one | if zeroed { ZEROED } else { 0 }
}

/// The error for a payload that contradicts itself or the page.
pub(super) const DAMAGED: FormatError = FormatError::Damaged { what: "a page change" };
/// The error for a payload that ends too early.
const SHORT: FormatError = FormatError::Short { what: "a page change" };

/// Numbers below this take one byte. From this number on, a second byte follows the first.
const TWO_BYTES_FROM: usize = 127;
/// Numbers from here on take three bytes: [`THREE_BYTES_MARK`] and two more bytes.
const THREE_BYTES_FROM: usize = 32895;
/// The first byte of a number of three bytes.
const THREE_BYTES_MARK: u8 = 255;

/// Appends a number below 65536.
pub(super) fn put(out: &mut Vec<u8>, number: usize) {
    debug_assert!(number <= usize::from(u16::MAX));
    if number < TWO_BYTES_FROM {
        out.push(number as u8);
    } else if number < THREE_BYTES_FROM {
        let rest = number - TWO_BYTES_FROM;
        out.extend_from_slice(&[(TWO_BYTES_FROM + (rest >> 8)) as u8, rest as u8]);
    } else {
        let [low, high] = (number as u16).to_le_bytes();
        out.extend_from_slice(&[THREE_BYTES_MARK, low, high]);
    }
}

/// The unread part of a payload.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, FormatError> {
        let (&first, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn number(&mut self) -> Result<usize, FormatError> {
        let first = self.byte()?;
        if usize::from(first) < TWO_BYTES_FROM {
            return Ok(usize::from(first));
        }
        if first == THREE_BYTES_MARK {
            let low = self.byte()?;
            return Ok(usize::from(u16::from_le_bytes([low, self.byte()?])));
        }
        let high = usize::from(first) - TWO_BYTES_FROM;
        Ok(TWO_BYTES_FROM + (high << 8 | usize::from(self.byte()?)))
    }

    /// Reads a length. A length is at least 1, and the payload stores the length minus 1.
    pub(super) fn length(&mut self) -> Result<usize, FormatError> {
        Ok(self.number()? + 1)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// If at most this many equal bytes lie between two differences, one range stores both differences and the equal bytes.
/// The equal bytes take about as much space as the numbers of a second range would.
const NOT_WORTH_A_SPLIT: usize = 3;

/// Appends the ranges in which `new` differs from `old`. Both have the same length.
pub(super) fn encode_ranges(old: &[u8], new: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(start) = diff::next_difference(old, new, at) {
        let end = diff::end_of_range::<NOT_WORTH_A_SPLIT>(old, new, start);
        put_range(new, at, start..end, out);
        at = end;
    }
}

/// Appends the ranges in which `new` is not zero.
pub(super) fn encode_ranges_over_zeros(new: &[u8], out: &mut Vec<u8>) {
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
/// `Damaged` if a range reaches beyond the end of the page, `Short` if a range is cut short. Some of the ranges may
/// then have been written to `page`.
pub(super) fn apply_ranges(page: &mut [u8], payload: &mut Reader<'_>) -> Result<(), FormatError> {
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

/// How many bytes are compared with zeros in one step.
const STRIDE: usize = 64;

fn next_not_zero(page: &[u8], from: usize) -> Option<usize> {
    let (strides, _) = page.get(from..)?.as_chunks::<STRIDE>();
    let zeros = strides.iter().take_while(|stride| **stride == [0; STRIDE]).count();
    let at = from + zeros * STRIDE;
    page.get(at..)?.iter().position(|byte| *byte != 0).map(|found| at + found)
}

/// Returns the end of the range that begins at `start`. The range ends before the first run of more than
/// `NOT_WORTH_A_SPLIT` zeros. If there is no such run, it ends after the page's last byte that is not 0.
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

    #[test]
    fn every_number_comes_back_in_the_bytes_it_should_take() {
        for number in 0..=65535 {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            let length = 1 + usize::from(number >= TWO_BYTES_FROM) + usize::from(number >= THREE_BYTES_FROM);
            assert_eq!(bytes.len(), length, "{number}");
            let mut reader = Reader(&bytes);
            assert_eq!(reader.number(), Ok(number));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn the_bounds_are_where_the_document_says() {
        let bytes = |number| {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            bytes
        };
        assert_eq!(bytes(126), [126]);
        assert_eq!(bytes(127), [127, 0]);
        assert_eq!(bytes(32894), [254, 255]);
        assert_eq!(bytes(32895), [255, 0x7f, 0x80]);
    }

    #[test]
    fn a_number_that_is_cut_short_is_refused() {
        for cut in [&[][..], &[127], &[254], &[255], &[255, 1]] {
            assert!(Reader(cut).number().is_err());
        }
        assert!(Reader(&[1, 2]).bytes(3).is_err());
    }

    fn applied(old: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut page = old.to_vec();
        apply_ranges(&mut page, &mut Reader(payload)).unwrap();
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
        encode_ranges(&old, &new, &mut payload);
        assert_eq!(payload, [3, 4, 7, 0, 0, 0, 8, 4, 1, 9, 9]);
        assert_eq!(applied(&old, &payload), new);
        let mut over_zeros = Vec::new();
        encode_ranges_over_zeros(&new, &mut over_zeros);
        assert_eq!(over_zeros, payload);
    }

    #[test]
    fn a_range_outside_the_page_or_cut_short_is_refused() {
        for payload in [&[128, 127, 2, 1, 1, 1][..], &[0, 1, 9], &[0], &[127, 255, 127, 255, 1]] {
            assert!(apply_ranges(&mut [0; 512], &mut Reader(payload)).is_err(), "{payload:?}");
        }
    }

    #[test]
    fn long_runs_of_data_and_of_zeros() {
        let mut page = vec![0; 65536];
        page[40000..].fill(3);
        let mut payload = Vec::new();
        encode_ranges_over_zeros(&page, &mut payload);
        assert_eq!(payload.len(), 3 + 2 + 25536);
        assert_eq!(applied(&vec![0; 65536], &payload), page);
    }
}
