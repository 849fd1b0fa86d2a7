//! Any file where the tools expect a log or a database: it is described, walked and read, or refused,
//! and not a byte of it changes.
#![no_main]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use duralite_journal::home::NoDatabase;
use duralite_journal::{directory, offline};
use duralite_logfmt::guard::{self, DatabaseHeader};
use duralite_logfmt::{nvwal, ppl, waldio};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// How far a file is padded: beyond, it would only be slow.
const LONGEST: u64 = 4 << 20;

/// A file in memory with a name, for as long as one input takes.
struct Place {
    path: PathBuf,
    file: File,
}

impl Place {
    fn new() -> Self {
        let path = PathBuf::from(format!("/dev/shm/duralite-fuzz-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        Self { path, file: file.expect("a file in /dev/shm") }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode & 1 != 0 {
        repair(&mut bytes);
    }
    let place = Place::new();
    let Place { path, file } = &place;
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
    let about = directory::describe(path);
    let opened = directory::open_log_read_only(path);
    assert!(about.is_ok() || opened.is_err());
    let mut transactions = 0;
    let walked = directory::walk(path, &NoDatabase, &mut |_| transactions += 1);
    if let (Ok(about), Ok(mut log)) = (about, opened) {
        assert_eq!((log.name(), log.id()), (about.engine.name, about.id));
        assert!(log.metrics().iter().any(|(name, _)| *name == "log_frames"));
        // Whoever walks a log sees what whoever opens it sees.
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
    let mut after = vec![0; bytes.len()];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(after == bytes && file.metadata().unwrap().len() == length, "looking changed the file");
});

/// Makes the checksums of superblock, slots and guard check, so that what is behind them is reached.
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
    if bytes.starts_with(&ppl::MAGIC) {
        let word = ppl::GROWN_OFFSET as usize;
        let value = u32::from_le_bytes(*bytes[word..].first_chunk().unwrap());
        bytes[word..word + 8].copy_from_slice(&nvwal::checked_word(value).to_le_bytes());
    }
}

/// The size that a log says it has.
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
