//! Any bytes as a log of blocks. Recovery must refuse them or serve a stream, and the log must be
//! usable after that. Recovery must never panic, read outside the medium, or run without end.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::RecordingBlock;
use duralite_format::sqlite_wal::make_wal_header;
use duralite_format::waldio::{DATA_OFFSET, GroupHeader, Superblock, VERSION, body_hash};
use duralite_medium::LocalSegment;
use duralite_wal::WaldioOptions;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::waldio::{self, SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const CAPACITY: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    // A log is at least as long as its slot says, so missing bytes are filled with zeros.
    bytes.resize(if mode & 4 != 0 { CAPACITY / 2 } else { bytes.len().next_multiple_of(4096) }, 0);
    if mode & 1 != 0 {
        repair_checksums(&mut bytes);
    }
    if mode & 2 != 0 {
        repair_groups(&mut bytes);
    }
    let Ok(superblock) = Superblock::decode(&bytes) else { return };
    let block = Arc::new(RecordingBlock::from_bytes(bytes, superblock.block_bytes));
    block.set_limit(CAPACITY as u64);
    let _ = waldio::walk(block.clone(), superblock.clone(), Path::new("fuzz"), &NoDatabase, &mut |_| {});
    let options = WaldioOptions { cache_bytes: 0, layout: superblock.layout, ..WaldioOptions::default() };
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    let page_bytes = superblock.head.page_bytes as usize;
    let Ok(engine) = Waldio::attach(block, superblock, Path::new("fuzz"), &options, segment, 0, true) else {
        return;
    };
    let committed = engine.committed();
    let mut stream = WalStream::new(engine);
    let _ = find_checksum_mismatch(stream.engine_mut(), &NoDatabase);
    let mut piece = vec![0; page_bytes + 24];
    if let Ok(size) = stream.size() {
        for at in [0, size / 2 + 1, size.saturating_sub(9), size, u64::MAX - 9] {
            let _ = stream.read(&NoDatabase, at, &mut piece);
        }
    }
    for (page_number, frame) in stream.engine().newest_frames() {
        assert!(page_number > 0 && (1..=committed).contains(&frame));
        let _ = stream.engine_mut().read_page(&NoDatabase, frame, &mut piece[..page_bytes]);
    }
    let mut frame = [0; 24];
    (frame[3], frame[7]) = (1, 1);
    let at = 32 + u64::from(committed) * (page_bytes as u64 + 24);
    if stream.write(&NoDatabase, at, &frame).is_ok()
        && stream.write(&NoDatabase, at + 24, &vec![3; page_bytes]).is_ok()
    {
        assert_eq!(stream.engine().committed(), committed + 1);
    }
    if stream.write(&NoDatabase, 0, &make_wal_header(page_bytes as u32, 1, [1, 2])).is_ok()
        && stream.write(&NoDatabase, 32, &frame).is_ok()
        && let Ok(sealed) = stream.write(&NoDatabase, 56, &vec![7; page_bytes])
    {
        assert_eq!(stream.engine().committed(), 1);
        let ticket = sealed.unwrap().ticket.unwrap();
        stream.engine().durability_waiter().unwrap().wait(ticket).unwrap();
    }
});

/// Corrects the checksums of superblock and slots, so that the code behind them is reached.
fn repair_checksums(bytes: &mut [u8]) {
    if bytes.len() < 12288 {
        return;
    }
    bytes[..8].copy_from_slice(b"DURALDIO");
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let superblock = xxh3_64(&bytes[..1088]);
    bytes[1088..1096].copy_from_slice(&superblock.to_le_bytes());
    let seed = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    for slot in [4096, 8192] {
        let sum = xxh3_64_with_seed(&bytes[slot..slot + 56], seed);
        bytes[slot + 56..slot + 64].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Corrects the hashes of groups, so that transactions with any content are decoded.
fn repair_groups(bytes: &mut [u8]) {
    let Ok(superblock) = Superblock::decode(bytes) else { return };
    let (id, unit) = (superblock.head.log_id, superblock.block_bytes as usize);
    let generation = [4096, 8192].map(|slot| {
        let slot = bytes.get(slot..slot + 52);
        slot.map_or(0, |slot| u64::from(u32_at(slot, 0)) | u64::from(u32_at(slot, 48)) << 32)
    });
    let generation = generation.into_iter().max().unwrap_or(0);
    let (mut at, mut sequence) = (DATA_OFFSET as usize, 1);
    for _ in 0..100 {
        if bytes.len() < at + 64 {
            return;
        }
        let length = u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap()) as usize % 100_000;
        if length < 96 || at + length > bytes.len() {
            return;
        }
        let group = GroupHeader {
            first_sequence: sequence,
            transactions: u32_at(bytes, at + 12) % 50,
            bytes: length as u64,
            ordered: bytes[at + 32] & 1 != 0,
            body_hash: body_hash(id, generation, at as u64, &bytes[at + 64..at + length]),
            time_ms: 0,
        };
        bytes[at..at + 64].copy_from_slice(&group.encode(id, generation, at as u64));
        sequence += group.transactions;
        at = (at + length).next_multiple_of(unit);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
