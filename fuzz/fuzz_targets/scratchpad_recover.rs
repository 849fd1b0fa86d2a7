//! A log of `scratchpad` and its region with any changed bytes. Recovery must refuse them or serve a stream
//! and a rollback journal, and the log must be usable after that. Recovery must never panic, read outside
//! the media, or run without end.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_format::scratchpad::{
    FOLLOW_AT, HEADER_BYTES, JOURNAL_CHAIN_OFFSET, JOURNAL_STATE_OFFSET, Kind, LAST_AT, LINK_AT, Owner,
    PAGE_BYTES, PageHeader, RegionId, RegionSuperblock, SUPERBLOCK_BYTES, Superblock, UndoChain, UndoState,
    committed_mark, link_word,
};
use duralite_format::sqlite_wal::make_wal_header;
use duralite_format::{LogHead, LogId};
use duralite_medium::{LocalSegment, Nvm};
use duralite_wal::ScratchpadOptions;
use duralite_wal::engine::Engine as _;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::scratchpad::Scratchpad;
use duralite_wal::log::stream::WalStream;
use libfuzzer_sys::fuzz_target;

const PAGE: usize = 512;
const REGION: u64 = 96 << 10;
const PAGES: u32 = (REGION / PAGE_BYTES) as u32;
const ID: LogId = LogId([9; 16]);

fuzz_target!(|data: &[u8]| {
    let (log, region) = good();
    for change in data.chunks_exact(8) {
        apply(&log, &region, change.try_into().unwrap());
    }
    let options = ScratchpadOptions { cache_bytes: 0, ..ScratchpadOptions::default() };
    let attach = |segment: Option<Arc<LocalSegment>>| {
        let segment = segment.map(|segment| segment as Arc<dyn duralite_medium::Segment>);
        let alone = segment.is_some();
        Scratchpad::attach(log.clone(), region.clone(), Path::new("fuzz"), &options, segment, alone)
    };
    if let Ok(engine) = attach(None) {
        read_all(&mut WalStream::new(engine));
    }
    let Ok(engine) = attach(Some(Arc::new(LocalSegment::new(64)))) else { return };
    let mut stream = WalStream::new(engine);
    read_all(&mut stream);
    let header = make_wal_header(PAGE as u32, 1, [1, 2]);
    if stream.write(&NoDatabase, 0, &header).is_ok() {
        let mut frame = [0; 24];
        frame[3] = 1;
        frame[7] = 1;
        if stream.write(&NoDatabase, 32, &frame).is_ok() && stream.write(&NoDatabase, 56, &[7; PAGE]).is_ok()
        {
            assert_eq!(stream.engine().committed(), 1);
        }
    }
});

/// A log with some transactions, one of them with several pages, and a rollback journal.
fn good() -> (Arc<RecordingNvm>, Arc<RecordingNvm>) {
    let log = Arc::new(RecordingNvm::new(0, SUPERBLOCK_BYTES));
    let region = Arc::new(RecordingNvm::new(0, REGION));
    let id = RegionId([3; 16]);
    let superblock = Superblock {
        head: LogHead {
            page_bytes: PAGE as u32,
            log_id: ID,
            db_inode: 1,
            db_birth_ns: 2,
            path: Vec::new(),
            made_in: None,
        },
        region: id,
        limit_pages: 0,
        region_dir: Vec::new(),
    };
    Scratchpad::format(log.as_ref(), &superblock).unwrap();
    Scratchpad::format_region(region.as_ref(), &RegionSuperblock::for_bytes(id, REGION)).unwrap();
    let options = ScratchpadOptions::default();
    let segment = Some(Arc::new(LocalSegment::new(64)) as Arc<dyn duralite_medium::Segment>);
    let engine =
        Scratchpad::attach(log.clone(), region.clone(), Path::new("good"), &options, segment, true).unwrap();
    let mut stream = WalStream::new(engine);
    stream.write(&NoDatabase, 0, &make_wal_header(PAGE as u32, 1, [1, 2])).unwrap();
    let mut at = 32;
    for frames in [1, 3, 12, 1] {
        for nth in 1..=frames {
            let mut frame = [0; 24];
            frame[3] = nth;
            frame[7] = if nth == frames { 12 } else { 0 };
            stream.write(&NoDatabase, at, &frame).unwrap();
            let page: Vec<u8> = (0..PAGE).map(|byte| (byte as u64 * (at + 1) >> 3) as u8).collect();
            stream.write(&NoDatabase, at + 24, &page).unwrap();
            at += 24 + PAGE as u64;
        }
    }
    let journal = stream.engine().rollback_journal().unwrap();
    journal.create().unwrap();
    journal.write(&[5; 9000], 0).unwrap();
    journal.sync().unwrap();
    (log, region)
}

/// Makes one change: to a byte, or to a structure, whose checksum is then correct.
fn apply(log: &RecordingNvm, region: &RecordingNvm, change: [u8; 8]) {
    let [kind, value, a, b, c, d, e, f] = change;
    let page = 1 + u32::from(a) % (PAGES - 1);
    region.grow(u64::from(page + 1) * PAGE_BYTES).ok();
    let base = u64::from(page) * PAGE_BYTES;
    let small = u32::from(b) % PAGES;
    let header = PageHeader {
        kind: if c & 1 == 0 { Kind::Redo } else { Kind::Undo },
        generation: u64::from(c >> 1) % 4,
        transaction: u32::from(d) % 8,
        index: u32::from(e) % 6,
    };
    let tag = header.tag(ID, page);
    match kind % 9 {
        0 => flip(log, (u64::from(b) << 8 | u64::from(a)) % SUPERBLOCK_BYTES, value),
        1 => flip(region, base + (u64::from(c) << 8 | u64::from(b)) % PAGE_BYTES, value),
        2 => {
            region.store_u64(base, Owner::of(ID).word(usize::from(f)));
            region.store(base + 8, &header.encode(ID, page));
        }
        3 => region.store_u64(base + LINK_AT, link_word(small, tag)),
        4 => region.store_u64(base + FOLLOW_AT, link_word(small, tag)),
        5 => region.store_u64(base + LAST_AT, link_word(small * 64 + u32::from(f) % 64, tag)),
        6 => {
            let line = base + HEADER_BYTES * (1 + u64::from(f) % 63);
            region.store_u64(line, committed_mark(ID, header.generation, header.transaction));
        }
        7 => region.store_u64(base, if value & 1 == 0 { 0 } else { u64::from(value) << 40 }),
        _ => {
            let chain = UndoChain { first: small, number: u32::from(d) % 4 };
            let bytes = u64::from(e) << 8 | u64::from(f);
            log.store_u64(JOURNAL_CHAIN_OFFSET, chain.word());
            log.store_u64(JOURNAL_STATE_OFFSET, UndoState::Bytes(bytes).word(ID, chain));
        }
    }
}

fn flip(nvm: &RecordingNvm, at: u64, value: u8) {
    let mut byte = [0];
    nvm.read(at, &mut byte);
    nvm.store(at, &[byte[0] ^ value]);
}

fn read_all(stream: &mut WalStream<Scratchpad>) {
    let _ = find_checksum_mismatch(stream.engine_mut(), &NoDatabase);
    let committed = stream.engine().committed();
    let mut page = vec![0; PAGE];
    for (page_number, frame) in stream.engine().newest_frames() {
        assert!(page_number > 0 && (1..=committed).contains(&frame));
        let _ = stream.engine_mut().read_page(&NoDatabase, frame, &mut page);
    }
    if let Some(journal) = stream.engine().rollback_journal()
        && let Ok(Some(size)) = journal.size()
    {
        let _ = journal.read(&mut vec![0; size.min(1 << 20) as usize], 0);
    }
}
