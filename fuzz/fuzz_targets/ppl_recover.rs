//! A log of `ppl` with any changed bytes, beside any database. Recovery must refuse it or serve its pages,
//! and the log must be usable after that. Recovery must never panic, read outside the medium, or run without
//! end.
//!
//! A log is too long for an input. So an input chooses a log that the engine has written, and changes some of
//! its bytes that are not zeros. The checksums may be corrected after that, so that the code behind them is
//! reached.
#![no_main]

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use duralite_crashmodel::RecordingNvm;
use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, GROWN_OFFSET, Geometry, MERGED_AT, SLOT_HEADER_BYTES,
    SlotHeader, Superblock, TRANSACTION_BYTES, TRANSACTIONS, TransactionKind, TransactionRecord,
    read_record_word, record_check,
};
use duralite_format::{LogHead, LogId};
use duralite_medium::LocalSegment;
use duralite_wal::engine::home::DatabaseFile;
use duralite_wal::engine::prelude::*;
use duralite_wal::engine::{Commit, Engine as _};
use duralite_wal::engines::ppl::{Ppl, SHARED_BYTES};
use duralite_wal::{LogError, PplOptions};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 512;
const ID: LogId = LogId([7; 16]);
const CAPACITY: u64 = 1 << 20;

/// A database file in memory whose syncs can be made to fail.
#[derive(Default)]
struct Database {
    bytes: RefCell<Vec<u8>>,
    fails: Cell<bool>,
}

impl DatabaseFile for Database {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let bytes = self.bytes.borrow();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&self, new: &[u8], offset: u64) -> Result<(), LogError> {
        let mut bytes = self.bytes.borrow_mut();
        let end = offset as usize + new.len();
        // A log may claim a database that is larger than the memory.
        if end > 64 << 20 {
            return Err(LogError::BaseVfs { op: "write", code: 13 });
        }
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(new);
        Ok(())
    }

    fn sync(&self) -> Result<(), LogError> {
        if self.fails.get() { Err(LogError::BaseVfs { op: "sync", code: 10 }) } else { Ok(()) }
    }

    fn size(&self) -> Result<u64, LogError> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.bytes.borrow_mut().truncate(bytes as usize);
        Ok(())
    }
}

fn superblock() -> Superblock {
    Superblock {
        head: LogHead {
            page_bytes: PAGE as u32,
            log_id: ID,
            db_inode: 1,
            db_birth_ns: 2,
            path: Vec::new(),
            made_in: None,
        },
        sector_bytes: 4096,
        limit_chunks: 2,
        usual_chunks: 2,
        slots: 8,
        buckets: 8,
    }
}

fn options() -> PplOptions {
    PplOptions { overflow_bytes: 0, cache_bytes: 0, ..PplOptions::default() }
}

fn attach(nvm: &Arc<RecordingNvm>) -> Result<Ppl, LogError> {
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    Ppl::attach(nvm.clone(), Path::new("fuzz"), &options(), segment, 0, true)
}

/// Commits a page.
fn commit(log: &mut Ppl, file: &Database, page_number: u32, page: &[u8]) -> Result<u32, LogError> {
    let frame = log.committed() + 1;
    log.stage(file, frame, page_number, page)?;
    let db_pages = 100;
    log.seal(file, &Commit { first_frame: frame, last_frame: frame, db_pages, checksum: [0; 2] })?;
    Ok(frame)
}

/// The page that a step changes. The steps repeat the same few pages.
fn page_of(step: u32) -> u32 {
    [1, 2, 3, 2, 5, 2, 9][step as usize % 7]
}

fn image_of(step: u32) -> Vec<u8> {
    (0..PAGE)
        .map(|at| if at % 5 == 0 { step.wrapping_mul(at as u32 | 1) as u8 } else { page_of(step) as u8 })
        .collect()
}

/// Logs, each with the offsets of its nonzero bytes. One of them has page images in slots.
fn logs() -> &'static [(Vec<u8>, Vec<usize>)] {
    static LOGS: OnceLock<Vec<(Vec<u8>, Vec<usize>)>> = OnceLock::new();
    LOGS.get_or_init(|| {
        [(12, false), (90, false), (90, true)]
            .into_iter()
            .map(|(commits, merges)| {
                let nvm = Arc::new(RecordingNvm::new(0, CAPACITY));
                Ppl::format(nvm.as_ref(), &superblock()).unwrap();
                let mut log = attach(&nvm).unwrap();
                let file = Database::default();
                for step in 0..commits {
                    commit(&mut log, &file, page_of(step), &image_of(step)).unwrap();
                }
                if merges {
                    let mut log = attach(&nvm).unwrap();
                    file.fails.set(true);
                    assert!(log.home().unwrap().drain(&file).is_err());
                    let _ = commit(&mut log, &file, 2, &[4; PAGE]);
                }
                let bytes = nvm.to_bytes();
                let used = (0..bytes.len()).step_by(8).filter(|at| bytes[*at..at + 8] != [0; 8]).collect();
                (bytes, used)
            })
            .collect()
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, patches)) = data.split_first() else { return };
    let (bytes, used) = &logs()[usize::from(mode >> 6) % logs().len()];
    let mut bytes = bytes.clone();
    for patch in patches.chunks_exact(12) {
        let word = u16::from_le_bytes([patch[0], patch[1]]) as usize;
        let at = used[word % used.len()] + usize::from(patch[2] % 4) * 8;
        let bits = usize::from(patch[3] % 9);
        if at + 8 <= bytes.len() {
            bytes[at..at + bits].copy_from_slice(&patch[4..4 + bits]);
        }
    }
    repair(&mut bytes, mode);
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes, CAPACITY));
    let file = Database::default();
    if let Ok(log) = Ppl::open_read_only(nvm.clone(), Path::new("fuzz")) {
        let mut transactions = 0;
        let _ = log.walk(&file, &mut |_| transactions += 1);
        // A record may also have the number 0.
        assert!(transactions <= log.position() + 1);
    }
    let Ok(mut log) = attach(&nvm) else { return };
    let page_bytes = log.page_bytes() as usize;
    let Some(home) = log.home() else { return };
    let mut page = vec![0; page_bytes];
    for page_number in 0..12 {
        let _ = home.read(&file, &mut page, page_number * page_bytes as u64);
    }
    for page_number in [2, 5, 77] {
        page.fill(page_number as u8);
        if let Ok(frame) = commit(&mut log, &file, page_number, &page) {
            let mut again = vec![0; page_bytes];
            log.read_page(&file, frame, &mut again).expect("a page that was committed");
            assert!(again == page);
        }
    }
    let _ = home.sync(&file);
    if home.drain(&file).is_ok() {
        let _ = log.retire();
    }
});

/// Corrects the checksums of the superblock, of extent headers, of the records in extents, of slots and of
/// transactions.
fn repair(bytes: &mut [u8], mode: u8) {
    if mode & 1 != 0 {
        bytes[..8].copy_from_slice(b"DURALPPL");
        let sum = xxh3_64(&bytes[..1088]);
        bytes[1088..1096].copy_from_slice(&sum.to_le_bytes());
    }
    let Ok(superblock) = Superblock::decode(&bytes[..4096]) else { return };
    let (geometry, id) = (superblock.geometry(), superblock.head.log_id);
    let grown = u32_at(bytes, GROWN_OFFSET as usize).min(2);
    for extent in (0..grown).flat_map(|chunk| geometry.extents_of(chunk)) {
        let at = geometry.extent_offset(extent) as usize;
        if at + geometry.extent_bytes(extent) as usize > bytes.len() || u32_at(bytes, at) == 0 {
            continue;
        }
        let (page_number, order) = (u32_at(bytes, at), u32_at(bytes, at + 4));
        if mode & 2 != 0 {
            let header = ExtentHeader { page_number, order, taken_by: u64_at(bytes, at + 8) };
            bytes[at..at + MERGED_AT as usize].copy_from_slice(&header.encode(id, extent));
        }
        if mode & 4 != 0 {
            repair_records(bytes, &geometry, id, extent, page_number);
        }
    }
    if mode & 8 != 0 {
        repair_slots(bytes, &geometry, &superblock);
    }
    if mode & 16 != 0 {
        for place in 0..TRANSACTIONS {
            let at = TransactionRecord::offset(place) as usize;
            if bytes[at..at + TRANSACTION_BYTES].iter().any(|byte| *byte != 0) {
                let number = u64_at(bytes, at) / TRANSACTIONS * TRANSACTIONS + place;
                let (db_pages, time_ms) = (u32_at(bytes, at + 16) % 1000, 0);
                let kind = TransactionKind::Commit;
                let record = TransactionRecord { number, kind, db_pages, time_ms, retired: false };
                bytes[at..at + TRANSACTION_BYTES].copy_from_slice(&record.encode(id));
            }
        }
    }
}

/// Corrects the checksums of the records in one extent.
fn repair_records(bytes: &mut [u8], geometry: &Geometry, id: LogId, extent: Extent, page_number: u32) {
    let at = geometry.extent_offset(extent) as usize;
    let (mut offset, end) = (EXTENT_HEADER_BYTES as usize, geometry.extent_bytes(extent) as usize);
    while offset + 16 <= end {
        let word = u64_at(bytes, at + offset);
        let Some((_, length)) = read_record_word(word) else { return };
        let next = offset + 16 + (length as usize).next_multiple_of(8);
        if next > end {
            return;
        }
        let payload = at + offset + 16..at + offset + 16 + length as usize;
        let check = record_check(id, page_number, word, &bytes[payload]);
        bytes[at + offset + 8..at + offset + 16].copy_from_slice(&check.to_le_bytes());
        offset = next;
    }
}

fn repair_slots(bytes: &mut [u8], geometry: &Geometry, superblock: &Superblock) {
    for slot in 0..superblock.slots {
        let at = geometry.slot_offset(slot) as usize;
        let image = at + SLOT_HEADER_BYTES as usize..at + geometry.slot_bytes as usize;
        if image.end <= bytes.len() && u32_at(bytes, at) != 0 {
            let header = SlotHeader { page_number: u32_at(bytes, at), transaction: u64_at(bytes, at + 8) };
            let head = header.encode(superblock.head.log_id, &bytes[image]);
            bytes[at..at + head.len()].copy_from_slice(&head);
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
