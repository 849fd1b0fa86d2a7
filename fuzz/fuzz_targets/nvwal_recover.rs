//! Any bytes as a log. Recovery must refuse them, or serve a stream, after which the log must be usable.
//! Recovery must never panic, read outside the medium, or run without end.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_format::LogId;
use duralite_format::nvwal::{
    Order, Superblock, TxHash, TxHeader, VERSION, active_word, encode_mark, read_active_word, slot_offset,
};
use duralite_format::sqlite_wal::make_wal_header;
use duralite_wal::NvwalOptions;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::nvwal::{self, Nvwal};
use duralite_wal::log::stream::WalStream;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const CAPACITY: u64 = 4 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode & 1 != 0 {
        repair_checksums(&mut bytes);
    }
    if mode & 2 != 0 {
        repair_transactions(&mut bytes);
    }
    // A log may claim to be larger than its bytes are, but the size of the medium is limited.
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes, CAPACITY));
    let _ = nvwal::walk(nvm.clone(), Path::new("fuzz"), &NoDatabase, |_| {});
    let options = NvwalOptions { cache_bytes: 0, ..NvwalOptions::default() };
    let Ok(mut engine) = Nvwal::open(nvm, Path::new("fuzz"), options) else { return };
    let page_bytes = engine.superblock().head.page_bytes as usize;
    if engine.recover_heap().is_err() || engine.committed() > 5000 {
        return;
    }
    let mut stream = WalStream::new(engine);
    let _ = find_checksum_mismatch(stream.engine_mut(), &NoDatabase);
    let mut piece = vec![0; page_bytes + 24];
    if let Ok(size) = stream.size() {
        for at in [0, size / 2 + 1, size.saturating_sub(9), size, u64::MAX - 9] {
            let _ = stream.read(&NoDatabase, at, &mut piece);
        }
    }
    let committed = stream.engine().committed();
    for (page_number, frame) in stream.engine().newest_frames() {
        assert!(page_number > 0 && (1..=committed).contains(&frame));
        let _ = stream.engine_mut().read_page(&NoDatabase, frame, &mut piece[..page_bytes]);
    }
    append_a_frame(&mut stream, committed, page_bytes);
    let header = make_wal_header(page_bytes as u32, 1, [1, 2]);
    if stream.write(&NoDatabase, 0, &header).is_ok() {
        let mut frame = [0; 24];
        frame[3] = 1;
        frame[7] = 1;
        if stream.write(&NoDatabase, 32, &frame).is_ok()
            && stream.write(&NoDatabase, 56, &vec![7; page_bytes]).is_ok()
        {
            assert_eq!(stream.engine().committed(), 1);
        }
    }
});

/// Commits one frame after the recovered frames.
fn append_a_frame(stream: &mut WalStream<Nvwal>, committed: u32, page_bytes: usize) {
    let mut frame = [0; 24];
    frame[3] = 1;
    frame[7] = 1;
    let at = 32 + u64::from(committed) * (page_bytes as u64 + 24);
    if stream.write(&NoDatabase, at, &frame).is_ok()
        && stream.write(&NoDatabase, at + 24, &vec![3; page_bytes]).is_ok()
    {
        assert_eq!(stream.engine().committed(), committed + 1);
        let mut page = vec![0; page_bytes];
        assert!(
            stream.engine_mut().read_page(&NoDatabase, committed + 1, &mut page).is_ok()
                && page == vec![3; page_bytes]
        );
    }
}

/// Corrects the checksums of superblock and generation slots, so that the code behind them is reached. Pads
/// the log with zeros to its claimed size, as far as the medium allows.
fn repair_checksums(bytes: &mut Vec<u8>) {
    if bytes.len() < 4096 {
        return;
    }
    bytes[..8].copy_from_slice(b"DURALNVW");
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let superblock = xxh3_64(&bytes[..1088]);
    bytes[1088..1096].copy_from_slice(&superblock.to_le_bytes());
    let id = LogId(bytes[16..32].try_into().unwrap());
    let seed = u64::from_le_bytes(id.0[..8].try_into().unwrap());
    for slot in [1216, 1280] {
        let sum = xxh3_64_with_seed(&bytes[slot..slot + 56], seed);
        bytes[slot + 56..slot + 64].copy_from_slice(&sum.to_le_bytes());
    }
    let grown = u32_at(bytes, 1344);
    bytes[1348..1352].copy_from_slice(&(!grown).to_le_bytes());
    let slot = slot_offset(u64::from(bytes[1152])) as usize;
    let generation = u64::from(u32_at(bytes, slot)) | u64::from(u32_at(bytes, slot + 48)) << 32;
    bytes[1152..1160].copy_from_slice(&active_word(generation).to_le_bytes());
    if let Ok(superblock) = Superblock::decode(&bytes[..4096]) {
        let grown = u32_at(bytes, 1344).min(superblock.limit_blocks);
        let size = superblock.file_bytes(grown).min(CAPACITY) as usize;
        bytes.resize(size.max(bytes.len()), 0);
    }
}

/// Corrects the marks and hashes of transactions, so that records with any content are decoded.
fn repair_transactions(bytes: &mut [u8]) {
    if bytes.len() < 4096 {
        return;
    }
    let Ok(superblock) = Superblock::decode(&bytes[..4096]) else { return };
    let grown = u32_at(bytes, 1344);
    let size = bytes.len();
    let generation = read_active_word(u64::from_le_bytes(bytes[1152..1160].try_into().unwrap()));
    let mut block = u32_at(bytes, slot_offset(generation) as usize + 4);
    let (block_bytes, mut offset) = (superblock.block_bytes as usize, 16);
    let place = |block: u32, offset: usize| {
        let at = superblock.block_offset(block) as usize + offset;
        (block < grown && at + block_bytes - offset <= size).then_some(at)
    };
    for sequence in 1..100 {
        if block_bytes - offset < 40 {
            let Some(next) = place(block, 0).and_then(|at| u32_at(bytes, at).checked_sub(1)) else { return };
            (block, offset) = (next, 16);
        }
        let Some(start) = place(block, offset) else { return };
        let order = match bytes[start + 7] >> 6 {
            1 => Order::Ordered,
            2 => Order::Fenced,
            3 => Order::Async,
            _ => return,
        };
        let mut hash = TxHash::new(superblock.head.log_id, generation, sequence);
        offset += 40;
        let mut jumps = 0;
        let mut records = u32_at(bytes, start + 28);
        while records > 0 {
            let Some(at) = place(block, offset) else { return };
            let room = block_bytes - offset;
            let length = if room >= 16 { u32_at(bytes, at) as usize } else { 0 };
            if length == 0 {
                let Some(next) = place(block, 0).and_then(|at| u32_at(bytes, at).checked_sub(1)) else {
                    return;
                };
                (block, offset) = (next, 24);
                jumps += 1;
                if jumps > grown {
                    return;
                }
                continue;
            }
            if !(16..=room).contains(&length) {
                return;
            }
            hash = hash.record(&bytes[at..at + 16], &bytes[at + 16..at + length]);
            offset = (offset + length).next_multiple_of(8).min(block_bytes);
            records -= 1;
        }
        let head: [u8; 40] = bytes[start..start + 40].try_into().unwrap();
        let mut header = TxHeader::decode(&head);
        header.hash = header.seal_hash(hash);
        let mark = encode_mark(order, generation, sequence);
        bytes[start..start + 40].copy_from_slice(&header.encode(mark));
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
