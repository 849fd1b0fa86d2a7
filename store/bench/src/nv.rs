//! Duralite's own store. Its page file and its log may be in different directories. The benchmark can put the log into
//! memory, and add a delay to each access.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use duralite_medium::block::{Block, BlockCounters, BlockOptions, Durability, FileBlock};
use duralite_medium::{FileNvm, Guarantee, LINE_BYTES, Latency, MapOptions, MediumError, Nvm};
use duralite_store::{
    Error, LogMedium, Media, Options, Scheme, Snapshot, Store, Table, Transaction, WhichLog,
};

use crate::kv::{Db, Done, Fail, KeyValue, Schema, Session, Span, Tx, Visit, Work, each};

/// A store, with handles of a workload's tables.
pub(crate) struct NvDb {
    pub(crate) store: Store,
    tables: Vec<Table>,
    loads_in_bulk: bool,
}

impl NvDb {
    pub(crate) fn new(store: Store, schema: Schema) -> Result<Self> {
        let tables = schema.iter().map(|name| store.table(name)).collect::<Result<_, _>>()?;
        Ok(Self { store, tables, loads_in_bulk: true })
    }

    /// Returns the same store, but makes it load sorted rows by ordinary transactions instead of in bulk.
    pub(crate) fn by_transactions(self) -> Self {
        Self { loads_in_bulk: false, ..self }
    }
}

impl Db for NvDb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(NvSession(self)))
    }

    fn load_sorted(&self, table: usize, rows: &mut dyn Iterator<Item = KeyValue>) -> Result<bool> {
        if self.loads_in_bulk {
            self.store.load(&self.tables[table], rows)?;
        }
        Ok(self.loads_in_bulk)
    }
}

struct NvSession<'d>(&'d NvDb);

struct NvTx<'t>(&'t mut Transaction, &'t [Table]);

impl Tx for NvTx<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        Ok(self.0.get(&self.1[table], key)?)
    }

    fn get_for_update(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        Ok(self.0.get_for_update(&self.1[table], key)?)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        Ok(self.0.put(&self.1[table], key, value)?)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        self.0.delete(&self.1[table], key)?;
        Ok(())
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        each(self.0.scan(&self.1[table], span.from..span.to), span.is_reverse, |row| {
            let (key, value) = row?;
            Ok(visit(&key, &value))
        })
    }
}

/// A snapshot of the store. Reading it takes no locks.
struct NvView<'t>(Snapshot, &'t [Table]);

impl Tx for NvView<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.0.get(&self.1[table], key).map_err(too_old_is_retried)
    }

    fn put(&mut self, _table: usize, _key: &[u8], _value: &[u8]) -> Done<()> {
        Err(Fail::Broken(anyhow!("a snapshot is read only")))
    }

    fn delete(&mut self, _table: usize, _key: &[u8]) -> Done<()> {
        Err(Fail::Broken(anyhow!("a snapshot is read only")))
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        each(self.0.scan(&self.1[table], span.from..span.to), span.is_reverse, |row| {
            let (key, value) = row.map_err(too_old_is_retried)?;
            Ok(visit(&key, &value))
        })
    }
}

fn too_old_is_retried(error: Error) -> Fail {
    match error {
        Error::SnapshotTooOld => Fail::Retry,
        error => error.into(),
    }
}

impl Session for NvSession<'_> {
    fn view(&mut self, work: &mut Work<'_>) -> Done<()> {
        let NvDb { store, tables, .. } = self.0;
        work(&mut NvView(store.snapshot(), tables))
    }

    // `Store::run` itself repeats a transaction that has to give way, so this function needs no loop. The repeated
    // transaction keeps its age. By age, the store decides which transaction gives way.
    fn attempt(&mut self, _writes: bool, work: &mut Work<'_>) -> Done<()> {
        let NvDb { store, tables, .. } = self.0;
        let mut failure = None;
        let done = store.run(|tx| match work(&mut NvTx(tx, tables)) {
            Ok(()) => Ok(()),
            Err(Fail::Broken(error)) => Err(error.downcast::<Error>().unwrap_or_else(|error| {
                failure = Some(Fail::Broken(error));
                Error::Exists
            })),
            Err(other) => {
                failure = Some(other);
                Err(Error::Exists)
            }
        });
        match (done, failure) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(failure)) => Err(failure),
            (Err(error), None) => Err(error.into()),
        }
    }
}

/// Where a store's files are, and by how much their accesses are delayed.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    pub(crate) pages: PathBuf,
    pub(crate) log: PathBuf,
    /// The delay for each cache line of 64 bytes that is written, in nanoseconds.
    pub(crate) line_ns: u32,
    /// The delay for each call that writes or flushes a log file, in nanoseconds.
    pub(crate) call_ns: u32,
    /// The delay for each call that writes or flushes the page file, in nanoseconds.
    pub(crate) pages_call_ns: u32,
}

/// A rig, and the options of the store on that rig.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) rig: Rig,
    pub(crate) options: Options,
}

impl Setup {
    /// Opens the store of this setup, or makes it.
    pub(crate) fn open(&self, schema: Schema) -> Result<NvDb> {
        NvDb::new(Store::open_on(self.rig.clone(), self.options.clone())?, schema)
    }

    /// Returns the setup of a new store, whose pages and log are in these two directories. Removes the files of an
    /// earlier store.
    pub(crate) fn fresh(pages: &Path, log: &Path, name: &str, scheme: Scheme) -> Result<Self> {
        let rig = Rig {
            pages: pages.join(format!("{name}.pages")),
            log: log.join(format!("{name}.log")),
            line_ns: 0,
            call_ns: 0,
            pages_call_ns: 0,
        };
        rig.remove()?;
        std::fs::create_dir_all(pages)?;
        std::fs::create_dir_all(log)?;
        // The rig decides where the log is. This option only decides which scheme `Auto` selects.
        let log = if scheme == Scheme::Auto { LogMedium::Disk } else { LogMedium::Emulated };
        let options = Options::default().scheme(scheme).log(log);
        Ok(Self { rig, options })
    }
}

impl Rig {
    pub(crate) fn remove(&self) -> Result<()> {
        for path in [&self.pages, &self.log] {
            if path.exists() {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn file(path: &Path) -> Result<std::fs::File, Error> {
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        opened.map_err(|source| Error::Io { what: format!("opening {}", path.display()), source })
    }

    fn block(path: &Path) -> Result<FileBlock, Error> {
        FileBlock::open(Self::file(path)?, path, &BlockOptions::default()).map_err(medium)
    }
}

fn medium(error: MediumError) -> Error {
    Error::Io { what: "a medium".into(), source: std::io::Error::other(error) }
}

impl Media for Rig {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        let block = Self::block(&self.pages)?;
        if self.pages_call_ns == 0 {
            return Ok(Arc::new(block));
        }
        Ok(Arc::new(SlowBlock { block, line_ns: 0, call_ns: self.pages_call_ns }))
    }

    fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> {
        let block = Self::block(&self.log)?;
        if self.line_ns == 0 && self.call_ns == 0 {
            return Ok(Arc::new(block));
        }
        Ok(Arc::new(SlowBlock { block, line_ns: self.line_ns, call_ns: self.call_ns }))
    }

    fn memory_log(&self, _: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        let file = Self::file(&self.log)?;
        let len = file.metadata().map_or(0, |about| about.len());
        let latency = Latency { write_ns: self.line_ns, ..Latency::default() };
        let options = MapOptions { capacity: bytes.max(len), latency, ..MapOptions::default() };
        Ok(Arc::new(FileNvm::map(file, &self.log, &options).map_err(medium)?))
    }
}

/// A file in memory with the same delays as the simulated memory.
#[derive(Debug)]
struct SlowBlock {
    block: FileBlock,
    line_ns: u32,
    call_ns: u32,
}

impl SlowBlock {
    fn wait(&self, bytes: usize) {
        let lines = bytes as u64 / LINE_BYTES;
        let ns = u64::from(self.call_ns) + u64::from(self.line_ns) * lines;
        let (begun, time) = (Instant::now(), Duration::from_nanos(ns));
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

impl Block for SlowBlock {
    fn block_bytes(&self) -> u32 {
        self.block.block_bytes()
    }

    fn len(&self) -> u64 {
        self.block.len()
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.block.preallocate(len)
    }

    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        self.block.reserve(len)
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        self.block.refresh_len()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.block.read(at, buf)
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.wait(blocks.len());
        self.block.write(at, blocks)
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.wait(blocks.len());
        self.block.write_durably(at, blocks, durability)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.block.flush()
    }

    fn counters(&self) -> BlockCounters {
        self.block.counters()
    }

    fn guarantee(&self) -> Guarantee {
        self.block.guarantee()
    }

    fn describe(&self) -> String {
        self.block.describe()
    }
}
