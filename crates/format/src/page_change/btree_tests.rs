//! Checks the length of cells, and every effect of inserting and dropping cells, byte by byte.

use super::*;

const PAGE: usize = 512;

/// Returns a table leaf without cells.
fn empty() -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..8].copy_from_slice(&[13, 0, 0, 0, 0, 2, 0, 0]);
    page
}

/// Returns a cell of a table leaf with `length` bytes, 3 to 129, filled with `fill`.
fn cell(length: usize, fill: u8) -> Vec<u8> {
    let mut cell = vec![fill; length];
    cell[0] = (length - 2) as u8;
    cell[1] = 1;
    cell
}

fn tree(page: &mut [u8]) -> Tree<&mut [u8]> {
    Tree::new(page, 0).unwrap()
}

/// Returns a page with cells of these lengths, filled with 1, 2 and so on. The first cell is at the page's end.
fn filled(lengths: &[usize]) -> Vec<u8> {
    let mut page = empty();
    for (slot, length) in lengths.iter().enumerate() {
        tree(&mut page).insert(slot, None, &cell(*length, 1 + slot as u8)).unwrap();
    }
    page
}

#[test]
fn a_cell_is_taken_from_the_gap_and_pointers_shift() {
    let mut page = filled(&[5, 6]);
    assert_eq!(page[..12], [13, 0, 0, 0, 2, 1, 245, 0, 1, 251, 1, 245]);
    assert_eq!(page[501..], [4, 1, 2, 2, 2, 2, 3, 1, 1, 1, 1]);
    tree(&mut page).insert(1, None, &cell(4, 9)).unwrap();
    assert_eq!(page[..14], [13, 0, 0, 0, 3, 1, 241, 0, 1, 251, 1, 241, 1, 245]);
    assert_eq!(page[497..501], [2, 1, 9, 9]);
}

#[test]
fn the_cell_at_the_content_s_beginning_goes_back_to_the_gap() {
    let mut page = filled(&[5, 6, 7]);
    tree(&mut page).drop_cell(2, false).unwrap();
    assert_eq!(page[..14], [13, 0, 0, 0, 2, 1, 245, 0, 1, 251, 1, 245, 1, 238]);
    assert_eq!(page[494..501], [5, 1, 3, 3, 3, 3, 3], "left as it was");
}

#[test]
fn a_cell_among_others_becomes_a_freeblock() {
    let mut page = filled(&[5, 6, 7]);
    tree(&mut page).drop_cell(1, false).unwrap();
    assert_eq!(page[..14], [13, 1, 245, 0, 2, 1, 238, 0, 1, 251, 1, 238, 1, 238]);
    assert_eq!(page[501..507], [0, 0, 0, 6, 2, 2]);
    tree(&mut page).drop_cell(0, false).unwrap();
    assert_eq!(page[..8], [13, 1, 245, 0, 1, 1, 238, 0]);
    assert_eq!(page[501..505], [0, 0, 0, 11], "one freeblock of both");
}

#[test]
fn freeblocks_are_chained_in_order_of_their_places() {
    let mut page = filled(&[5, 6, 7, 8, 9]);
    tree(&mut page).drop_cell(3, false).unwrap();
    tree(&mut page).drop_cell(1, false).unwrap();
    assert_eq!(page[1..3], [1, 230]);
    assert_eq!(page[486..490], [1, 245, 0, 8]);
    assert_eq!(page[501..505], [0, 0, 0, 6]);
    // Dropping the cell between two freeblocks joins them into one.
    tree(&mut page).drop_cell(1, false).unwrap();
    assert_eq!(page[486..490], [0, 0, 0, 21]);
}

#[test]
fn freed_bytes_are_zeros_for_those_who_want_that() {
    let mut page = filled(&[5, 6, 7]);
    tree(&mut page).drop_cell(1, true).unwrap();
    assert_eq!(page[501..507], [0, 0, 0, 6, 0, 0]);
}

#[test]
fn the_last_cell_leaves_an_empty_page() {
    let mut page = filled(&[5]);
    tree(&mut page).drop_cell(0, false).unwrap();
    assert_eq!(page[..8], [13, 0, 0, 0, 0, 2, 0, 0]);
}

#[test]
fn a_freeblock_is_used_from_its_end_or_leaves_fragments() {
    let mut page = filled(&[5, 20, 5]);
    tree(&mut page).drop_cell(1, false).unwrap();
    tree(&mut page).insert(1, None, &cell(9, 7)).unwrap();
    assert_eq!(page[..14], [13, 1, 231, 0, 3, 1, 226, 0, 1, 251, 1, 242, 1, 226]);
    assert_eq!(page[487..491], [0, 0, 0, 11]);
    tree(&mut page).insert(1, None, &cell(9, 8)).unwrap();
    assert_eq!(page[..8], [13, 0, 0, 0, 4, 1, 226, 2], "two fragments");
    assert_eq!(page[487..496], [7, 1, 8, 8, 8, 8, 8, 8, 8]);
    // Dropping the cell makes the fragments a part of the freeblock again.
    tree(&mut page).drop_cell(1, false).unwrap();
    tree(&mut page).drop_cell(1, false).unwrap();
    assert_eq!(page[..8], [13, 1, 231, 0, 2, 1, 226, 0]);
    assert_eq!(page[487..491], [0, 0, 0, 20]);
}

#[test]
fn too_many_fragments_send_a_cell_to_the_gap() {
    let mut page = filled(&[5, 20, 5]);
    tree(&mut page).drop_cell(1, false).unwrap();
    page[7] = 58;
    tree(&mut page).insert(1, None, &cell(19, 7)).unwrap();
    assert_eq!(page[5..8], [1, 207, 58]);
}

#[test]
fn a_page_is_packed_by_closing_one_freeblock_or_two() {
    let mut page = filled(&[100, 120, 120, 120]);
    tree(&mut page).drop_cell(1, false).unwrap();
    tree(&mut page).insert(1, None, &cell(125, 7)).unwrap();
    // The freeblock at 292 had 120 bytes. The bytes before it have moved by 120 towards the page's end.
    assert_eq!(page[..16], [13, 0, 0, 0, 4, 0, 47, 0, 1, 156, 0, 47, 1, 36, 0, 172]);
    assert!(page[16..47].iter().all(|byte| *byte == 0));
    assert_eq!(page[292..295], [118, 1, 3]);
    assert_eq!(page[172..175], [118, 1, 4]);
    assert_eq!(page[47..50], [123, 1, 7]);
}

#[test]
fn a_page_with_fragments_is_written_anew_in_the_order_of_its_slots() {
    let mut page = filled(&[100, 120, 124, 124]);
    let mut change = tree(&mut page);
    change.drop_cell(1, false).unwrap();
    change.insert(3, None, &cell(118, 7)).unwrap();
    assert_eq!(change.fragments(), 2);
    change.drop_cell(0, false).unwrap();
    change.insert(0, None, &cell(129, 8)).unwrap();
    assert_eq!(page[..16], [13, 0, 0, 0, 4, 0, 17, 0, 0, 17, 1, 132, 1, 8, 0, 146]);
    assert_eq!(page[388..391], [122, 1, 3]);
    assert_eq!(page[264..267], [122, 1, 4]);
    assert_eq!(page[146..149], [116, 1, 7]);
    assert_eq!(page[17..20], [127, 1, 8]);
}

#[test]
fn a_place_that_is_said_is_taken_from_where_it_lies() {
    let mut page = filled(&[5, 20, 5]);
    tree(&mut page).drop_cell(1, false).unwrap();
    // SQLite would have placed the cell in the freeblock.
    tree(&mut page).insert(1, Some(473), &cell(9, 7)).unwrap();
    assert_eq!(page[..8], [13, 1, 231, 0, 3, 1, 217, 0]);
    tree(&mut page).insert(1, Some(498), &cell(9, 7)).unwrap();
    assert_eq!(page[487..491], [0, 0, 0, 11]);
    tree(&mut page).insert(1, Some(100), &cell(9, 7)).unwrap();
    assert_eq!(page[100..109], cell(9, 7));
    assert_eq!(page[1..7], [1, 231, 0, 5, 1, 217], "no part of the free list");
}

#[test]
fn what_the_page_has_no_room_for_is_refused() {
    // The header leaves 504 bytes: 8 bytes of pointers, 478 bytes of cells, and 18 free bytes. Another pointer takes 2
    // of these 18.
    let mut page = filled(&[100, 120, 129, 129]);
    assert!(tree(&mut page).place(16).is_some());
    assert!(tree(&mut page).place(17).is_none());
    assert!(tree(&mut page).insert(0, None, &cell(17, 1)).is_none());
    assert!(tree(&mut page).insert(5, None, &cell(4, 1)).is_none(), "no such slot");
    assert!(tree(&mut page).drop_cell(4, false).is_none());
    assert!(tree(&mut page).insert(0, Some(17), &cell(9, 1)).is_none(), "over the pointers");
    assert!(tree(&mut page).insert(0, Some(505), &cell(9, 1)).is_none(), "past the end");
    assert!(tree(&mut page).insert(0, None, &[1, 1, 1]).is_none(), "too short for a freeblock");
}

#[test]
fn a_chain_that_descends_or_leaves_the_page_ends() {
    let mut page = filled(&[5, 20, 5]);
    tree(&mut page).drop_cell(1, false).unwrap();
    page[487..491].copy_from_slice(&[1, 0, 0, 20]);
    assert!(tree(&mut page).insert(0, None, &cell(30, 1)).is_some());
    page[1..3].copy_from_slice(&[1, 253]);
    assert!(tree(&mut page).insert(0, None, &cell(30, 1)).is_some());
    page[1..3].copy_from_slice(&[1, 231]);
    page[487..491].copy_from_slice(&[0, 0, 255, 255]);
    assert_eq!(tree(&mut page).place(30).map(|(at, _)| at), Some(392), "a block past the end");
}

/// The first bytes of the page, read as a link to a freeblock, would lead to an offset that exists only on a larger
/// page.
#[test]
fn nothing_follows_the_last_freeblock() {
    let mut page = vec![0; 4096];
    page[..8].copy_from_slice(&[13, 0, 0, 0, 0, 16, 0, 0]);
    for (slot, length) in [5, 20, 5].into_iter().enumerate() {
        tree(&mut page).insert(slot, None, &cell(length, 1)).unwrap();
    }
    tree(&mut page).drop_cell(1, false).unwrap();
    let tree = tree(&mut page);
    let mut blocks = tree.freeblocks();
    assert_eq!(blocks.next(), Some((1, 4071, 20)));
    assert_eq!(blocks.next(), None);
    assert_eq!(blocks.next(), None);
}

fn leaf(kind: u8, at: usize, cell: &[u8]) -> Vec<u8> {
    let mut page = vec![0; 512];
    page[..8].copy_from_slice(&[kind, 0, 0, 0, 1, (at >> 8) as u8, at as u8, 0]);
    page[8..10].copy_from_slice(&(at as u16).to_be_bytes());
    page[at..at + cell.len()].copy_from_slice(cell);
    page
}

fn cell_length(kind: u8, cell: &[u8]) -> Option<usize> {
    Tree::new(&leaf(kind, 100, cell)[..], 0).unwrap().cell(0).map(<[u8]>::len)
}

#[test]
fn cells_are_as_long_as_the_file_format_says() {
    assert_eq!(cell_length(TABLE_LEAF, &[10, 1]), Some(12));
    assert_eq!(cell_length(TABLE_LEAF, &[10, 0x81, 1]), Some(13));
    assert_eq!(cell_length(TABLE_LEAF, &[0, 1]), Some(4), "the smallest");
    assert_eq!(cell_length(INDEX_LEAF, &[10]), Some(11));
    // A payload of 477 = 512 - 35 bytes stays on the page. Of a payload of 478 bytes, 39 + (478 - 39) % 508 = 478 bytes
    // would stay, which is too many. So only 39 stay.
    assert_eq!(cell_length(TABLE_LEAF, &[0x83, 0x5d, 1]), None, "past the end");
    assert_eq!(cell_length(TABLE_LEAF, &[0x83, 0x5e, 1]), Some(3 + 39 + 4));
    // An index cell keeps at most 102 bytes on the page.
    assert_eq!(cell_length(INDEX_LEAF, &[102]), Some(103));
    assert_eq!(cell_length(INDEX_LEAF, &[103]), Some(1 + 39 + 4));
}

#[test]
fn what_is_no_tree_is_refused() {
    assert!(Tree::new(&leaf(7, 100, &[1])[..], 0).is_none());
    assert!(Tree::new(&leaf(13, 9, &[1])[..], 0).is_none(), "pointers in the content");
    assert!(Tree::new(&leaf(13, 100, &[1])[..], 0).is_some());
    assert!(Tree::new(&[0; 0][..], 0).is_none());
}
