use super::*;
use crate::head::LogHead;
use crate::record::{Base, RecordHeader, TxHash};
use crate::{FormatError, LogId};

const ID: LogId = LogId([7; 16]);

fn superblock() -> Superblock {
    Superblock {
        head: LogHead {
            page_bytes: 4096,
            log_id: ID,
            db_inode: 12,
            db_birth_ns: 34,
            path: b"/data/app.db".to_vec(),
            made_in: None,
        },
        region: RegionId([5; 16]),
        limit_pages: 9,
        region_dir: b"/dev/shm".to_vec(),
    }
}

fn file_of(superblock: &Superblock) -> Vec<u8> {
    let (head, reference) = superblock.encode();
    let mut file = vec![0; SUPERBLOCK_BYTES as usize];
    file[..head.len()].copy_from_slice(&head);
    file[REFERENCE_OFFSET as usize..][..reference.len()].copy_from_slice(&reference);
    file
}

#[test]
fn the_file_of_a_log_round_trips_and_every_flipped_bit_is_refused() {
    let good = file_of(&superblock());
    assert_eq!(Superblock::decode(&good), Ok(superblock()));
    let checked = (0..crate::head::CHECKED_BYTES + 8).chain(2048..2048 + 1038);
    for at in checked {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        assert!(Superblock::decode(&bad).is_err(), "byte {at}");
    }
    let far = Superblock { region_dir: vec![b'x'; crate::PATH_LIMIT + 1], ..superblock() };
    assert_eq!(Superblock::decode(&file_of(&far)), Ok(Superblock { region_dir: Vec::new(), ..far }));
    assert!(matches!(Superblock::decode(&good[..4095]), Err(FormatError::Short { .. })));
}

#[test]
fn the_changing_words_of_a_file_do_not_overlap() {
    let slots = [slot_offset(0), slot_offset(1)].map(|at| (at, SLOT_BYTES as u64));
    let origins = [origin_offset(0), origin_offset(1)].map(|at| (at, 32));
    let links = [first_link_offset(0), first_link_offset(1)].map(|at| (at, 8));
    let journal = [JOURNAL_CHAIN_OFFSET, JOURNAL_STATE_OFFSET, JOURNAL_CHANGES_OFFSET].map(|at| (at, 8));
    let mut all = vec![(ACTIVE_OFFSET, 8), (COUNTED_OFFSET, 8)];
    all.extend(journal);
    all.extend(slots.into_iter().chain(origins).chain(links));
    all.push((REFERENCE_OFFSET, 8 + crate::PATH_LIMIT as u64 + 8));
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{all:?}");
    assert_eq!(JOURNAL_CHAIN_OFFSET / 64, JOURNAL_STATE_OFFSET / 64);
}

#[test]
fn a_region_round_trips_and_every_flipped_bit_is_refused() {
    let region = RegionSuperblock::for_bytes(RegionId([4; 16]), 64 << 20);
    assert_eq!((region.limit_pages, region.limit_bytes()), (16384, 64 << 20));
    let good = region.encode();
    assert_eq!(RegionSuperblock::decode(&good), Ok(region));
    for at in 0..REGION_SUPERBLOCK_BYTES {
        for bit in 0..8 {
            let mut bad = good;
            bad[at] ^= 1 << bit;
            assert!(RegionSuperblock::decode(&bad).is_err(), "byte {at}, bit {bit}");
        }
    }
    assert!(matches!(RegionSuperblock::decode(&good[..47]), Err(FormatError::Short { .. })));
}

#[test]
fn a_page_header_belongs_to_its_log_and_its_page() {
    let header = PageHeader { kind: Kind::Redo, generation: 1 << 40, transaction: 3, index: 2 };
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(&Owner::of(ID).word(9).to_le_bytes());
    bytes[8..].copy_from_slice(&header.encode(ID, 77));
    let (read, tag) = PageHeader::decode(&bytes, ID, 77).unwrap();
    assert_eq!((read, tag), (header, header.tag(ID, 77)));
    assert_eq!(PageHeader::decode(&bytes, ID, 78), None);
    assert_eq!(PageHeader::decode(&bytes, LogId([8; 16]), 77), None);
    for at in 8..32 {
        let mut bad = bytes;
        bad[at] ^= 4;
        assert_eq!(PageHeader::decode(&bad, ID, 77), None, "byte {at}");
    }
    let word = link_word(5, tag);
    assert_eq!(
        (read_link(word, tag, 6), read_link(word, tag, 5), read_link(0, tag, 6)),
        (Some(5), None, None)
    );
    for bit in 0..64 {
        assert_eq!(read_link(word ^ 1 << bit, tag, u32::MAX), None, "bit {bit}");
    }
}

#[test]
fn an_owner_is_never_nobody_and_knows_its_own_words() {
    for id in [LogId([0; 16]), LogId([1; 16]), LogId([255; 16])] {
        let owner = Owner::of(id);
        for slot in [0, 1, 127, 255] {
            let word = owner.word(slot);
            assert_ne!(word, 0);
            assert_eq!((Owner::in_word(word), Owner::slot_in(word)), (Some(owner), slot));
        }
        assert!(owner.number() > 0 && owner.number() < 1 << 56);
    }
    assert_eq!(Owner::in_word(0), None);
}

#[test]
fn changes_say_how_long_they_are() {
    assert_eq!(read_change_word(change_word(64)), Some(64));
    for bit in 0..64 {
        assert_eq!(read_change_word(change_word(99) ^ 1 << bit), None, "bit {bit}");
    }
    let record = RecordHeader { record_bytes: 49, frame: 1, page_number: 2, ranges: 3, base: Base::Zeros };
    let header = change_header(4, &record, TxHash::new(ID, 1, 4));
    assert_eq!(RecordHeader::decode(header[16..].try_into().unwrap()), Ok(record));
    assert_eq!((entry_bytes(48), entry_bytes(49)), (64, 128));
}

#[test]
fn a_commit_belongs_to_its_log_generation_and_transaction() {
    let header =
        TxHeader { hash: 1, elapsed_ms: 8, last_frame: 3, db_pages: 4, records: 5, wal_checksum: [6, 7] };
    let commit = CommitEntry { header, generation: 9, transaction: 2, pages: 1 };
    let line = commit.encode(ID);
    assert_eq!(u64::from_le_bytes(line[..8].try_into().unwrap()), committing_mark(ID, 9, 2));
    assert_eq!(CommitEntry::decode(&line, ID, 9, 2), Some(commit));
    let others = [(LogId([1; 16]), 9, 2), (ID, 8, 2), (ID, 9, 3)];
    for (id, generation, transaction) in others {
        assert_eq!(CommitEntry::decode(&line, id, generation, transaction), None);
        assert_ne!(committed_mark(id, generation, transaction), committed_mark(ID, 9, 2));
    }
    for at in 8..64 {
        let mut bad = line;
        bad[at] ^= 0x40;
        assert_eq!(CommitEntry::decode(&bad, ID, 9, 2), None, "byte {at}");
    }
    let [from, to] = [committing_mark(ID, 9, 2), committed_mark(ID, 9, 2)];
    assert!((from ^ to).count_ones() > 4);
}

#[test]
fn the_state_of_a_journal_belongs_to_its_chain() {
    let chain = UndoChain { first: 3, number: 8 };
    assert_eq!(UndoChain::read(chain.word()), chain);
    for state in [UndoState::Gone, UndoState::Bytes(0), UndoState::Bytes(JOURNAL_LIMIT - 1)] {
        let word = state.word(ID, chain);
        assert_eq!(UndoState::read(word, ID, chain), Ok(state));
        assert_eq!(word == 0, state == UndoState::Gone);
    }
    let word = UndoState::Bytes(5120).word(ID, chain);
    for other in [UndoChain { first: 4, ..chain }, UndoChain { number: 9, ..chain }] {
        assert!(UndoState::read(word, ID, other).is_err());
    }
    assert!(UndoState::read(word ^ 1 << 30, ID, chain).is_err());
}
