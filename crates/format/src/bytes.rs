//! Reads little-endian and big-endian fields without panicking on short input, and writes fields.

/// Returns the little-endian 16-bit number at `at`, or 0 if the slice ends before the number does.
#[inline]
#[must_use]
pub fn u16_le(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

/// Returns the little-endian 32-bit number at `at`, or 0 if the slice ends before the number does.
#[inline]
#[must_use]
pub fn u32_le(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

/// Returns the little-endian 64-bit number at `at`, or 0 if the slice ends before the number does.
#[inline]
#[must_use]
pub fn u64_le(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

/// Returns the big-endian 32-bit number at `at`, or 0 if the slice ends before the number does.
#[must_use]
pub fn u32_be(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

/// Returns the `N` bytes at `at`, or `None` if the slice ends before they do.
#[inline]
#[must_use]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Copies `value` to `at`. The value fits, because callers take the size of the buffer and the offsets in it from
/// the same constants.
#[inline]
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
