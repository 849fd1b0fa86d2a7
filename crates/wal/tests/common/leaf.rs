//! Leaves of a b-tree. The model inserts, deletes and changes their rows as SQLite does, so most bytes of a page
//! only move within it, and few bytes are new.

use duralite_format::page_change;

use super::Rng;

const TABLE_LEAF: u8 = 13;
/// Kinds and operation codes, from `docs/format/page-change.md`.
const CELLS: u8 = 1;
const PAGE_ONE: u8 = 0x10;
const ZEROED: u8 = 0x20;
const INSERT: u8 = 1;
const DELETE: u8 = 3;
/// A slot or a length below this number takes one byte.
const ONE_BYTE: usize = 127;

/// Returns a page without rows, for the page with this index, counted from 0.
pub fn empty(page_bytes: usize, index: usize) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    let header = page_change::header_bytes(index as u32 + 1);
    page[header] = TABLE_LEAF;
    page[header + 5..header + 7].copy_from_slice(&(page_bytes as u16).to_be_bytes());
    page
}

/// Changes a row or two. If the page is not a leaf or has no space, changes nothing and returns `false`.
pub fn change(page: &mut [u8], index: usize, rng: &mut Rng) -> bool {
    let mut changed = page.to_vec();
    let done = (0..1 + rng.below(2)).all(|_| change_row(&mut changed, index, rng));
    if done {
        page.copy_from_slice(&changed);
    }
    done
}

fn change_row(page: &mut [u8], index: usize, rng: &mut Rng) -> bool {
    let header = page_change::header_bytes(index as u32 + 1);
    let rows = usize::from(u16::from_be_bytes([page[header + 3], page[header + 4]]));
    let first = CELLS | if header == 0 { 0 } else { PAGE_ONE };
    let slot = rng.below(rows as u64 + 1).min(ONE_BYTE as u64 - 1) as u8;
    let payload = if rows > 4 && rng.chance(2) {
        let slot = usize::from(slot).min(rows - 1) as u8;
        vec![first | if rng.chance(2) { ZEROED } else { 0 }, 1, DELETE, slot, 0]
    } else {
        let length = 2 + rng.below(40) as u8;
        let cell = [length, rng.below(128) as u8].into_iter().chain((0..length).map(|_| rng.next() as u8));
        [first, 1, INSERT, slot, length + 1].into_iter().chain(cell).collect()
    };
    page_change::apply(page, &payload).is_ok()
}
