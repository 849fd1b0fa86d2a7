//! A test engine that keeps frames in a `Vec`. It does what the interface between the product and an engine
//! requires, and no more.
//!
//! The file of a log only says which database the log belongs to. The frames are in the memory of the process
//! that made the log. This process finds them by the log's id. The engine refuses other processes, and the
//! frames are gone when the process ends.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_format::sqlite_wal::WalHeader;
use duralite_format::{FormatError, LogId, Origin};
use duralite_medium::Guarantee;
use duralite_medium::process::PerProcess;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::descriptor::{Attaching, Descriptor, LogHead, NewLog, OpenFile, SharedBytes, Walk};
use duralite_wal::engine::home::DatabaseFile;
use duralite_wal::engine::media::Medium;
use duralite_wal::engine::salvage::Salvaged;
use duralite_wal::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use duralite_wal::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
};
use duralite_wal::{EngineOptions, LogError};

const MAGIC: [u8; 8] = *b"DURALVEC";
/// The number of bytes of the magic number, id, inode, birth time and page size, which come before the path
/// in a log's file.
const FIXED_BYTES: usize = 44;

pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "vec",
    magic: MAGIC,
    rollback_journals: false,
    writes_home: false,
    needs: &[Medium::LogBlocks],
    settings: &[],
    shared: SharedBytes { zeroed: 0, all: 0 },
    format,
    attach,
    attach_outside: |log| Err(elsewhere(&log.file)),
    open_read_only: |file| Ok(Box::new(open(file)?)),
    inspect,
    is_empty: |file| open(file).is_ok_and(|log| log.committed() == 0),
    walk: WALK,
    salvage: |log, _, _| Ok(Salvaged::of_frames(Box::new(open(log)?), true, None)),
    release: |_| Ok(()),
    flush_interval: |_| None,
};

/// The content that has been committed to a log.
#[derive(Default)]
struct Store {
    generation: u64,
    /// The number of transactions in earlier generations of the log.
    position: u64,
    header: Option<WalHeader>,
    retired: bool,
    frames: Vec<(Frame, Vec<u8>)>,
    transactions: u32,
}

type Shared = Arc<Mutex<Store>>;

/// The logs whose frames are in this process.
static LOGS: PerProcess<Mutex<HashMap<LogId, Shared>>> = PerProcess::new();

fn logs() -> MutexGuard<'static, HashMap<LogId, Shared>> {
    LOGS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn elsewhere(file: &OpenFile<'_>) -> LogError {
    let what = "its frames are in the memory of another process, or went with it";
    LogError::Busy { path: file.path.to_path_buf(), what }
}

fn format(new: &NewLog<'_>) -> Result<(), LogError> {
    let LogHead { page_bytes, log_id, db_inode, db_birth_ns, path, .. } = &new.head;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&log_id.0);
    bytes.extend_from_slice(&db_inode.to_le_bytes());
    bytes.extend_from_slice(&db_birth_ns.to_le_bytes());
    bytes.extend_from_slice(&page_bytes.to_le_bytes());
    bytes.extend_from_slice(path);
    let written = new.file.file.write_all_at(&bytes, 0);
    written.map_err(|error| LogError::io("write", new.file.path, &error))?;
    logs().insert(*log_id, Shared::default());
    Ok(())
}

/// Decodes the head of a log from its first bytes.
fn inspect(file: &OpenFile<'_>, bytes: &[u8]) -> Result<LogHead, LogError> {
    let Some((fixed, path)) = bytes.split_at_checked(FIXED_BYTES) else {
        let source = FormatError::Short { what: "the log file" };
        return Err(LogError::Format { log: file.path.to_path_buf(), source });
    };
    let word = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().unwrap());
    let log_id = LogId(fixed[8..24].try_into().unwrap());
    let page_bytes = u32::from_le_bytes(fixed[40..].try_into().unwrap());
    let path = path.to_vec();
    Ok(LogHead { page_bytes, log_id, db_inode: word(24), db_birth_ns: word(32), path, made_in: None })
}

fn attach(log: Attaching<'_>) -> Result<Box<dyn Engine>, LogError> {
    if log.alone { Ok(Box::new(open(&log.file)?)) } else { Err(elsewhere(&log.file)) }
}

fn open(file: &OpenFile<'_>) -> Result<VecLog, LogError> {
    let failed = |error| LogError::io("read", file.path, &error);
    let mut bytes = vec![0; file.file.metadata().map_err(failed)?.len() as usize];
    file.file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let LogHead { page_bytes, log_id, .. } = inspect(file, &bytes)?;
    let store = logs().get(&log_id).cloned().ok_or_else(|| elsewhere(file))?;
    let mut log =
        VecLog { id: log_id, page_bytes, store, generation: 0, header: None, staged: BTreeMap::new() };
    log.refresh()?;
    Ok(log)
}

const WALK: Walk = |file, database, visit| {
    let mut log = open(file)?;
    let store = log.store().frames.iter().map(|(frame, _)| *frame).collect::<Vec<_>>();
    let mut sequence = 0;
    let mut first_frame = 1;
    let mut records = Vec::new();
    for (number, frame) in (1..).zip(store) {
        let (page_number, record_bytes) = (frame.page_number, log.page_bytes);
        records.push(WalkedRecord {
            offset: 0,
            frame: number,
            page_number,
            record_bytes,
            ranges: 1,
            whole: true,
        });
        if frame.db_pages == 0 {
            continue;
        }
        sequence += 1;
        let records = std::mem::take(&mut records);
        let (last_frame, db_pages) = (number, frame.db_pages);
        visit(&WalkedTransaction {
            sequence,
            offset: 0,
            first_frame,
            last_frame,
            db_pages,
            order: "vec",
            records,
        });
        first_frame = number + 1;
    }
    let (generation, retired, transactions) = {
        let store = log.store();
        (store.generation, store.retired, store.transactions)
    };
    let frames = log.committed();
    let mismatch = find_checksum_mismatch(&mut log, database)?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
};

/// A log that this process has attached.
struct VecLog {
    id: LogId,
    page_bytes: u32,
    store: Shared,
    /// The store's generation when the log was last refreshed.
    generation: u64,
    header: Option<WalHeader>,
    staged: BTreeMap<u32, (u32, Vec<u8>)>,
}

impl VecLog {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_over(&mut self, header: Option<&WalHeader>, retired: bool) {
        let position = self.position();
        let generation = self.store().generation + 1;
        *self.store() = Store { generation, position, header: header.copied(), retired, ..Store::default() };
        self.staged.clear();
        (self.generation, self.header) = (generation, header.copied());
    }
}

impl Engine for VecLog {}

impl LogFile for VecLog {
    fn name(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn id(&self) -> LogId {
        self.id
    }

    fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Returns the weakest guarantee that the type can express. The engine gives even less: its frames are
    /// gone when the process ends.
    fn guarantee(&self) -> Guarantee {
        Guarantee::ProcessCrash
    }

    fn describe(&self) -> String {
        "frames in the memory of this process".to_owned()
    }

    fn metrics(&self) -> Vec<(&'static str, String)> {
        let store = self.store();
        vec![
            ("generation", store.generation.to_string()),
            ("retired", store.retired.to_string()),
            ("log_frames", store.frames.len().to_string()),
            ("log_transactions", store.transactions.to_string()),
        ]
    }

    fn configure(&mut self, _options: &EngineOptions) {}

    fn retire(&mut self) -> Result<(), LogError> {
        self.start_over(None, true);
        Ok(())
    }

    fn wal_header(&self) -> Option<&WalHeader> {
        self.header.as_ref()
    }

    fn begin_generation(
        &mut self,
        _file: &dyn DatabaseFile,
        header: Option<&WalHeader>,
    ) -> Result<(), LogError> {
        self.start_over(header, false);
        Ok(())
    }

    fn clear(&mut self, _file: &dyn DatabaseFile, _keep_bytes: u64) -> Result<(), LogError> {
        self.start_over(None, false);
        Ok(())
    }

    fn has_surplus(&self, _keep_bytes: u64) -> bool {
        false
    }

    fn set_clock(&mut self, _clock: Clock) {}

    fn fill(&self) -> Fill {
        Fill { used_bytes: 0, limit_bytes: u64::MAX }
    }
}

impl LogReader for VecLog {
    fn newest_frames(&self) -> Vec<(u32, u32)> {
        let store = self.store();
        let newest: BTreeMap<u32, u32> =
            (1..).zip(&store.frames).map(|(number, (frame, _))| (frame.page_number, number)).collect();
        newest.into_iter().collect()
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        let (generation, header) = {
            let store = self.store();
            (store.generation, store.header)
        };
        if generation != self.generation {
            self.staged.clear();
            (self.generation, self.header) = (generation, header);
        }
        Ok(())
    }

    fn version(&self) -> u64 {
        let store = self.store();
        store.generation << 32 | u64::from(store.transactions)
    }

    fn committed(&self) -> u32 {
        self.store().frames.len() as u32
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.store().frames.get((number as usize).checked_sub(1)?).map(|(frame, _)| *frame)
    }

    fn read_page(&mut self, _file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        let missing = LogError::Unexpected("a frame number");
        if let Some((_, staged)) = self.staged.get(&frame) {
            page.copy_from_slice(staged);
            return Ok(());
        }
        let store = self.store();
        let (_, found) = frame.checked_sub(1).and_then(|at| store.frames.get(at as usize)).ok_or(missing)?;
        page.copy_from_slice(found);
        Ok(())
    }

    fn origin(&self) -> Origin {
        let store = self.store();
        Origin { generation: store.generation, position: store.position, time_ms: 0 }
    }

    fn transactions(&self) -> u32 {
        self.store().transactions
    }

    fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        let store = self.store();
        let mut commits = (1..).zip(&store.frames).filter(|(_, (frame, _))| frame.db_pages != 0);
        let before = sequence.checked_sub(1).and_then(|before| commits.nth(before as usize));
        let first_frame = before.map_or(1, |(number, _)| number + 1);
        let (last_frame, (frame, _)) = commits.next()?;
        let db_pages = frame.db_pages;
        Some(Transaction { sequence: sequence + 1, first_frame, last_frame, db_pages, time_ms: 0 })
    }

    fn is_durable(&self, frame: u32) -> bool {
        frame <= self.committed()
    }

    fn is_current(&self) -> bool {
        self.store().generation == self.generation
    }
}

impl LogWriter for VecLog {
    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        None
    }

    fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    fn stage(
        &mut self,
        _file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError> {
        self.staged.insert(frame, (page_number, page.to_vec()));
        Ok(())
    }

    fn discard_staged(&mut self) -> Result<(), LogError> {
        self.staged.clear();
        Ok(())
    }

    fn seal(&mut self, _file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, LogError> {
        let staged = std::mem::take(&mut self.staged);
        let mut store = self.store();
        let numbers = commit.first_frame..=commit.last_frame;
        let complete = numbers.clone().all(|number| staged.contains_key(&number));
        if !complete || commit.first_frame as usize != store.frames.len() + 1 {
            return Err(LogError::Unexpected("a transaction's frame numbers"));
        }
        for (number, (page_number, page)) in staged.into_iter().filter(|(number, _)| numbers.contains(number))
        {
            let last = number == commit.last_frame;
            let db_pages = if last { commit.db_pages } else { 0 };
            let checksum = last.then_some(commit.checksum);
            let frame =
                Frame { page_number, db_pages, checksum, record_bytes: u32::try_from(page.len()).ok() };
            store.frames.push((frame, page));
        }
        store.transactions += 1;
        Ok(None)
    }

    fn outgrows(&self, _bytes: usize) -> bool {
        false
    }

    fn force(&mut self) -> Result<(), LogError> {
        Ok(())
    }
}
