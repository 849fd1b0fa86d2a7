//! Keys that sort like the numbers in them, and rows with fields.

use anyhow::anyhow;

use crate::kv::{Done, Fail};

/// Returns a key made of numbers. Each takes 4 bytes, with the largest byte first, so that keys sort like the numbers.
pub(crate) fn key(parts: &[u32]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.to_be_bytes()).collect()
}

/// Returns the number with this index in a key.
pub(crate) fn part(key: &[u8], place: usize) -> Done<u32> {
    let bytes = key.get(place * 4..place * 4 + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    bytes.map(u32::from_be_bytes).ok_or_else(|| Fail::Broken(anyhow!("a key is too short")))
}

/// Returns a row of `bytes` bytes. It begins with `fields`, each as a number of 8 bytes.
pub(crate) fn row(bytes: usize, fields: &[i64]) -> Vec<u8> {
    let mut row = vec![b'.'; bytes.max(fields.len() * 8)];
    for (to, field) in row.chunks_exact_mut(8).zip(fields) {
        to.copy_from_slice(&field.to_le_bytes());
    }
    row
}

/// Returns the field with this index in a row.
pub(crate) fn field(row: &[u8], place: usize) -> Done<i64> {
    let bytes = row.get(place * 8..place * 8 + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    bytes.map(i64::from_le_bytes).ok_or_else(|| Fail::Broken(anyhow!("a row is too short")))
}

/// Sets the field with this index in a row.
pub(crate) fn set(row: &mut [u8], place: usize, value: i64) {
    if let Some(bytes) = row.get_mut(place * 8..place * 8 + 8) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the row, or the error [`Fail::Broken`] if the row does not exist.
pub(crate) fn present(row: Option<Vec<u8>>, what: &str) -> Done<Vec<u8>> {
    row.ok_or_else(|| Fail::Broken(anyhow!("{what} is not there")))
}
