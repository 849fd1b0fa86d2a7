//! Tests with damage to committed bytes. Recovery returns either an error or exactly the committed content, and never
//! panics (invariants 8 and 12).

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, contents, for_seeds, fresh_medium};
use duralite_crashmodel::RecordingNvm;
use duralite_format::nvwal::{NO_BLOCK, SUPERBLOCK_BYTES, Slot, active_word, read_active_word, slot_offset};
use duralite_format::{GENERATION_LIMIT, LogId};
use duralite_medium::Nvm;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::nvwal::{Nvwal, walk};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{LogError, NvwalOptions, SyncMode};

const CAPACITY: u64 = 1 << 20;
const BLOCK: usize = 8192;

fn options(sync: SyncMode) -> NvwalOptions {
    NvwalOptions { sync, block_bytes: BLOCK as u32, limit_bytes: 64 << 10, ..NvwalOptions::default() }
}

/// A log in its second generation, and each content that a reader may see.
struct Committed {
    bytes: Vec<u8>,
    /// The content of the stream after each commit. The last one is the log's content.
    prefixes: Vec<Vec<u8>>,
    /// The ranges of the medium that hold transactions.
    used: Vec<Range<usize>>,
}

impl Committed {
    fn content(&self) -> &[u8] {
        self.prefixes.last().expect("prefixes")
    }
}

fn committed(seed: u64, sync: SyncMode) -> Committed {
    let options = options(sync);
    let nvm = Arc::new(fresh_medium(&options, 512));
    let mut stream = common::open(nvm.clone(), &options).expect("open");
    let mut rng = Rng(seed * 0x9E37 + 1);
    let mut model = Model::of_seed(seed, 512, 20);
    let mut prefixes = Vec::new();
    // The log has to extend over several blocks. Transactions on b-tree pages take less space in the log, so commit
    // more of them.
    for transactions in [3, if seed.is_multiple_of(2) { 24 } else { 60 }] {
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        prefixes = vec![model.committed.clone()];
        for _ in 0..transactions {
            let spill = rng.chance(4);
            let transaction = model.transaction(&mut rng, spill);
            for (offset, data) in &transaction.writes {
                stream.write(&NoDatabase, *offset, data).expect("write");
            }
            model.commit(transaction);
            prefixes.push(model.committed.clone());
        }
    }
    let mut used = Vec::new();
    walk(nvm.clone(), Path::new("damage"), &NoDatabase, |transaction| {
        used.push(transaction.offset as usize..transaction.offset as usize + 40);
        for record in &transaction.records {
            let at = record.offset as usize;
            used.push(at..at + record.record_bytes as usize);
        }
    })
    .expect("walk");
    Committed { bytes: nvm.to_bytes(), prefixes, used }
}

/// Recovers the log and reads all of it. Then starts the log over and makes a commit.
fn recover(bytes: Vec<u8>, sync: SyncMode) -> Result<Vec<u8>, LogError> {
    let nvm: Arc<dyn Nvm> = Arc::new(RecordingNvm::from_bytes(bytes, CAPACITY));
    let mut engine = Nvwal::open(nvm, Path::new("damage"), options(sync))?;
    engine.recover_heap()?;
    let mut stream = WalStream::new(engine);
    assert_eq!(
        find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?,
        None,
        "SQLite's recovery would stop here"
    );
    let content = contents(&mut stream);
    let mut model = Model::new(512, 20);
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data)?;
    let transaction = model.transaction(&mut Rng(1), true);
    for (offset, data) in &transaction.writes {
        stream.write(&NoDatabase, *offset, data)?;
    }
    model.commit(transaction);
    assert!(contents(&mut stream) == model.committed, "content after recovery differs");
    Ok(content)
}

/// Flips each bit of a byte. Returns how many of these logs recovery refused.
fn flip_byte(log: &Committed, at: usize, sync: SyncMode) -> u32 {
    let mut refused = 0;
    for bit in 0..8 {
        let mut bytes = log.bytes.clone();
        bytes[at] ^= 1 << bit;
        match recover(bytes, sync) {
            Ok(content) => assert!(content == log.content(), "byte {at} bit {bit}: content differs"),
            Err(LogError::Corrupt { .. } | LogError::Format { .. }) => refused += 1,
            Err(error) => panic!("byte {at} bit {bit}: {error}"),
        }
    }
    refused
}

#[test]
fn inv08_no_flipped_bit_in_what_is_committed_goes_unnoticed() {
    for sync in [SyncMode::Lazy, SyncMode::Eager] {
        for_seeds(8, |seed| {
            let log = committed(seed, sync);
            let mut rng = Rng(seed + 400);
            for _ in 0..120 {
                let range = &log.used[rng.below(log.used.len() as u64) as usize];
                let at = range.start + rng.below(range.len() as u64) as usize;
                // The two top bits of a mark are the order. Orders 1 and 3 differ in one bit, so one flip turns 1 into
                // 3. With order 3 the hash decides, and the hash is right, so recovery does not refuse that flip.
                let refused = flip_byte(&log, at, sync);
                assert!(refused >= 7, "byte {at}: only {refused} of 8 flips were refused");
            }
        });
    }
}

#[test]
fn inv08_no_flipped_bit_in_what_leads_to_it_goes_unnoticed() {
    for_seeds(3, |seed| {
        let log = committed(seed, SyncMode::Lazy);
        let mut rng = Rng(seed + 900);
        let active = log.bytes[1152..1160].try_into().expect("eight bytes");
        let generation = read_active_word(u64::from_le_bytes(active));
        let slot = slot_offset(generation) as usize;
        // Flip a sample of bytes of the part that is written only once. Then flip all bytes of the active word, of the
        // slot in force, and of the word with the log's size.
        let sample = (0..60).map(|_| rng.below(1096) as usize);
        for at in sample.chain(1152..1160).chain(slot..slot + 64).chain(1344..1352) {
            assert_eq!(flip_byte(&log, at, SyncMode::Lazy), 8, "byte {at}");
        }
        // Flip the headers of the blocks in the list: links, generations and numbers.
        let mut blocks: Vec<usize> =
            log.used.iter().map(|range| BLOCK + (range.start - BLOCK) / BLOCK * BLOCK).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert!(blocks.len() > 1, "one block has no links");
        for at in blocks.into_iter().flat_map(|block| block..block + 16) {
            assert_eq!(flip_byte(&log, at, SyncMode::Lazy), 8, "byte {at}");
        }
        // Damage to the states of blocks is no error, because recovery rebuilds them from the list.
        for at in SUPERBLOCK_BYTES as usize..SUPERBLOCK_BYTES as usize + 8 {
            assert_eq!(flip_byte(&log, at, SyncMode::Lazy), 0, "byte {at}");
        }
    });
}

/// If only one fence covers a whole commit, damage looks like a torn commit. The log may then end before the damage,
/// but the rest of its content is right.
#[test]
fn inv07_flipped_bits_leave_a_prefix_in_the_checksum_order() {
    for_seeds(8, |seed| {
        let log = committed(seed, SyncMode::Checksum);
        let mut rng = Rng(seed + 77);
        for _ in 0..600 {
            let range = &log.used[rng.below(log.used.len() as u64) as usize];
            let at = range.start + rng.below(range.len() as u64) as usize;
            let mut bytes = log.bytes.clone();
            bytes[at] ^= 1 << rng.below(8);
            if let Ok(content) = recover(bytes, SyncMode::Checksum) {
                assert!(log.prefixes.contains(&content), "byte {at}: no prefix");
            }
        }
    });
}

#[test]
fn inv12_a_file_that_was_cut_is_refused() {
    for_seeds(2, |seed| {
        let log = committed(seed, SyncMode::Lazy);
        for length in (0..log.bytes.len()).step_by(512) {
            match recover(log.bytes[..length].to_vec(), SyncMode::Lazy) {
                Ok(content) => assert!(content == log.content(), "cut to {length}: content differs"),
                Err(LogError::Corrupt { .. } | LogError::Format { .. }) => {}
                Err(error) => panic!("cut to {length}: {error}"),
            }
        }
        let longer = [log.bytes.clone(), vec![0xA5; 10_000]].concat();
        assert!(recover(longer, SyncMode::Lazy).expect("a longer file") == log.content());
    });
}

/// Recovery refuses a log with a range of zeros, unless the zeros look like the log's end. They look like the end only
/// if the range covers the mark of a transaction, and everything after the mark that recovery examines. Even then,
/// everything before the range is undamaged.
#[test]
fn inv12_ranges_of_zeros_and_of_noise_leave_an_error_or_a_prefix() {
    for sync in [SyncMode::Lazy, SyncMode::Checksum] {
        for_seeds(10, |seed| {
            let log = committed(seed, sync);
            let mut rng = Rng(seed + 5000);
            let mut refused = 0;
            for i in 0..400 {
                let start = rng.below(log.bytes.len() as u64) as usize;
                let length = [8, 64, 512, 4096, 20_000][rng.below(5) as usize];
                let start = start / 8 * 8;
                let end = (start + length).min(log.bytes.len());
                let zeros = i % 2 == 0;
                let mut bytes = log.bytes.clone();
                bytes[start..end].fill_with(|| if zeros { 0 } else { rng.next() as u8 });
                match recover(bytes, sync) {
                    Ok(content) if zeros || sync == SyncMode::Checksum => {
                        assert!(log.prefixes.contains(&content), "{start}..{end}: no prefix");
                    }
                    Ok(content) => assert!(content == log.content(), "{start}..{end}: content differs"),
                    Err(_) => refused += 1,
                }
            }
            assert!(refused > 20, "only {refused} of 400 ranges were refused");
        });
    }
}

/// If zeros overwrite a part of a transaction, or a link to a transaction, recovery does not mistake them for the log's
/// end.
#[test]
fn inv08_zeros_behind_a_mark_are_an_error() {
    for_seeds(6, |seed| {
        let log = committed(seed, SyncMode::Lazy);
        for range in &log.used {
            // Overwrite the records and the headers with zeros, but leave the marks in the headers.
            let start = if range.len() == 40 { range.start + 8 } else { range.start };
            let mut bytes = log.bytes.clone();
            bytes[start..range.end].fill(0);
            let result = recover(bytes, SyncMode::Lazy);
            assert!(
                matches!(result, Err(LogError::Corrupt { .. })),
                "{start}..{}: {:?}",
                range.end,
                result.map(|content| content.len())
            );
        }
    });
}

/// Zeros over a transaction's mark, or over a link to the transaction, look like the log's end. But if that transaction
/// is not the newest, a complete transaction follows it. The later transaction was committed only once the earlier one
/// was durable, so recovery knows that the zeros are damage.
#[test]
fn inv08_zeros_over_a_mark_are_an_error_where_a_transaction_is_whole_behind_them() {
    for sync in [SyncMode::Lazy, SyncMode::Eager] {
        for_seeds(6, |seed| {
            let log = committed(seed, sync);
            let headers: Vec<_> = log.used.iter().filter(|range| range.len() == 40).cloned().collect();
            let (newest, before) = headers.split_last().expect("a transaction");
            assert!(before.len() > 20);
            for (nth, header) in before.iter().enumerate() {
                for zeros in
                    [header.start..header.start + 8, header.clone(), header.start..headers[nth + 1].start]
                {
                    // If the next transaction is in another block, the range may go backwards, or extend over other
                    // blocks. Skip such a range.
                    if zeros.is_empty() || zeros.len() > BLOCK {
                        continue;
                    }
                    let mut bytes = log.bytes.clone();
                    bytes[zeros.clone()].fill(0);
                    let result = recover(bytes, sync).map(|content| content.len());
                    assert!(matches!(result, Err(LogError::Corrupt { .. })), "{nth}, {zeros:?}: {result:?}");
                }
            }
            let mut bytes = log.bytes.clone();
            bytes[newest.start..newest.start + 8].fill(0);
            let content = recover(bytes, sync).expect("the newest is as one that was never marked");
            assert!(log.prefixes.iter().rev().nth(1) == Some(&content));
            // The first 8 bytes of a block are its link.
            let mut blocks: Vec<usize> =
                headers.iter().map(|range| BLOCK + (range.start - BLOCK) / BLOCK * BLOCK).collect();
            blocks.dedup();
            let (_, linked) = blocks.split_last().expect("a block");
            assert!(!linked.is_empty());
            for block in linked {
                let mut bytes = log.bytes.clone();
                bytes[*block..block + 8].fill(0);
                let result = recover(bytes, sync).map(|content| content.len());
                assert!(matches!(result, Err(LogError::Corrupt { .. })), "link at {block}: {result:?}");
            }
        });
    }
}

#[test]
fn inv12_generations_that_cannot_be_are_refused() {
    let log = committed(1, SyncMode::Lazy);
    let (id, first_block) = (LogId([9; 16]), NO_BLOCK);
    for generation in [0, GENERATION_LIMIT, u64::MAX] {
        let slot = Slot { generation, first_block, wal_header: [0; 32], retired: false };
        let at = slot_offset(generation) as usize;
        let mut bytes = log.bytes.clone();
        bytes[at..at + 64].copy_from_slice(&slot.encode(id));
        bytes[1152..1160].copy_from_slice(&active_word(generation).to_le_bytes());
        let result = recover(bytes, SyncMode::Lazy);
        assert!(matches!(result, Err(LogError::Corrupt { offset: 1152, .. })), "{generation}");
    }
    // Zeros in the `active` word do not mean that the log is empty.
    let mut bytes = log.bytes.clone();
    bytes[1152..1160].fill(0);
    let result = recover(bytes, SyncMode::Lazy);
    assert!(matches!(result, Err(LogError::Corrupt { offset: 1152, .. })), "zeros");
}
