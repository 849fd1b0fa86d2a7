//! Operations on the cells of a b-tree page, and their bytes in a payload.

use super::btree::Tree;
use super::number::{DAMAGED, Reader, put};
use super::ranges;
use crate::FormatError;

/// Inserts a cell where SQLite puts it. Stored: slot, length less one, bytes of the cell.
pub(super) const OP_INSERT: u8 = 1;
/// Inserts a cell at a given place. Stored: place, then as for [`OP_INSERT`].
pub(super) const OP_INSERT_AT: u8 = 2;
/// Drops cells, the last one first. Stored: slot of the first cell, number of cells less one.
pub(super) const OP_DELETE: u8 = 3;
/// Drops a cell, and inserts a similar one at its slot, where SQLite puts it. Stored: slot, length of the new cell less
/// one, length of the tail, bytes of ranges, and the ranges. The new cell ends with the tail, which is the end of the
/// old cell. Before the tail come the old cell's first bytes, then zeros. The ranges are written over that.
pub(super) const OP_REPLACE: u8 = 4;
/// Like [`OP_REPLACE`], but at a given place. Stored: place, then as for [`OP_REPLACE`].
pub(super) const OP_REPLACE_AT: u8 = 5;

/// The largest number of operations in a payload.
pub(super) const MAX_OPERATIONS: usize = 255;

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    Insert { slot: usize, at: Option<usize>, cell: &'a [u8] },
    Delete { slot: usize, count: usize },
    Replace { slot: usize, at: Option<usize>, length: usize, tail: usize, patch: &'a [u8] },
}

impl<'a> Operation<'a> {
    pub(super) fn read(payload: &mut Reader<'a>) -> Result<Self, FormatError> {
        let code = payload.byte()?;
        let at = match code {
            OP_INSERT_AT | OP_REPLACE_AT => Some(payload.number()?),
            _ => None,
        };
        let slot = payload.number()?;
        let length = payload.length()?;
        match code {
            OP_INSERT | OP_INSERT_AT => Ok(Self::Insert { slot, at, cell: payload.bytes(length)? }),
            OP_DELETE => Ok(Self::Delete { slot, count: length }),
            OP_REPLACE | OP_REPLACE_AT => {
                let tail = payload.number()?;
                let patch = payload.number()?;
                Ok(Self::Replace { slot, at, length, tail, patch: payload.bytes(patch)? })
            }
            _ => Err(DAMAGED),
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Insert { slot, at, cell } => {
                put_head([OP_INSERT, OP_INSERT_AT], at, slot, cell.len(), out);
                out.extend_from_slice(cell);
            }
            Self::Delete { slot, count } => put_head([OP_DELETE; 2], None, slot, count, out),
            Self::Replace { slot, at, length, tail, patch } => {
                put_head([OP_REPLACE, OP_REPLACE_AT], at, slot, length, out);
                put(out, tail);
                put(out, patch.len());
                out.extend_from_slice(patch);
            }
        }
    }

    /// Applies the operation to a page. `cell` is scratch space.
    ///
    /// # Errors
    /// `Damaged` or `Short` if the operation is not possible on this page. The page may then be changed in part.
    pub(super) fn apply(
        &self,
        tree: &mut Tree<&mut [u8]>,
        zeroing: bool,
        cell: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        let done = match *self {
            Self::Insert { slot, at, cell } => tree.insert(slot, at, cell),
            Self::Delete { slot, count } => {
                (slot..slot.saturating_add(count)).rev().try_for_each(|slot| tree.drop_cell(slot, zeroing))
            }
            Self::Replace { slot, at, length, tail, patch } => {
                replaced(tree.cell(slot).ok_or(DAMAGED)?, length, tail, cell).ok_or(DAMAGED)?;
                ranges::apply(cell, &mut Reader(patch))?;
                tree.drop_cell(slot, zeroing).and_then(|()| tree.insert(slot, at, cell))
            }
        };
        done.ok_or(DAMAGED)
    }
}

fn put_head([derived, given]: [u8; 2], at: Option<usize>, slot: usize, length: usize, out: &mut Vec<u8>) {
    match at {
        None => out.push(derived),
        Some(at) => {
            out.push(given);
            put(out, at);
        }
    }
    put(out, slot);
    put(out, length - 1);
}

/// Fills `cell` with the new cell as it is before the ranges are written over it.
pub(super) fn replaced(old: &[u8], length: usize, tail: usize, cell: &mut Vec<u8>) -> Option<()> {
    let front = length.checked_sub(tail)?;
    let end = old.get(old.len().checked_sub(tail)?..)?;
    cell.clear();
    cell.extend_from_slice(&old[..front.min(old.len())]);
    cell.resize(front, 0);
    cell.extend_from_slice(end);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_the_bytes_that_the_document_says() {
        let cases: [(Operation<'_>, &[u8]); 5] = [
            (Operation::Insert { slot: 2, at: None, cell: &[7, 8] }, &[1, 2, 1, 7, 8]),
            (Operation::Insert { slot: 2, at: Some(130), cell: &[7] }, &[2, 127, 3, 2, 0, 7]),
            (Operation::Delete { slot: 5, count: 3 }, &[3, 5, 2]),
            (
                Operation::Replace { slot: 1, at: None, length: 9, tail: 4, patch: &[0, 0, 6] },
                &[4, 1, 8, 4, 3, 0, 0, 6],
            ),
            (
                Operation::Replace { slot: 1, at: Some(99), length: 9, tail: 9, patch: &[] },
                &[5, 99, 1, 8, 9, 0],
            ),
        ];
        for (operation, bytes) in cases {
            let mut written = Vec::new();
            operation.write(&mut written);
            assert_eq!(written, bytes);
            let mut payload = Reader(bytes);
            assert_eq!(Operation::read(&mut payload), Ok(operation));
            assert!(payload.is_empty());
            assert!(Operation::read(&mut Reader(&bytes[..bytes.len() - 1])).is_err());
        }
        assert!(Operation::read(&mut Reader(&[6, 1, 1, 1, 1])).is_err());
    }

    #[test]
    fn a_replaced_cell_has_the_old_ones_beginning_and_end() {
        let mut cell = Vec::new();
        assert_eq!(replaced(&[1, 2, 3, 4], 6, 2, &mut cell), Some(()));
        assert_eq!(cell, [1, 2, 3, 4, 3, 4]);
        assert_eq!(replaced(&[1, 2, 3, 4], 7, 1, &mut cell), Some(()));
        assert_eq!(cell, [1, 2, 3, 4, 0, 0, 4]);
        assert_eq!(replaced(&[1, 2, 3, 4], 3, 2, &mut cell), Some(()));
        assert_eq!(cell, [1, 3, 4]);
        assert_eq!(replaced(&[1, 2, 3, 4], 6, 5, &mut cell), None, "longer than the old one");
        assert_eq!(replaced(&[1, 2, 3, 4], 1, 2, &mut cell), None, "longer than the new one");
    }
}
