//! Space maps: each is a page with one bit for every page that it covers.

use duralite_format::FormatError;

use super::page::PAGE_HEADER_BYTES;

/// Returns how many pages a space map with pages of this size covers. The first of these pages is the map itself.
#[must_use]
pub fn bits_of(page_bytes: usize) -> u64 {
    (page_bytes - PAGE_HEADER_BYTES) as u64 * 8
}

/// Returns whether the page of this bit is in use.
#[must_use]
pub fn is_set(page: &[u8], bit: u32) -> bool {
    page.get(PAGE_HEADER_BYTES + bit as usize / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
}

/// Returns the first bit, from `from` on, whose page is not in use.
#[must_use]
pub fn first_clear(page: &[u8], from: u32) -> Option<u32> {
    let bits = page.get(PAGE_HEADER_BYTES..)?;
    let first = from as usize / 8;
    let head = (from % 8) as u8;
    for (at, byte) in bits.iter().enumerate().skip(first) {
        let taken = if at == first { byte | ((1_u8 << head) - 1) } else { *byte };
        if taken != u8::MAX {
            return Some((at * 8) as u32 + taken.trailing_ones());
        }
    }
    None
}

/// Returns how many pages are in use according to this map.
#[must_use]
pub fn pages_in_use(page: &[u8]) -> u64 {
    page.get(PAGE_HEADER_BYTES..).unwrap_or_default().iter().map(|byte| u64::from(byte.count_ones())).sum()
}

pub(super) fn set(page: &mut [u8], bit: u32, to: bool) -> Result<(), FormatError> {
    let byte = page
        .get_mut(PAGE_HEADER_BYTES + bit as usize / 8)
        .ok_or(FormatError::Damaged { what: "a change of the space map" })?;
    if to {
        *byte |= 1 << (bit % 8);
    } else {
        *byte &= !(1 << (bit % 8));
    }
    Ok(())
}

pub(super) fn set_run(page: &mut [u8], first: u32, count: u32, to: bool) -> Result<(), FormatError> {
    let end = first.checked_add(count).filter(|end| u64::from(*end) <= bits_of(page.len()));
    let end = end.ok_or(FormatError::Damaged { what: "a change of the space map" })?;
    (first..end).try_for_each(|bit| set(page, bit, to))
}
