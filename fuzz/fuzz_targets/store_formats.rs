//! What the store reads from its media. Any bytes must be decoded or refused, and what was encoded must
//! decode to the same.
#![no_main]

use duralite_store::format::{
    Batch, BatchList, Change, DiskHead, DiskSlot, NvHead, Object, PageFileHead, PageKind, RingsHead,
    SMALLEST_PAGE, Undo, cell, cell_count, cell_key, check, child_at, child_for, first_clear, free_bytes,
    kind, leaf_value, payload, seal, seal_object, search, validate,
};
use libfuzzer_sys::fuzz_target;

const SEED: u64 = 5;

fuzz_target!(|data: &[u8]| {
    heads(data);
    object(data);
    page(data);
});

fn heads(data: &[u8]) {
    if let Ok(head) = NvHead::decode(data) {
        assert_eq!(NvHead::decode(&head.encode()), Ok(head));
    }
    if let Ok(head) = RingsHead::decode(data) {
        assert_eq!(RingsHead::decode(&head.encode()), Ok(head));
    }
    if let Ok(head) = DiskHead::decode(data) {
        assert_eq!(DiskHead::decode(&head.encode()), Ok(head));
    }
    if let Ok(head) = PageFileHead::decode(data) {
        assert_eq!(PageFileHead::decode(&head.encode()), Ok(head));
    }
    let _ = (BatchList::decode(data, SEED), DiskSlot::decode(data, SEED));
    if let Some(batch) = Batch::claimed(data, 0) {
        let _ = batch.is_whole(data, SEED);
    }
}

/// The input as an object with a correct checksum.
fn object(data: &[u8]) {
    let mut bytes = data.to_vec();
    if bytes.len() >= 48 {
        let len = bytes.len() as u32;
        bytes[36..40].copy_from_slice(&len.to_le_bytes());
        seal_object(&mut bytes, 3, 1, SEED);
    }
    let Ok(object) = Object::decode(&bytes, SEED) else { return };
    let _ = (object.undo(), object.time_ns());
    let mut page = [0; SMALLEST_PAGE];
    for change in object.changes() {
        let Ok((_, change)) = change else { break };
        let _ = change.apply(&mut page);
    }
    if let Ok(Some(undo)) = object.undo() {
        let mut again = Vec::new();
        undo.encode(&mut again);
        assert_eq!(Undo::decode(&again).ok(), Some(undo));
    }
}

/// The input as a page, and as changes of a page.
fn page(data: &[u8]) {
    let mut page = data.to_vec();
    page.resize(SMALLEST_PAGE, 0);
    seal(&mut page, 9, SEED);
    let _ =
        (check(&page, 9, SEED), validate(&page), free_bytes(&page), payload(&page), first_clear(&page, 3));
    let kind_of = kind(&page);
    for index in 0..cell_count(&page) {
        let Ok(cell) = cell(&page, index) else { break };
        let _ = leaf_value(cell);
        if let Ok(key) = cell_key(kind_of, cell) {
            let _ = (search(&page, key), child_for(&page, key));
        }
        if kind_of == PageKind::Inner {
            let _ = child_at(&page, index);
        }
    }
    let mut rest = data;
    while let Ok(Some((_, change))) = Change::decode(&mut rest) {
        let was_valid = validate(&page).is_ok();
        if change.apply(&mut page).is_ok() && was_valid && !matches!(change, Change::Image { .. }) {
            let _ = validate(&page);
        }
    }
}
