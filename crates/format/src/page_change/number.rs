//! Numbers of 0..=65535 in one to three bytes, and a reader of payloads that never runs past their end.
//!
//! Most numbers in a payload are small: slots, distances, lengths of cells. The numbers in a list of ranges add up to a
//! page at most. The bounds are chosen such that at most one of them needs three bytes.

use crate::FormatError;

/// The payload contradicts itself or the page.
pub(super) const DAMAGED: FormatError = FormatError::Damaged { what: "a page change" };
/// The payload ends too early.
const SHORT: FormatError = FormatError::Short { what: "a page change" };

/// Numbers below this take one byte. A first byte from this on is followed by a second one.
pub(super) const TWO_BYTES_FROM: usize = 127;
/// Numbers from this on are stored as [`THREE_BYTES_MARK`] and two more bytes.
pub(super) const THREE_BYTES_FROM: usize = 32895;
/// The first byte of a number of three bytes.
pub(super) const THREE_BYTES_MARK: u8 = 255;

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

/// The part of a payload that has not been read yet.
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

    /// Reads a length. It is at least one, and is stored as one less.
    pub(super) fn length(&mut self) -> Result<usize, FormatError> {
        Ok(self.number()? + 1)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }
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
}
