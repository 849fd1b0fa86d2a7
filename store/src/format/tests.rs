use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn empty(kind: PageKind) -> Vec<u8> {
    let mut page = vec![0; SMALLEST_PAGE];
    blank(&mut page, kind, 0);
    page
}

fn rows(page: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..cell_count(page))
        .map(|index| {
            let cell = cell(page, index).unwrap();
            let Value::Inline(value) = leaf_value(cell).unwrap() else { panic!("no long values here") };
            (cell_key(PageKind::Leaf, cell).unwrap().to_vec(), value.to_vec())
        })
        .collect()
}

proptest! {
    #[test]
    fn a_leaf_is_a_map(steps in proptest::collection::vec((0_u8..40, 0_usize..300, 0_u8..8), 0..200)) {
        let mut page = empty(PageKind::Leaf);
        let mut model = BTreeMap::new();
        for (key, len, what) in steps {
            let (key, value) = (vec![key; 1 + usize::from(key) % 5], vec![key; len]);
            let mut next = model.clone();
            let cell = leaf_cell(&key, Value::Inline(&value));
            let change = match what {
                0..=5 => {
                    next.insert(key.clone(), value.clone());
                    Change::Put { cell: &cell }
                }
                6 => {
                    next.remove(&key);
                    Change::Remove { key: &key }
                }
                _ => {
                    next.retain(|other, _| *other < key);
                    Change::Cut { key: &key }
                }
            };
            let old = model.get(&key).map_or(0, |old: &Vec<u8>| LEAF_CELL_HEAD + key.len() + old.len() + 2);
            if what <= 5 && free_bytes(&page) + old < cell.len() + 2 {
                continue;
            }
            change.apply(&mut page).unwrap();
            model = next;
            validate(&page).unwrap();
            prop_assert_eq!(&rows(&page), &model);
            let mut again = vec![0xAA; SMALLEST_PAGE];
            Change::image_of(&page).apply(&mut again).unwrap();
            prop_assert_eq!(rows(&again), rows(&page));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4200), key in any::<u8>()) {
        let _ = validate(&bytes);
        let _ = (kind(&bytes), level(&bytes), payload(&bytes), free_bytes(&bytes));
        let _ = search(&bytes, &[key]);
        let _ = (NvHead::decode(&bytes), DiskHead::decode(&bytes), PageFileHead::decode(&bytes));
        let _ = RingsHead::decode(&bytes);
        let _ = (BatchList::decode(&bytes, 1), DiskSlot::decode(&bytes, 1), Batch::claimed(&bytes, 0));
        let _ = Object::decode(&bytes, 1).map(|object| object.changes().count());
        let mut rest = bytes.as_slice();
        let mut page = bytes.clone();
        page.resize(SMALLEST_PAGE, 0);
        while let Ok(Some((_, change))) = Change::decode(&mut rest) {
            let _ = change.apply(&mut page);
        }
        let cell = leaf_cell(&[key], Value::Inline(&[key; 9]));
        if page.len() > 24 {
            // Makes the page an inner page or a leaf, so that many of the changes below apply to it.
            page[24] = 2 + key % 2;
        }
        for change in [Change::Put { cell: &cell }, Change::Remove { key: &[key] }, Change::Cut { key: &[key] }] {
            let _ = change.apply(&mut page);
        }
    }
}

#[test]
fn an_object_says_what_it_was_built_of() {
    let undo = Undo::Row { root: 7, key: b"key", old: Some(b"old") };
    let mut body = Vec::new();
    undo.encode(&mut body);
    let changes = [(9, Change::Remove { key: b"key" }), (10, Change::MapSet { bit: 3 })];
    let mut bytes = Object::build(ObjectKind::Update, 5, 4, &body, &changes);
    claim_durable(&mut bytes, 6, 4);
    seal_object(&mut bytes, 6, 2, 99);
    let object = Object::decode(&bytes, 99).unwrap();
    assert_eq!((object.header.lsn, object.header.tx, object.header.previous), (6, 5, 4));
    assert_eq!(object.undo().unwrap(), Some(undo));
    assert_eq!(object.changes().collect::<Result<Vec<_>, _>>().unwrap(), changes);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(Object::decode(&damaged, 99).is_err(), "byte {at}");
    }
}

#[test]
fn an_object_of_a_bulk_load_says_what_it_was_built_of() {
    let undo = Undo::Pages { first: 700, count: 64 };
    let mut body = Vec::new();
    undo.encode(&mut body);
    let changes =
        [(9, Change::MapSetRun { bit: 3, count: 64 }), (10, Change::MapClearRun { bit: 70, count: 1 })];
    let mut bytes = Object::build(ObjectKind::Update, 5, 4, &body, &changes);
    seal_object(&mut bytes, 6, 2, 99);
    let object = Object::decode(&bytes, 99).unwrap();
    assert_eq!(object.undo().unwrap(), Some(undo));
    assert_eq!(object.changes().collect::<Result<Vec<_>, _>>().unwrap(), changes);
    assert!(Undo::decode(&body[..body.len() - 1]).is_err());
    let with_superblock = [&[COMMIT_OF_PAGES_AT_HOME][..], &9_u64.to_le_bytes()].concat();
    for (end, leads_home, superblock) in
        [(vec![], false, 0), (vec![COMMIT_OF_PAGES_AT_HOME], true, 0), (with_superblock, true, 9)]
    {
        let body = [7_u64.to_le_bytes().to_vec(), end].concat();
        let mut bytes = Object::build(ObjectKind::Commit, 5, 4, &body, &[]);
        seal_object(&mut bytes, 6, 2, 99);
        let object = Object::decode(&bytes, 99).unwrap();
        assert_eq!((object.time_ns(), object.leads_to_pages_at_home()), (7, leads_home));
        assert_eq!(object.needed_superblock(), superblock);
    }
}

#[test]
fn heads_are_found_again_and_damage_in_them_is() {
    let head = NvHead { seed: 1, entries: 8192, extent_bytes: 65536, extents: 9, first_lsn: 3 };
    assert_eq!(NvHead::decode(&head.encode()), Ok(head));
    let rings = RingsHead { seed: 7, rings: 16, ring_bytes: 1 << 20, first_lsn: 4 };
    assert_eq!(RingsHead::decode(&rings.encode()), Ok(rings));
    let disk = DiskHead { seed: 2, circle_bytes: 1 << 20, block_bytes: 4096 };
    assert_eq!(DiskHead::decode(&disk.encode()), Ok(disk));
    let slot = DiskSlot { number: 1, head: 2, place: 4096, epoch: 3, began: 8192 };
    assert_eq!(DiskSlot::decode(&slot.encode(8), 8), Some(slot));
    assert_eq!(DiskSlot::decode(&slot.encode(8), 9), None);
    let file = PageFileHead {
        number: 1,
        store_id: [4; 16],
        page_bytes: 8192,
        log_kind: 2,
        log_seed: 5,
        log_first: 1,
        last_tx: 9,
        opened: 1,
        home: 6,
    };
    assert_eq!(PageFileHead::decode(&file.encode()), Ok(file));
    let list = BatchList { pages: vec![3, 9, 70] };
    assert_eq!(BatchList::decode(&list.encode(4096, 6), 6), Some(list));
    let mut damaged = head.encode();
    damaged[20] ^= 1;
    assert!(NvHead::decode(&damaged).is_err());
}

#[test]
fn a_batch_is_whole_at_its_place_only() {
    let mut bytes = vec![7; BATCH_HEADER_BYTES + 100];
    let batch =
        Batch { first_lsn: 5, objects: 1, bytes: 100, epoch: 1, place: 8192, durable: 4, block_bytes: 512 };
    batch.seal(&mut bytes, 3);
    let claimed = Batch::claimed(&bytes, 8192).unwrap();
    assert_eq!(claimed, batch);
    assert!(claimed.is_whole(&bytes, 3) && !claimed.is_whole(&bytes, 4));
    assert_eq!(Batch::claimed(&bytes, 4096), None);
    bytes[BATCH_HEADER_BYTES + 50] ^= 1;
    assert!(!claimed.is_whole(&bytes, 3));
}

#[test]
fn maps_find_the_first_free_page() {
    let mut map = empty(PageKind::SpaceMap);
    map[28..32].fill(0);
    for bit in 0..20 {
        Change::MapSet { bit }.apply(&mut map).unwrap();
    }
    assert_eq!((first_clear(&map, 0), first_clear(&map, 25), pages_in_use(&map)), (Some(20), Some(25), 20));
    Change::MapClear { bit: 9 }.apply(&mut map).unwrap();
    assert_eq!(
        (first_clear(&map, 0), first_clear(&map, 9), first_clear(&map, 10)),
        (Some(9), Some(9), Some(20))
    );
    assert!(!is_set(&map, 9) && is_set(&map, 10));
    assert!(Change::MapSet { bit: bits_of(SMALLEST_PAGE) as u32 }.apply(&mut map).is_err());
}

#[test]
fn pages_beside_each_other_are_taken_and_given_back_at_once() {
    let mut map = empty(PageKind::SpaceMap);
    map[28..32].fill(0);
    Change::MapSetRun { bit: 5, count: 40 }.apply(&mut map).unwrap();
    assert_eq!((pages_in_use(&map), first_clear(&map, 5)), (40, Some(45)));
    Change::MapClearRun { bit: 20, count: 25 }.apply(&mut map).unwrap();
    assert_eq!((pages_in_use(&map), first_clear(&map, 5)), (15, Some(20)));
    let bits = bits_of(SMALLEST_PAGE) as u32;
    assert!(Change::MapSetRun { bit: bits - 1, count: 2 }.apply(&mut map).is_err());
    assert!(Change::MapSetRun { bit: 1, count: u32::MAX }.apply(&mut map).is_err());
    Change::MapSetRun { bit: bits - 1, count: 1 }.apply(&mut map).unwrap();
}

#[test]
fn a_page_that_is_built_in_order_is_as_if_its_cells_had_been_put() {
    let (mut put, mut built) = (empty(PageKind::Leaf), empty(PageKind::Leaf));
    for n in 0.. {
        let (key, value) = ([n], vec![n; usize::from(n) * 3]);
        let cell = leaf_cell(&key, Value::Inline(&value));
        let pushed = push_cell(&mut built, &[&leaf_cell_head(&key, &value), &key, &value]);
        let done = Change::Put { cell: &cell }.apply(&mut put);
        assert_eq!((pushed.is_ok(), &built), (done.is_ok(), &put), "{n}");
        if done.is_err() {
            assert!(free_bytes(&built) < cell.len() + 2 && n > 20);
            break;
        }
    }
    validate(&built).unwrap();
}
