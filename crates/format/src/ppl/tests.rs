//! The layouts of `ppl`.

use super::*;
use crate::LogId;
use crate::bytes::put;
use crate::head::LogHead;

const ID: LogId = LogId([7; 16]);

fn superblock(sector_bytes: u32) -> Superblock {
    Superblock {
        head: LogHead {
            page_bytes: 4096,
            log_id: ID,
            db_inode: 5,
            db_birth_ns: 6,
            path: b"/tmp/app.db".to_vec(),
            made_in: None,
        },
        sector_bytes,
        limit_chunks: 300,
        usual_chunks: 300,
        slots: 64,
        buckets: 1024,
    }
}

#[test]
fn more_slots_than_users_can_own_are_refused() {
    for (slots, is_good) in [(0, false), (1, true), (MOST_SLOTS, true), (MOST_SLOTS + 1, false)] {
        let mut bytes = Superblock { slots, ..superblock(4096) }.encode();
        bytes.resize(SUPERBLOCK_BYTES as usize, 0);
        assert_eq!(Superblock::decode(&bytes).is_ok(), is_good, "{slots}");
    }
}

#[test]
fn a_superblock_round_trips_and_every_flipped_bit_is_noticed() {
    let superblock = superblock(4096);
    let mut bytes = superblock.encode();
    bytes.resize(SUPERBLOCK_BYTES as usize, 0);
    assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    for bit in 0..8 * 1096 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A log of an earlier build has zeros at `USUAL_OFFSET`, because that build did not store a usual size.
#[test]
fn the_usual_size_of_a_log_is_checked_and_is_the_limit_if_it_is_not_there() {
    let bytes_of = |limit_chunks, usual_chunks| {
        let mut bytes = Superblock { limit_chunks, usual_chunks, ..superblock(4096) }.encode();
        bytes.resize(SUPERBLOCK_BYTES as usize, 0);
        bytes
    };
    let mut bytes = bytes_of(NO_LIMIT_CHUNKS, 300);
    assert_eq!(Superblock::decode(&bytes).map(|it| it.usual_chunks), Ok(300));
    for bit in 8 * USUAL_OFFSET..8 * (USUAL_OFFSET + 8) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(bytes_of(300, 300)[USUAL_OFFSET..USUAL_OFFSET + 8], [0; 8]);
    for (limit, usual) in [(300, 301), (300, 0)] {
        assert!(Superblock::decode(&bytes_of(limit, usual)).is_err(), "{usual} of {limit}");
    }
}

#[test]
fn parts_of_a_log_do_not_overlap() {
    for sector_bytes in [4096, 8192, 12288] {
        let geometry = superblock(sector_bytes).geometry();
        let mut parts: Vec<(u64, u64)> = vec![(0, SUPERBLOCK_BYTES)];
        parts.push((TRANSACTIONS_OFFSET, TRANSACTIONS * TRANSACTION_BYTES as u64));
        parts.extend((0..64).map(|slot| (geometry.slot_offset(slot), geometry.slot_bytes)));
        parts.push((geometry.buckets_offset, 8 * 1024));
        for chunk in 0..3 {
            for extent in geometry.extents_of(chunk) {
                assert!(geometry.has(extent, chunk + 1) && !geometry.has(extent, chunk));
                parts.push((geometry.state_offset(extent), STATE_BYTES));
                parts.push((geometry.extent_offset(extent), u64::from(geometry.extent_bytes(extent))));
            }
        }
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{sector_bytes}");
        let (last, bytes) = parts[parts.len() - 1];
        assert!(last + bytes <= geometry.file_bytes(3));
        for page in 0..5000 {
            let at = geometry.bucket_offset(page);
            assert!(geometry.buckets_offset <= at && at + 8 <= geometry.chunks_offset);
        }
    }
}

#[test]
fn headers_round_trip_and_every_flipped_bit_is_noticed() {
    let header = ExtentHeader { page_number: 9, order: 2, taken_by: 1 << 40 };
    let extent = Extent::piece(77);
    let mut bytes = header.encode(ID, extent);
    assert_eq!(ExtentHeader::decode(&bytes, ID, extent), Some(header));
    assert_eq!(ExtentHeader::decode(&bytes, ID, Extent::sector(77)), None);
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ExtentHeader::decode(&bytes, ID, extent), None);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let slot = SlotHeader { page_number: 3, transaction: 12 };
    let mut bytes = slot.encode(ID, &[5; 512]);
    assert_eq!(SlotHeader::decode(&bytes, ID, &[5; 512]), Some(slot));
    assert_eq!(SlotHeader::decode(&bytes, ID, &[6; 512]), None);
    bytes[9] ^= 1;
    assert_eq!(SlotHeader::decode(&bytes, ID, &[5; 512]), None);
}

#[test]
fn a_transaction_record_is_found_at_its_place_only() {
    let record = TransactionRecord {
        number: 5 * TRANSACTIONS + 7,
        kind: TransactionKind::Commit,
        db_pages: 9,
        time_ms: 1,
        retired: false,
    };
    let mut bytes = record.encode(ID);
    assert_eq!(TransactionRecord::decode(&bytes, ID, 7), Ok(Some(record)));
    assert!(TransactionRecord::decode(&bytes, ID, 8).is_err());
    assert_eq!(TransactionRecord::decode(&bytes, LogId([8; 16]), 7), Ok(None));
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        // If the mark is missing, or the number is another one, a reader assumes that the writer never completed the
        // record.
        let torn = TransactionRecord::decode(&bytes, ID, 7);
        assert_eq!(torn.is_err(), bit >= 128, "bit {bit}: {torn:?}");
        assert_ne!(torn, Ok(Some(record)));
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let begun = TransactionRecord { kind: TransactionKind::Begin, ..record };
    let mut bytes = begun.encode(ID);
    assert_eq!(TransactionRecord::decode(&bytes, ID, 7), Ok(Some(begun)));
    put(&mut bytes, 8, &TransactionKind::Commit.mark(ID, record.number).to_le_bytes());
    assert_eq!(bytes, record.encode(ID));
}

#[test]
fn record_words_hold_the_largest_transaction_and_payload() {
    let word = record_word(LAST_TRANSACTION, 65536 * 3);
    assert_eq!(read_record_word(word), Some((LAST_TRANSACTION, 65536 * 3)));
    assert_eq!(read_record_word(0), None);
}
