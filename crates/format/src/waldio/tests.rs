use super::*;
use crate::head::LogHead;
use proptest::prelude::*;

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
        block_bytes: 512,
        layout: Layout::Embedded,
        limit_bytes: 1 << 30,
    }
}

#[test]
fn superblock_round_trips_and_any_flipped_bit_is_refused() {
    let bytes = superblock().encode();
    assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
    for at in 0..crate::head::CHECKED_BYTES + 8 {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(Superblock::decode(&bad).is_err(), "byte {at}");
    }
    assert!(Superblock::decode(&bytes[..4095]).is_err());
    assert_eq!(Superblock::decode(b"SQLite"), Err(FormatError::Magic));
}

#[test]
fn slots_and_group_headers_round_trip_and_any_flipped_bit_is_refused() {
    let slots = [
        Slot {
            generation: 5,
            wal_header: Some([9; 32]),
            retired: false,
            file_bytes: 1 << 20,
            position: 3,
            time_ms: 4,
        },
        Slot { generation: 6, wal_header: None, retired: true, file_bytes: 0, position: 1 << 60, time_ms: 0 },
    ];
    for slot in slots {
        let bytes = slot.encode(ID);
        assert_eq!(Slot::decode(&bytes, ID), Some(slot));
        assert_eq!(Slot::decode(&bytes, LogId([8; 16])), None);
        for bit in 0..512 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&bad, ID), None, "bit {bit}");
        }
    }
    let group = GroupHeader {
        first_sequence: 3,
        transactions: 2,
        bytes: 700,
        ordered: true,
        body_hash: 77,
        time_ms: 78,
    };
    let bytes = group.encode(ID, 4, 12288);
    assert_eq!(GroupHeader::decode(&bytes, ID, 4, 12288), Some(group));
    assert_eq!(GroupHeader::decode(&bytes, ID, 5, 12288), None);
    assert_eq!(GroupHeader::decode(&bytes, ID, 4, 12800), None);
    for bit in 0..512 {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(GroupHeader::decode(&bad, ID, 4, 12288), None, "bit {bit}");
    }
}

#[test]
fn no_generation_passes_for_another_however_high() {
    let generations = [1, 1 << 24, 1 << 29, (1 << 29) + 1, 1 << 32, (1 << 32) + 1, (1 << 59) + 1];
    let group = GroupHeader {
        first_sequence: 1,
        transactions: 1,
        bytes: 700,
        ordered: true,
        body_hash: 7,
        time_ms: 8,
    };
    for written in generations {
        let bytes = group.encode(ID, written, 12288);
        let slot = Slot {
            generation: written,
            wal_header: None,
            retired: false,
            file_bytes: 1,
            position: 9,
            time_ms: 8,
        };
        assert_eq!(Slot::decode(&slot.encode(ID), ID), Some(slot));
        let mut frame = Vec::new();
        encode_frame(&mut frame, &[7; 512], &mark(), 512, ID, written, 12288);
        for read in generations {
            let same = read == written;
            assert_eq!(GroupHeader::decode(&bytes, ID, read, 12288).is_some(), same);
            let found = decode_frame(&frame, &mut [0; 512], 512, ID, read, 12288);
            assert_eq!(found.is_some(), same, "{written} {read}");
            assert_eq!(
                body_hash(ID, written, 12288, &[1; 64]) == body_hash(ID, read, 12288, &[1; 64]),
                same || (read ^ written).trailing_zeros() >= 24 && read.max(written) < 1 << 29
            );
        }
    }
    let end = Slot {
        generation: GENERATION_LIMIT,
        wal_header: None,
        retired: false,
        file_bytes: 1,
        position: 0,
        time_ms: 0,
    };
    assert_eq!(Slot::decode(&end.encode(ID), ID), None);
}

#[test]
fn a_body_of_any_length_hashes_the_same_whole_and_in_pieces() {
    let bytes: Vec<u8> = (0..3000_u32).map(|at| (at * at % 251) as u8).collect();
    for len in (32..1300).chain([2047, 2048, 2999]) {
        let (header, rest) = bytes[..len].split_at(TX_HEADER_BYTES as usize);
        let mut hash = BodyHash::new(ID, 5, 12_288);
        rest.chunks(97).for_each(|piece| hash.update(piece));
        assert_eq!(hash.finish(header), body_hash(ID, 5, 12_288, &bytes[..len]), "{len} bytes");
    }
}

#[test]
fn a_body_hashes_the_same_whole_and_in_pieces() {
    let body: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let mut pieces = BodyHash::new(ID, 1, 2);
    pieces.update(&body[32..77]);
    pieces.update(&body[77..]);
    let whole = pieces.finish(&body[..32]);
    assert_eq!(whole, body_hash(ID, 1, 2, &body));
    assert_ne!(whole, body_hash(ID, 1, 3, &body));
    let mut other = body.clone();
    other[3] ^= 1;
    assert_ne!(whole, body_hash(ID, 1, 2, &other));
}

#[test]
fn transaction_headers_round_trip_and_bad_ones_are_refused() {
    let header = TxHeader {
        tx_bytes: 64,
        sequence: 2,
        first_frame: 3,
        last_frame: 4,
        db_pages: 5,
        records: 1,
        wal_checksum: [6, 7],
    };
    assert_eq!(TxHeader::decode(&header.encode()), Ok(header));
    for bad in [
        TxHeader { tx_bytes: 24, ..header },
        TxHeader { tx_bytes: 65, ..header },
        TxHeader { tx_bytes: GROUP_MAGIC, ..header },
        TxHeader { first_frame: 0, ..header },
        TxHeader { last_frame: 2, ..header },
        TxHeader { db_pages: 0, ..header },
    ] {
        assert!(TxHeader::decode(&bad.encode()).is_err());
    }
    assert!(TxHeader::decode(&header.encode()[..31]).is_err());
}

fn mark() -> Mark {
    let (transaction, starts_transaction) = (77, true);
    Mark {
        page_number: 3,
        db_pages: 9,
        frame: 4,
        transaction,
        starts_transaction,
        starts_group: true,
        ordered: false,
    }
}

/// Returns a leaf page with `cells` cell pointers, and with cells that begin at offset `content`.
fn leaf(page_bytes: usize, at: usize, cells: u16, content: u16, fill: u8) -> Vec<u8> {
    let mut page = vec![fill; page_bytes];
    page[at] = 13;
    page[at + 3..at + 5].copy_from_slice(&cells.to_be_bytes());
    page[at + 5..at + 7].copy_from_slice(&content.to_be_bytes());
    page
}

fn round_trip(page: &[u8], mark: &Mark, block_bytes: u32) -> u32 {
    let mut out = vec![1, 2, 3];
    encode_frame(&mut out, page, mark, block_bytes, ID, 5, 8192);
    let mut back = vec![0; page.len()];
    let bytes = &out[3..];
    let found = decode_frame(bytes, &mut back, block_bytes, ID, 5, 8192);
    let (found, taken) = found.expect("a frame");
    assert_eq!((found, back.as_slice()), (*mark, page));
    assert_eq!(taken as usize, bytes.len());
    assert!(decode_frame(bytes, &mut back, block_bytes, ID, 6, 8192).is_none());
    assert!(decode_frame(bytes, &mut back, block_bytes, ID, 5, 4096).is_none());
    for at in (0..page.len()).step_by(97) {
        let mut bad = bytes.to_vec();
        bad[at] ^= 1;
        assert!(decode_frame(&bad, &mut back, block_bytes, ID, 5, 8192).is_none(), "byte {at}");
    }
    taken
}

#[test]
fn a_frame_takes_one_block_where_the_page_has_room_and_two_where_not() {
    assert_eq!(round_trip(&[0; 4096], &mark(), 4096), 4096);
    assert_eq!(round_trip(&[7; 4096], &mark(), 4096), 8192);
    assert_eq!(round_trip(&[7; 4096], &mark(), 512), 4608);
    // The page is smaller than a block, so the mark is in the padding.
    assert_eq!(round_trip(&[7; 1024], &mark(), 4096), 4096);
    assert_eq!(round_trip(&[7; 65536], &mark(), 4096), 69632);
    // Only the gap has zeros.
    let mut page = leaf(4096, 0, 10, 1000, 9);
    page[28..1000].fill(0);
    assert_eq!(round_trip(&page, &mark(), 4096), 4096);
    // Only the end of the gap has zeros. SQLite leaves a gap like this after it has removed the first cells.
    page[28..60].fill(3);
    assert_eq!(round_trip(&page, &mark(), 4096), 4096);
    // Page 1 has its b-tree header after the database header.
    let mut page = leaf(4096, 100, 2, 4000, 9);
    page[112..4000].fill(0);
    assert_eq!(round_trip(&page, &Mark { page_number: 1, ..mark() }, 4096), 4096);
}

proptest! {
    #[test]
    fn any_page_comes_back(
        bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 512),
        kind in prop_oneof![Just(2u8), Just(5), Just(10), Just(13), any::<u8>()],
        number in 1u32..4,
        block in prop_oneof![Just(512u32), Just(4096)],
    ) {
        let mut page = bytes;
        page[0] = kind;
        round_trip(&page, &Mark { page_number: number, ..mark() }, block);
    }

    #[test]
    fn any_bytes_are_refused_or_decoded(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
        let mut page = [0; 512];
        let _ = decode_frame(&bytes, &mut page, 512, ID, 1, 0);
        let _ = GroupHeader::decode(&bytes, ID, 1, 0);
        let _ = TxHeader::decode(&bytes);
        let _ = Slot::decode(&bytes, ID);
        let _ = Superblock::decode(&bytes);
    }
}
