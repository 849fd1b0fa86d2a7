//! Tests of the encoder together with the decoder.

use proptest::prelude::*;
use proptest::sample::Index;

use super::payload::{DAMAGED, KIND_CELLS, KIND_MOVES};
use super::*;

/// Encodes the change from `old` to `new`, applies it to `old`, and checks that the result is `new`. Returns the kind
/// and the payload.
fn round_trip(old: &[u8], new: &[u8], header: usize) -> (ChangeKind, Vec<u8>) {
    let mut payload = vec![0xee];
    let as_kind = encode(&mut Scratch::default(), old, new, header, &mut payload);
    assert_eq!(payload.remove(0), 0xee, "what was there stays");
    assert_eq!(kind(&payload), Ok(as_kind));
    let mut page = old.to_vec();
    apply(&mut page, &payload).unwrap();
    assert!(page == new, "{as_kind:?} came out different");
    let mut plain = Vec::new();
    diff::encode(old, new, &mut plain);
    // An operation stores the whole inserted cell. Ranges can be shorter if an earlier cell has left the same bytes at
    // the place of the new cell.
    let least = if as_kind == ChangeKind::Cells { new.len() } else { plain.len() + 2 };
    assert!(payload.len() <= least, "{} bytes for {}", payload.len(), plain.len());
    (as_kind, payload)
}

/// Returns an empty table leaf.
fn empty(page_bytes: usize, header: usize) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    page[header] = 13;
    page[header + 5..header + 7].copy_from_slice(&(page_bytes as u16).to_be_bytes());
    page
}

/// Returns a cell of a table leaf without overflow pages.
fn cell(row: u8, length: usize) -> Vec<u8> {
    let bytes = (0..length).map(|i| row.wrapping_mul(31).wrapping_add((i * i) as u8));
    [length as u8, row & 0x7f].into_iter().chain(bytes).collect()
}

fn insert(page: &mut [u8], header: usize, slot: usize, cell: &[u8]) -> Option<()> {
    Tree::new(page, header)?.insert(slot, None, cell)
}

/// Returns a page with `count` cells of 40 bytes.
fn filled(page_bytes: usize, header: usize, count: u8) -> Vec<u8> {
    let mut page = empty(page_bytes, header);
    for row in 0..count {
        insert(&mut page, header, usize::from(row), &cell(row, 38)).unwrap();
    }
    page
}

/// Does the same as `round_trip`, but encodes with [`encode_rearranged`]. Returns the payload if it is a page change,
/// and `None` if it consists of plain ranges.
fn rearranged_round_trip(old: &[u8], new: &[u8], header: usize) -> Option<Vec<u8>> {
    let mut payload = vec![0xee];
    let found = encode_rearranged(&mut Scratch::default(), old, new, header, &mut payload);
    assert_eq!(payload.remove(0), 0xee, "what was there stays");
    let (mut page, mut plain) = (old.to_vec(), Vec::new());
    let ranges = diff::encode(old, new, &mut plain);
    match found {
        Difference::Ranges(count) => assert!(count == ranges && payload == plain),
        Difference::Change => apply(&mut page, &payload).unwrap(),
    }
    if found == Difference::Change {
        assert!(page == new, "came out different");
        // An operation stores the whole inserted cell. Ranges can be shorter if an earlier cell has left the same bytes
        // at the place of the new cell.
        assert!(payload.len() < plain.len() || payload[0] & 0x0f == KIND_CELLS && payload.len() <= new.len());
    }
    (found == Difference::Change).then_some(payload)
}

#[test]
fn rows_that_slide_are_changes_and_rows_in_place_or_at_the_end_are_ranges() {
    let old = filled(4096, 0, 50);
    let changed = |change: &dyn Fn(&mut Tree<&mut [u8]>)| {
        let mut new = old.clone();
        change(&mut Tree::new(&mut new[..], 0).unwrap());
        rearranged_round_trip(&old, &new, 0)
    };
    let row = cell(7, 50);
    assert_eq!(changed(&|tree| tree.drop_cell(0, true).unwrap()).map(|payload| payload.len()), Some(5));
    assert_eq!(changed(&|tree| tree.drop_cell(49, true).unwrap()).map(|payload| payload.len()), Some(5));
    let inserted = changed(&|tree| tree.insert(9, None, &row).unwrap()).unwrap();
    assert_eq!(inserted.len(), 5 + row.len());
    assert_eq!(changed(&|tree| tree.insert(50, None, &row).unwrap()), None, "at the end");
    let at = Tree::new(&old[..], 0).unwrap().pointer(20);
    assert_eq!(changed(&|tree| tree.bytes[at + 2..at + 40].fill(9)), None, "in place");
    assert_eq!(changed(&|_| ()), None, "nothing");
}

/// Returns a page, and another page with the same cells in other places.
fn in_another_order() -> (Vec<u8>, Vec<u8>) {
    let rows: Vec<Vec<u8>> = (0..20).map(|row| cell(row, 60 + usize::from(row))).collect();
    let (mut old, mut new) = (empty(4096, 0), empty(4096, 0));
    for (slot, row) in rows.iter().enumerate() {
        insert(&mut old, 0, slot, row).unwrap();
        insert(&mut new, 0, 0, &rows[rows.len() - 1 - slot]).unwrap();
    }
    (old, new)
}

#[test]
fn many_rows_that_are_elsewhere_are_moves() {
    let (old, new) = in_another_order();
    let payload = rearranged_round_trip(&old, &new, 0).unwrap();
    assert!(payload[0] == KIND_MOVES && payload.len() < 200, "{}", payload.len());
}

#[test]
fn kinds_have_names() {
    let names = ChangeKind::ALL.map(ChangeKind::as_str);
    assert_eq!(names, ["cells", "moves", "ranges", "whole"]);
}

#[test]
fn first_bytes_say_the_kind() {
    for (byte, expected) in [
        (KIND_CELLS, ChangeKind::Cells),
        (KIND_CELLS | PAGE_ONE, ChangeKind::Cells),
        (KIND_CELLS | PAGE_ONE | ZEROED, ChangeKind::Cells),
        (KIND_MOVES, ChangeKind::Moves),
        (KIND_RANGES, ChangeKind::Ranges),
        (KIND_WHOLE, ChangeKind::Whole),
    ] {
        assert_eq!(kind(&[byte, 9]), Ok(expected));
    }
    for byte in [0, 5, 0x12, 0x23, 0x41, 0x81, 0xff] {
        assert_eq!(kind(&[byte]), Err(DAMAGED));
    }
    assert!(kind(&[]).is_err());
}

#[test]
fn no_change_is_one_byte() {
    assert_eq!(round_trip(&[7; 512], &[7; 512], 0), (ChangeKind::Ranges, vec![KIND_RANGES]));
}

#[test]
fn a_page_of_zeros_is_one_byte() {
    assert_eq!(round_trip(&[7; 65536], &[0; 65536], 0), (ChangeKind::Whole, vec![KIND_WHOLE]));
}

#[test]
fn a_whole_page_needs_no_older_one() {
    let new = filled(4096, 0, 5);
    let mut payload = Vec::new();
    encode_whole(&new, &mut payload);
    assert!(payload.len() < 230);
    for older in [0, 0xff] {
        let mut page = vec![older; 4096];
        apply(&mut page, &payload).unwrap();
        assert!(page == new);
    }
}

#[test]
fn an_inserted_row_is_a_slot_and_a_cell() {
    for (page_bytes, header, first) in
        [(512, 0, KIND_CELLS), (4096, 100, KIND_CELLS | PAGE_ONE), (65536, 0, KIND_CELLS)]
    {
        let old = filled(page_bytes, header, 7);
        let mut new = old.clone();
        let row = cell(9, 50);
        insert(&mut new, header, 3, &row).unwrap();
        let expected = [&[first, 1, cells::OP_INSERT, 3, 51][..], &row].concat();
        assert_eq!(round_trip(&old, &new, header), (ChangeKind::Cells, expected));
    }
}

#[test]
fn deleted_rows_are_a_slot_and_a_count() {
    let old = filled(4096, 0, 50);
    for zeroing in [false, true] {
        let mut new = old.clone();
        for slot in [22, 21, 20, 7] {
            Tree::new(&mut new[..], 0).unwrap().drop_cell(slot, zeroing).unwrap();
        }
        let first = KIND_CELLS | if zeroing { ZEROED } else { 0 };
        let delete = cells::OP_DELETE;
        assert_eq!(
            round_trip(&old, &new, 0),
            (ChangeKind::Cells, vec![first, 2, delete, 20, 2, delete, 7, 0])
        );
    }
}

#[test]
fn a_row_that_grew_is_what_is_new_of_it() {
    let old = filled(4096, 0, 50);
    let mut new = old.clone();
    let mut row = Tree::new(&old[..], 0).unwrap().cell(11).unwrap().to_vec();
    row.splice(12..12, [0xaa; 3]);
    row[0] += 3;
    let mut tree = Tree::new(&mut new[..], 0).unwrap();
    tree.drop_cell(11, false).unwrap();
    tree.insert(11, None, &row).unwrap();
    let head = [KIND_CELLS, 1, cells::OP_REPLACE, 11, 42, 28, 8];
    let expected = [&head[..], &[0, 0, 41, 11, 2, 0xaa, 0xaa, 0xaa]].concat();
    assert_eq!(round_trip(&old, &new, 0), (ChangeKind::Cells, expected));
}

#[test]
fn a_page_that_was_packed_by_an_insert_is_that_insert() {
    let mut old = filled(4096, 0, 90);
    for slot in [70, 50, 30, 10] {
        Tree::new(&mut old[..], 0).unwrap().drop_cell(slot, false).unwrap();
    }
    while insert(&mut old, 0, 5, &cell(1, 42)).is_some() && Tree::new(&old[..], 0).unwrap().content() > 250 {}
    let mut new = old.clone();
    insert(&mut new, 0, 33, &cell(99, 100)).unwrap();
    assert_ne!(old[4090..], [0; 6]);
    let (as_kind, payload) = round_trip(&old, &new, 0);
    assert_eq!((as_kind, payload.len()), (ChangeKind::Cells, 5 + 102));
}

#[test]
fn cells_in_another_order_are_moves() {
    let (old, new) = in_another_order();
    let (as_kind, payload) = round_trip(&old, &new, 0);
    assert_eq!(as_kind, ChangeKind::Moves);
    assert!(payload.len() < 200, "{}", payload.len());
}

#[test]
fn operations_on_what_is_no_tree_are_refused() {
    let insert = [KIND_CELLS, 1, cells::OP_INSERT, 0, 3, 2, 1, 1, 1];
    let mut page = empty(512, 0);
    assert_eq!(apply(&mut page, &insert), Ok(()));
    assert!(apply(&mut vec![0; 512], &insert).is_err());
    assert!(apply(&mut empty(512, 0), &[KIND_CELLS | PAGE_ONE, 0]).is_err());
    assert!(apply(&mut [], &insert).is_err());
}

/// A change of a page that a test makes: the kind of change, the place, the row of the cell, and the cell's length.
type Act = (u8, Index, u8, usize);

fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec((0_u8..6, any::<Index>(), any::<u8>(), 0_usize..100), 0..most)
}

/// Applies the changes to a page: inserts, deletes and replaces cells if the page has space, and sometimes
/// changes a byte.
fn act(page: &mut [u8], header: usize, zeroing: bool, acts: &[Act]) {
    for (what, place, row, length) in acts {
        let end = page.len();
        let Some(mut tree) = Tree::new(&mut *page, header) else { return };
        let new = cell(*row, *length.max(&2));
        let cells = tree.cells();
        let may_insert = tree.place(new.len()).is_some();
        match what {
            0..=2 if may_insert => tree.insert(place.index(cells + 1), None, &new),
            3 if cells > 0 => tree.drop_cell(place.index(cells), zeroing),
            4 if cells > 0 => {
                let slot = place.index(cells);
                let kept = tree.cell(slot).map(<[u8]>::to_vec);
                let dropped = tree.drop_cell(slot, zeroing);
                let cell = if tree.place(new.len()).is_some() { Some(new) } else { kept };
                dropped.and(cell).and_then(|cell| tree.insert(slot, None, &cell))
            }
            5 => {
                page[place.index(end)] ^= row;
                Some(())
            }
            _ => Some(()),
        };
    }
}

proptest! {
    #[test]
    fn any_two_pages(
        page_bytes in prop::sample::select(vec![512_usize, 1024, 4096, 65536]),
        first in prop::collection::vec((any::<Index>(), 1_usize..200, any::<u8>()), 0..20),
        second in prop::collection::vec((any::<Index>(), 1_usize..200, any::<u8>()), 0..20),
        header in prop::sample::select(vec![0_usize, 100]),
        kind in prop::sample::select(vec![0_u8, 2, 5, 10, 13]),
    ) {
        let lay = |page: &mut [u8], pieces: &[(Index, usize, u8)]| for (at, length, byte) in pieces {
            let at = at.index(page.len());
            page.iter_mut().skip(at).take(*length).for_each(|slot| *slot = slot.wrapping_add(*byte));
        };
        let mut old = vec![0; page_bytes];
        lay(&mut old, &first);
        let mut new = old.clone();
        lay(&mut new, &second);
        (old[header], new[header]) = (kind, kind);
        round_trip(&old, &new, header);
        round_trip(&new, &old, header);
        rearranged_round_trip(&old, &new, header);
    }

    #[test]
    fn what_is_done_to_trees(
        page_bytes in prop::sample::select(vec![512_usize, 1024, 4096, 65536]),
        header in prop::sample::select(vec![0_usize, 100]),
        zeroing in any::<bool>(),
        before in acts(60),
        after in acts(12),
    ) {
        let mut old = empty(page_bytes, header);
        act(&mut old, header, zeroing, &before);
        let mut new = old.clone();
        act(&mut new, header, zeroing, &after);
        round_trip(&old, &new, header);
        rearranged_round_trip(&old, &new, header);
    }

    #[test]
    fn one_row_costs_itself_and_few_bytes(
        before in acts(60),
        place in any::<Index>(),
        length in 2_usize..100,
        what in 0_u8..4,
    ) {
        let sound: Vec<Act> = before.into_iter().filter(|act| act.0 < 5).collect();
        let mut old = empty(4096, 0);
        act(&mut old, 0, false, &sound);
        let mut new = old.clone();
        act(&mut new, 0, false, &[(what, place, 77, length)]);
        let (_, payload) = round_trip(&old, &new, 0);
        prop_assert!(payload.len() <= if what == 3 { 10 } else { length + 9 }, "{}", payload.len());
    }

    #[test]
    fn any_bytes_are_refused_or_applied(
        first in prop::sample::select(vec![1_u8, 0x11, 0x21, 2, 3, 4]),
        rest in prop::collection::vec(0_u8..140, 0..99),
        before in acts(30),
    ) {
        let mut page = empty(512, 0);
        act(&mut page, 0, false, &before);
        let _ = apply(&mut page, &[&[first][..], &rest].concat());
        let _ = apply(&mut page, &rest);
    }

    #[test]
    fn a_damaged_payload_is_refused_or_applied(
        before in acts(60),
        after in acts(12),
        at in any::<Index>(),
        flip in 1_u8..,
        cut in any::<Index>(),
    ) {
        let mut old = empty(1024, 0);
        act(&mut old, 0, false, &before);
        let mut new = old.clone();
        act(&mut new, 0, false, &after);
        let (_, mut payload) = round_trip(&old, &new, 0);
        let _ = apply(&mut old.clone(), &payload[..cut.index(payload.len())]);
        let at = at.index(payload.len());
        payload[at] ^= flip;
        let _ = apply(&mut old, &payload);
    }
}

/// Returns a table leaf with these pointers.
fn leaf(pointers: &[u16]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[0] = 13;
    page[4] = pointers.len() as u8;
    page[5..7].copy_from_slice(&1000_u16.to_be_bytes());
    for (place, pointer) in page[8..].chunks_exact_mut(2).zip(pointers) {
        place.copy_from_slice(&pointer.to_be_bytes());
    }
    page
}

fn seen(old: &[u16], new: &[u16]) -> Rearranged {
    rearranged(&leaf(old), &leaf(new), 0)
}

#[test]
fn cells_at_the_end_and_in_their_places_are_not_looked_at() {
    assert_eq!(seen(&[4000, 3900], &[4000, 3900]), Rearranged::Hardly);
    assert_eq!(seen(&[4000, 3900], &[4000, 3900, 3800, 3700]), Rearranged::Hardly);
    assert_eq!(seen(&[], &[4000]), Rearranged::Hardly);
    assert_eq!(rearranged(&[9; 512], &[8; 512], 0), Rearranged::Hardly);
    let mut other = leaf(&[4000]);
    other[0] = 10;
    assert_eq!(rearranged(&leaf(&[4000, 3900]), &other, 0), Rearranged::Hardly);
}

#[test]
fn few_that_came_went_or_were_put_elsewhere_are() {
    let old = [4000, 3900, 3800, 3700, 3600, 3500];
    for new in [
        &[3900, 3800, 3700, 3600, 3500][..],
        &[4000, 3900, 3800, 3700, 3600],
        &[4000, 3900, 3400, 3800, 3700, 3600, 3500],
        &[4000, 3900, 3400, 3700, 3600, 3500],
        &[4000, 3500],
    ] {
        assert_eq!(seen(&old, new), Rearranged::Few, "{new:?}");
    }
    assert_eq!(seen(&old, &[4000]), Rearranged::Many);
    assert_eq!(seen(&old, &[4001, 3901, 3801, 3701, 3601, 3501]), Rearranged::Many);
}
