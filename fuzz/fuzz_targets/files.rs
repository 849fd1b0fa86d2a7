//! Any file where the tools expect a log or a database. The tools must describe, walk and read it, or refuse
//! it, without changing a byte. If the input begins with a log of `scratchpad`, the rest is the log's region.
#![no_main]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use duralite_format::guard::{self, DatabaseHeader};
use duralite_format::{LogId, nvwal, ppl, scratchpad, waldio};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::log::offline;
use duralite_wal::placement;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A file is padded to at most this many bytes. A longer file would only be slow.
const LONGEST: u64 = 4 << 20;

/// A directory in memory with a file, and if necessary with a region beside it. It lasts for one input.
struct Place {
    dir: PathBuf,
    path: PathBuf,
    file: File,
}

impl Place {
    fn new() -> Self {
        let dir = PathBuf::from(format!("/dev/shm/duralite-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory in /dev/shm");
        let path = dir.join("app.db-duralite");
        let file = made(&path);
        Self { dir, path, file }
    }

    /// Makes the region for a log of `scratchpad`.
    fn region(&self, bytes: &[u8]) -> File {
        let about = self.file.metadata().expect("a file");
        let (uid, gid, mode) = (about.uid(), about.gid(), about.mode() & 0o777);
        let file = made(&self.dir.join(format!("duralite-region-{uid}-{gid}-{mode:o}")));
        file.write_all_at(bytes, 0).unwrap();
        file.set_len(region_bytes(bytes)).unwrap();
        file
    }
}

/// The size of the region, in whole pages.
fn region_bytes(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).next_multiple_of(scratchpad::PAGE_BYTES)
}

fn made(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
    file.expect("a file in /dev/shm")
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode & 1 != 0 {
        repair(&mut bytes);
    }
    let place = Place::new();
    let Place { path, file, .. } = &place;
    let region = (bytes.starts_with(&scratchpad::MAGIC)
        && bytes.len() > scratchpad::SUPERBLOCK_BYTES as usize)
        .then(|| bytes.split_off(scratchpad::SUPERBLOCK_BYTES as usize));
    let region = region.map(|bytes| (place.region(&bytes), bytes));
    file.write_all_at(&bytes, 0).unwrap();
    if mode & 2 != 0 {
        file.set_len(claimed_bytes(&bytes).clamp(bytes.len() as u64, LONGEST)).unwrap();
    }
    let length = file.metadata().unwrap().len();
    match offline::inspect(path).expect("a file that can be read") {
        DatabaseHeader::Empty => assert_eq!(length, 0),
        DatabaseHeader::Guarded { page_bytes, .. } => assert!(guard::page_size_is_valid(page_bytes)),
        _ => {}
    }
    let about = placement::describe(path);
    let opened = placement::open_log_read_only(path);
    assert!(about.is_ok() || opened.is_err());
    let mut transactions = 0;
    let walked = placement::walk(path, &NoDatabase, &mut |_| transactions += 1);
    if let (Ok(about), Ok(mut log)) = (about, opened) {
        assert_eq!((log.name(), log.id()), (about.engine.name, about.id));
        assert!(log.metrics().iter().any(|(name, _)| *name == "log_frames"));
        // A walk of the log must show the same as an open log.
        if let Ok(summary) = walked {
            assert_eq!((summary.frames, summary.transactions), (log.committed(), transactions));
        }
        let mut page = vec![0; log.page_bytes() as usize];
        let committed = log.committed();
        for (page_number, frame) in log.newest_frames() {
            assert!(page_number > 0 && (1..=committed).contains(&frame));
            let _ = log.read_page(&NoDatabase, frame, &mut page);
        }
    }
    assert_unchanged(file, &bytes, length);
    if let Some((file, bytes)) = &region {
        assert_unchanged(file, bytes, region_bytes(bytes));
    }
});

fn assert_unchanged(file: &File, bytes: &[u8], length: u64) {
    let mut after = vec![0; bytes.len()];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(after == bytes && file.metadata().unwrap().len() == length, "looking changed the file");
}

/// Corrects the checksums of superblock, slots and guard, so that the code behind them is reached.
fn repair(bytes: &mut [u8]) {
    if bytes.starts_with(b"SQLite format 3\0") && bytes.len() >= 92 {
        let check = xxh3_64(&bytes[72..88]);
        bytes[88..92].copy_from_slice(&check.to_le_bytes()[..4]);
    }
    if bytes.len() < 4096 {
        return;
    }
    let superblock = xxh3_64(&bytes[..1088]);
    bytes[1088..1096].copy_from_slice(&superblock.to_le_bytes());
    let seed = u64::from_le_bytes(*bytes[16..].first_chunk().unwrap());
    let slots: [usize; 2] = if bytes.starts_with(&waldio::MAGIC) { [4096, 8192] } else { [1216, 1280] };
    let length = bytes.len();
    for slot in slots.into_iter().filter(|slot| slot + 64 <= length) {
        let sum = xxh3_64_with_seed(&bytes[slot..slot + 56], seed);
        bytes[slot + 56..slot + 64].copy_from_slice(&sum.to_le_bytes());
    }
    if bytes.starts_with(&nvwal::MAGIC) {
        for word in [nvwal::ACTIVE_OFFSET as usize, nvwal::GROWN_OFFSET as usize] {
            let value = u32::from_le_bytes(*bytes[word..].first_chunk().unwrap());
            bytes[word..word + 8].copy_from_slice(&nvwal::checked_word(value).to_le_bytes());
        }
    }
    if bytes.starts_with(&scratchpad::MAGIC) {
        repair_region(bytes, seed);
    }
    if bytes.starts_with(&ppl::MAGIC) {
        let word = ppl::GROWN_OFFSET as usize;
        let value = u32::from_le_bytes(*bytes[word..].first_chunk().unwrap());
        bytes[word..word + 8].copy_from_slice(&nvwal::checked_word(value).to_le_bytes());
    }
}

/// Corrects the checksums of a log of `scratchpad`, and of its region's pages.
fn repair_region(bytes: &mut [u8], seed: u64) {
    let word_at = |bytes: &[u8], at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let id = LogId(*bytes[16..].first_chunk().unwrap());
    let reference = xxh3_64_with_seed(&bytes[2048..3078], seed);
    bytes[3078..3086].copy_from_slice(&reference.to_le_bytes());
    let chain = scratchpad::UndoChain::read(word_at(bytes, scratchpad::JOURNAL_CHAIN_OFFSET as usize));
    let state = scratchpad::JOURNAL_STATE_OFFSET as usize;
    let length = word_at(bytes, state) >> 16;
    if word_at(bytes, state) != 0 && length < scratchpad::JOURNAL_LIMIT {
        let word = scratchpad::UndoState::Bytes(length).word(id, chain);
        bytes[state..state + 8].copy_from_slice(&word.to_le_bytes());
    }
    for (page, bytes) in bytes[4096..].chunks_exact_mut(4096).enumerate() {
        if page == 0 {
            let check = xxh3_64(&bytes[..40]);
            bytes[40..48].copy_from_slice(&check.to_le_bytes());
            continue;
        }
        let tag = xxh3_64_with_seed(&bytes[8..28], seed ^ (page as u64).rotate_left(32)) as u32;
        bytes[28..32].copy_from_slice(&tag.to_le_bytes());
        for at in [scratchpad::LINK_AT, scratchpad::LAST_AT, scratchpad::FOLLOW_AT].map(|at| at as usize) {
            let target = word_at(bytes, at) as u32;
            let word = if target == 0 { 0 } else { scratchpad::link_word(target, tag) };
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The size that a log claims to have.
fn claimed_bytes(bytes: &[u8]) -> u64 {
    if let Ok(superblock) = nvwal::Superblock::decode(bytes) {
        let grown = u32::from_le_bytes(*bytes[nvwal::GROWN_OFFSET as usize..].first_chunk().unwrap());
        return superblock.file_bytes(grown);
    }
    if let Ok(superblock) = ppl::Superblock::decode(bytes) {
        let grown = u32::from_le_bytes(*bytes[ppl::GROWN_OFFSET as usize..].first_chunk().unwrap());
        return superblock.geometry().file_bytes(grown);
    }
    if waldio::Superblock::decode(bytes).is_ok() { 1 << 20 } else { 0 }
}
