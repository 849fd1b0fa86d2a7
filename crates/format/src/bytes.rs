//! Little-endian and big-endian field access that never panics on short input.

/// The little-endian number of 16 bits at `at`, or 0 if the slice ends before its end.
#[inline]
#[must_use]
pub fn u16_le(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

/// The little-endian number of 32 bits at `at`, or 0 if the slice ends before its end.
#[inline]
#[must_use]
pub fn u32_le(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

/// The little-endian number of 64 bits at `at`, or 0 if the slice ends before its end.
#[inline]
#[must_use]
pub fn u64_le(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

/// The big-endian number of 32 bits at `at`, or 0 if the slice ends before its end.
#[must_use]
pub fn u32_be(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

/// The `N` bytes at `at`, or `None` if the slice ends before them.
#[inline]
#[must_use]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Copies `value` to `at`. Callers size their buffers by the constants that the offsets come from.
#[inline]
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
