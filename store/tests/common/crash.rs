//! A store on simulated media. While the store uses them, all of them crash at the same time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use duralite_crashmodel::{OverBlock, RecordingBlock, RecordingNvm, Through};
use duralite_medium::block::{Block, Durability};
use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm};
use duralite_store::{Error, Media, WhichLog};

/// The content of the media after a crash.
#[derive(Clone, Debug)]
pub struct Images {
    pub pages: Vec<u8>,
    pub blocks: Vec<u8>,
    pub memory: Vec<u8>,
}

/// What a crash left on the media, and how many transactions had been acknowledged before it.
#[derive(Clone, Debug)]
pub struct Crash {
    pub images: Images,
    pub acknowledged: u64,
    pub step: u64,
}

/// The media of one store. Each write, flush, fence or change of length is a step, and a crash can be scheduled before
/// any step.
#[derive(Debug)]
pub struct Rig {
    pub pages: RecordingBlock,
    pub blocks: RecordingBlock,
    pub memory: RecordingNvm,
    /// The number of acknowledged transactions. The test counts them here.
    pub acknowledged: AtomicU64,
    /// The number of page reads that may still succeed. Later reads fail, so that an endless loop of reads ends.
    pub page_reads_left: AtomicU64,
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    done: u64,
    due: BTreeSet<u64>,
    seed: u64,
    crashes: Vec<Crash>,
}

const MEMORY: u64 = 1 << 26;

impl Rig {
    pub fn new(images: Option<Images>) -> Arc<Self> {
        let images = images.unwrap_or(Images { pages: vec![], blocks: vec![], memory: vec![] });
        Arc::new(Self {
            pages: RecordingBlock::from_bytes(images.pages, 4096),
            blocks: RecordingBlock::from_bytes(images.blocks, 4096),
            memory: RecordingNvm::from_bytes(images.memory, MEMORY),
            acknowledged: AtomicU64::new(0),
            page_reads_left: AtomicU64::new(u64::MAX),
            steps: Mutex::default(),
        })
    }

    /// Schedules `crashes` crashes, each before one of the next `among` steps. The seed chooses the steps.
    pub fn crash(&self, crashes: usize, among: u64, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut steps = self.steps.lock().unwrap();
        let due = (0..crashes).map(|_| random.u64(0..among)).collect();
        *steps = Steps { due, seed, ..Steps::default() };
    }

    /// Schedules another crash, before one of the next `within` steps.
    pub fn crash_soon(&self, within: u64, random: &mut fastrand::Rng) {
        let mut steps = self.steps.lock().unwrap();
        let at = steps.done + random.u64(0..within);
        steps.due.insert(at);
        steps.seed = random.u64(..);
    }

    pub fn crashes(&self) -> Vec<Crash> {
        std::mem::take(&mut self.steps.lock().unwrap().crashes)
    }

    pub fn steps(&self) -> u64 {
        self.steps.lock().unwrap().done
    }

    /// Makes a step. If a crash is due, it happens before the step.
    fn step<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut steps = self.steps.lock().unwrap();
        let done = steps.done;
        steps.done += 1;
        if steps.due.remove(&done) {
            let seed = steps.seed.wrapping_mul(31).wrapping_add(done);
            // Reads the number of acknowledged commits before it takes the images. The number may grow meanwhile, and
            // must not count commits that the images lack.
            let acknowledged = self.acknowledged.load(Ordering::SeqCst);
            let images = Images {
                pages: self.pages.crash_at_random(seed),
                blocks: self.blocks.crash_at_random(seed + 1),
                memory: self.memory.crash(seed + 2).to_bytes(),
            };
            steps.crashes.push(Crash { images, acknowledged, step: done });
        }
        work()
    }

    /// Makes a step that does nothing, so that a crash that is due happens now.
    pub fn idle_step(&self) {
        self.step(|| ());
    }

    /// Returns what the media contain after the death of the process: everything that was written.
    pub fn death(&self) -> Images {
        // No thread of the store may make a step while this function takes the images. Otherwise the images would show
        // different moments.
        let _no_steps = self.steps.lock().unwrap();
        Images {
            pages: self.pages.to_bytes(),
            blocks: self.blocks.to_bytes(),
            memory: self.memory.to_bytes(),
        }
    }
}

#[derive(Debug)]
struct Stepped {
    rig: Arc<Rig>,
    is_log: bool,
}

impl Stepped {
    fn block(&self) -> &RecordingBlock {
        if self.is_log { &self.rig.blocks } else { &self.rig.pages }
    }
}

impl OverBlock for Stepped {
    fn below(&self) -> &dyn Block {
        self.block()
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.rig.step(|| self.block().write(at, blocks))
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.rig.step(|| self.block().write(at, blocks))?;
        // A real durable write makes only its own bytes durable, but a flush makes all earlier writes durable too. No
        // test here depends on that difference, so this calls a flush.
        match durability {
            Durability::Normal => Ok(()),
            Durability::Full | Durability::Fua => self.rig.step(|| self.block().flush()),
        }
    }
}

/// A file of the store on a rig. [`OverBlock`] lets `Stepped` make each write a step. This type adds a step for each
/// flush and each change of the length. It also makes reads of pages fail after `page_reads_left` of them. If the flag
/// is set, the file is the log, whose reads are not limited.
#[derive(Debug)]
struct Flushed(Through<Stepped>, Arc<Rig>, bool);

impl Block for Flushed {
    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.1.step(|| self.0.preallocate(len))
    }
    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        self.1.step(|| self.0.reserve(len))
    }
    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.1.step(|| self.0.shrink(len))
    }
    fn refresh_len(&self) -> Result<(), MediumError> {
        self.0.refresh_len()
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if !self.2 {
            let one_less = |left: u64| left.checked_sub(1);
            let left = self.1.page_reads_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
            left.map_err(|_| MediumError::OutOfBounds { at, len: buf.len() as u64 })?;
        }
        self.0.read(at, buf)
    }
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.0.write(at, blocks)
    }
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.0.write_durably(at, blocks, durability)
    }
    fn flush(&self) -> Result<(), MediumError> {
        self.1.step(|| self.0.flush())
    }
    fn counters(&self) -> duralite_medium::block::BlockCounters {
        self.0.counters()
    }
    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[derive(Debug)]
struct SteppedMemory(Arc<Rig>);

impl Nvm for SteppedMemory {
    fn len(&self) -> u64 {
        self.0.memory.len()
    }
    fn capacity(&self) -> u64 {
        self.0.memory.capacity()
    }
    fn grow(&self, len: u64) -> Result<(), MediumError> {
        self.0.step(|| self.0.memory.grow(len))
    }
    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        self.0.memory.refresh_len(at_least)
    }
    fn read(&self, at: u64, buf: &mut [u8]) {
        self.0.memory.read(at, buf);
    }
    fn load_u64(&self, at: u64) -> u64 {
        self.0.memory.load_u64(at)
    }
    fn store(&self, at: u64, bytes: &[u8]) {
        self.0.step(|| self.0.memory.store(at, bytes));
    }
    fn store_u64(&self, at: u64, value: u64) {
        self.0.step(|| self.0.memory.store_u64(at, value));
    }
    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.0.step(|| self.0.memory.compare_exchange_u64(at, current, new))
    }
    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.0.step(|| self.0.memory.shrink(len))
    }
    fn stream(&self, at: u64, bytes: &[u8]) {
        self.0.step(|| self.0.memory.stream(at, bytes));
    }
    fn flush(&self, at: u64, len: u64) {
        self.0.step(|| self.0.memory.flush(at, len));
    }
    fn fence(&self) {
        self.0.step(|| self.0.memory.fence());
    }
    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.0.memory.system_allocate(at, len)
    }
    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.0.memory.system_free(at, len)
    }
    fn counters(&self) -> Counters {
        self.0.memory.counters()
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }
    fn describe(&self) -> String {
        self.0.memory.describe()
    }
    fn set_latency(&self, latency: Latency) {
        self.0.memory.set_latency(latency);
    }
    fn latency(&self) -> Latency {
        self.0.memory.latency()
    }
}

/// The media of a store, all of them on one rig.
#[derive(Debug)]
pub struct OnRig(pub Arc<Rig>);

impl OnRig {
    fn over(&self, is_log: bool) -> Arc<dyn Block> {
        Arc::new(Flushed(Through(Stepped { rig: Arc::clone(&self.0), is_log }), Arc::clone(&self.0), is_log))
    }
}

impl Media for OnRig {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        Ok(self.over(false))
    }

    fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> {
        Ok(self.over(true))
    }

    fn memory_log(&self, _: WhichLog, _bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        Ok(Arc::new(SteppedMemory(Arc::clone(&self.0))))
    }
}
