//! Logs of `scratchpad` and their region in one memory, so that a crash affects all of them at once.
#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_format::scratchpad::{PAGE_BYTES, RegionId, RegionSuperblock, SUPERBLOCK_BYTES, Superblock};
use duralite_format::{LogHead, LogId};
use duralite_medium::{LocalSegment, Nvm};
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::scratchpad::Scratchpad;
use duralite_wal::log::stream::WalStream;
use duralite_wal::{LogError, ScratchpadOptions};

#[path = "part.rs"]
mod part;
use part::Part;

const REGION: RegionId = RegionId([3; 16]);

pub struct Rig {
    pub memory: Arc<RecordingNvm>,
    logs: u64,
    region_bytes: u64,
}

impl Rig {
    /// Makes this many empty logs in an empty region.
    pub fn new(logs: u64, region_bytes: u64, durable_on_store: bool) -> Self {
        let memory = RecordingNvm::new(0, logs * SUPERBLOCK_BYTES + region_bytes);
        let memory = Arc::new(if durable_on_store { memory.durable_on_store() } else { memory });
        let rig = Self { memory, logs, region_bytes };
        for which in 0..logs {
            let which = which as usize;
            Scratchpad::format(rig.log(which).as_ref(), &superblock(which)).expect("format");
        }
        let region = RegionSuperblock::for_bytes(REGION, region_bytes);
        Scratchpad::format_region(rig.region().as_ref(), &region).expect("format");
        rig
    }

    /// Returns the same logs and region, in another memory.
    pub fn on(&self, memory: RecordingNvm) -> Self {
        Self { memory: Arc::new(memory), ..*self }
    }

    fn part(&self, base: u64, capacity: u64) -> Arc<dyn Nvm> {
        Arc::new(Part { whole: self.memory.clone(), base, capacity })
    }

    pub fn log(&self, which: usize) -> Arc<dyn Nvm> {
        self.part(which as u64 * SUPERBLOCK_BYTES, SUPERBLOCK_BYTES)
    }

    pub fn region(&self) -> Arc<dyn Nvm> {
        self.part(self.logs * SUPERBLOCK_BYTES, self.region_bytes)
    }

    /// Attaches a log, as the only process that uses it.
    pub fn open(&self, which: usize) -> Result<WalStream<Scratchpad>, LogError> {
        self.attach(which, true)
    }

    /// Attaches a log, as a process that joins others.
    pub fn join(&self, which: usize) -> Result<WalStream<Scratchpad>, LogError> {
        self.attach(which, false)
    }

    fn attach(&self, which: usize, alone: bool) -> Result<WalStream<Scratchpad>, LogError> {
        let segment = Arc::new(LocalSegment::new(64));
        let options = ScratchpadOptions { cache_bytes: 0, ..ScratchpadOptions::default() };
        let (log, region) = (self.log(which), self.region());
        let engine = Scratchpad::attach(log, region, Path::new("model"), &options, Some(segment), alone)?;
        let mut stream = WalStream::new(engine);
        assert_eq!(
            find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?,
            None,
            "SQLite's recovery would stop here"
        );
        Ok(stream)
    }

    /// Returns the content that recovery would restore. Stores nothing.
    pub fn look(&self, which: usize) -> Result<Vec<u8>, LogError> {
        let (log, region) = (self.log(which), self.region());
        let options = ScratchpadOptions::default();
        let engine = Scratchpad::attach(log, region, Path::new("model"), &options, None, false)?;
        Ok(contents(&mut WalStream::new(engine)))
    }

    /// Returns the number of pages that have an owner.
    pub fn taken(&self) -> usize {
        let region = self.region();
        let pages = 1..region.len() / PAGE_BYTES;
        pages.filter(|page| region.load_u64(page * PAGE_BYTES) != 0).count()
    }
}

pub fn superblock(which: usize) -> Superblock {
    Superblock {
        head: LogHead {
            page_bytes: 512,
            log_id: LogId([9 + which as u8; 16]),
            db_inode: 1,
            db_birth_ns: 2,
            path: b"/model.db".to_vec(),
            made_in: None,
        },
        region: REGION,
        limit_pages: 0,
        region_dir: b"/region".to_vec(),
    }
}

/// Returns all bytes that the stream holds.
pub fn contents(stream: &mut WalStream<Scratchpad>) -> Vec<u8> {
    let size = stream.size().expect("size");
    let mut bytes = vec![0; size as usize];
    assert_eq!(stream.read(&NoDatabase, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}
