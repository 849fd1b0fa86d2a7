//! A log that several processes read and write, as SQLite's writers do, but without SQLite.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duralite_crashmodel::RecordingBlock;
use duralite_format::sqlite_wal::{Checksum, WalHeader, make_wal_header};
use duralite_format::waldio::{Layout, Superblock};
use duralite_format::{LogHead, LogId};
use duralite_locks::{Holder, LAYOUT_BYTES, LockError, Table, WRITE};
use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, MediumError, Segment};
use duralite_schedules::{Memory, ProcessSlot, Sleep};
use duralite_wal::engine::DurabilityWaiter;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{ErrorKind, WaldioOptions};

const PAGE: usize = 512;
const GROUP: u64 = LAYOUT_BYTES.next_multiple_of(4096);

/// The parameters that differ from test to test.
#[derive(Clone)]
pub struct Rules {
    pub layout: Layout,
    /// How long processes wait for a leader before another one takes over.
    pub patience: Duration,
    /// The way in which sleeps end.
    pub sleep: Sleep,
}

impl Rules {
    pub fn of(layout: Layout) -> Self {
        Self { layout, patience: Duration::MAX, sleep: Sleep::MayEnd }
    }
}

fn superblock(layout: Layout) -> Superblock {
    Superblock {
        head: LogHead {
            page_bytes: PAGE as u32,
            log_id: LogId([9; 16]),
            db_inode: 1,
            db_birth_ns: 2,
            path: b"/model.db".to_vec(),
            made_in: None,
        },
        block_bytes: 512,
        layout,
        limit_bytes: 1 << 20,
    }
}

/// A device with slow writes: after a write is called, other processes can run before the write takes effect.
#[derive(Debug)]
pub struct SlowBlock {
    device: RecordingBlock,
    switch: shuttle::sync::atomic::AtomicU32,
    inside: AtomicU32,
    /// The largest number of writes that were in progress at the same time so far.
    pub at_once: AtomicU32,
    /// The process that stops in its next write, as its slot plus 1; 0 for none.
    pub stops: shuttle::sync::atomic::AtomicU32,
    /// Another process that stops in its next write, as its slot plus 1; 0 for none.
    pub stops_too: shuttle::sync::atomic::AtomicU32,
    /// The process that is stopped now, as its slot plus 1.
    pub stopped: shuttle::sync::atomic::AtomicU32,
    /// The process that dies in its next write, as its slot plus 1; 0 for none.
    pub dies: AtomicU32,
}

impl SlowBlock {
    fn new() -> Self {
        Self {
            device: RecordingBlock::new(512),
            switch: shuttle::sync::atomic::AtomicU32::new(0),
            inside: AtomicU32::new(0),
            at_once: AtomicU32::new(0),
            stops: shuttle::sync::atomic::AtomicU32::new(0),
            stops_too: shuttle::sync::atomic::AtomicU32::new(0),
            stopped: shuttle::sync::atomic::AtomicU32::new(0),
            dies: AtomicU32::new(0),
        }
    }
}

/// The device as one process uses it.
#[derive(Debug)]
struct View(Arc<SlowBlock>, Arc<ProcessSlot>);

impl Block for View {
    fn block_bytes(&self) -> u32 {
        self.0.device.block_bytes()
    }

    fn len(&self) -> u64 {
        self.0.device.len()
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.0.device.preallocate(len)
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        self.0.device.refresh_len()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.0.device.read(at, buf)
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.0.device.write(at, blocks)
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        let block = &self.0;
        let own = self.1.process_slot() as u32 + 1;
        if block.dies.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.1.die();
        }
        let inside = block.inside.fetch_add(1, Ordering::SeqCst) + 1;
        block.at_once.fetch_max(inside, Ordering::SeqCst);
        for _ in 0..3 {
            block.switch.load(Ordering::SeqCst);
        }
        for stops in [&block.stops, &block.stops_too] {
            if stops.load(Ordering::SeqCst) == own {
                block.stopped.store(own, Ordering::SeqCst);
                while stops.load(Ordering::SeqCst) == own {
                    shuttle::thread::yield_now();
                }
            }
        }
        let done = block.device.write_durably(at, blocks, durability);
        block.inside.fetch_sub(1, Ordering::SeqCst);
        done
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.0.device.flush()
    }

    fn counters(&self) -> BlockCounters {
        self.0.device.counters()
    }

    fn guarantee(&self) -> Guarantee {
        self.0.device.guarantee()
    }

    fn describe(&self) -> String {
        self.0.device.describe()
    }
}

/// The state of the log and the database. In the real system, each writer gets it from the previous writer
/// through SQLite's wal-index.
pub struct Index {
    header: WalHeader,
    frames: u64,
    sum: Checksum,
    /// The numbers of the sealed transactions, in the order in which they were sealed.
    pub sealed: Vec<u8>,
    /// The number of frames that have been written into the database file.
    pub home: usize,
    restarts: u32,
}

pub struct World {
    pub memory: Arc<Memory>,
    pub block: Arc<SlowBlock>,
    pub index: Mutex<Index>,
    rules: Rules,
}

impl World {
    pub fn new(rules: &Rules) -> (Arc<Self>, Process) {
        let memory = Memory::new(GROUP + SHARED_BYTES, rules.sleep);
        let block = Arc::new(SlowBlock::new());
        Waldio::format(&block.device, &superblock(rules.layout)).expect("format");
        let header = wal_header(0);
        let sum = header.checksum;
        let index = Index { header, frames: 0, sum, sealed: Vec::new(), home: 0, restarts: 0 };
        let world = Arc::new(Self { memory, block, index: Mutex::new(index), rules: rules.clone() });
        let mut first = world.process(world.memory.join(0, None), true);
        first.stream.write(&NoDatabase, 0, &header.bytes).expect("restart");
        (world, first)
    }

    pub fn process(&self, process_slot: Arc<ProcessSlot>, first: bool) -> Process {
        self.process_with(process_slot, first, self.rules.patience)
    }

    pub fn process_with(&self, process_slot: Arc<ProcessSlot>, first: bool, patience: Duration) -> Process {
        let view = View(Arc::clone(&self.block), Arc::clone(&process_slot));
        let segment: Arc<dyn Segment> = process_slot;
        let options = WaldioOptions {
            layout: self.rules.layout,
            leader_patience: patience,
            ..WaldioOptions::default()
        };
        let engine = Waldio::attach(
            Arc::new(view),
            superblock(self.rules.layout),
            Path::new("model"),
            &options,
            segment.clone(),
            GROUP,
            first,
        );
        let stream = WalStream::new(engine.expect("attach"));
        Process {
            stream,
            holder: Table::with_turn(segment, 0, Duration::from_micros(10)).holder(),
            limit: self.memory.sleep().limit(),
        }
    }

    /// Lets other processes run until this process is stopped in a write.
    pub fn until_stopped(&self, process_slot: u32) {
        while self.block.stopped.load(Ordering::SeqCst) != process_slot + 1 {
            shuttle::thread::yield_now();
        }
    }

    pub fn flushes(&self) -> u64 {
        self.block.device.counters().flushes
    }

    /// Returns the transactions that the log would hold if the power failed now.
    pub fn recovered(&self) -> Vec<u8> {
        let left = Arc::new(RecordingBlock::from_bytes(self.block.device.crash(|_, _| 0), 512));
        let log = Waldio::open_read_only(left, superblock(self.rules.layout), Path::new("left"));
        let mut stream = WalStream::new(log.expect("recovery"));
        assert_eq!(find_checksum_mismatch(stream.engine_mut(), &NoDatabase).expect("checksums"), None);
        let frames = stream.engine().committed();
        (1..=frames).map(|frame| page_of(&mut stream, frame)).collect()
    }

    /// Returns whether a transaction would survive if the power failed now, in the log or in the database
    /// file.
    pub fn is_durable(&self, number: u8) -> bool {
        let home = {
            let index = self.index.lock().expect("index");
            index.sealed[..index.home].contains(&number)
        };
        home || self.recovered().contains(&number)
    }

    /// Checks that the durable transactions are in the order in which they were sealed. Returns those that
    /// are known. A process that died may have sealed one more transaction, of which no other process knows.
    /// The log may still have it, until the next writer's transaction takes its place. So the log may have at
    /// most one unknown transaction for each dead process.
    pub fn check_order(&self, dead: usize) -> Vec<u8> {
        let index = self.index.lock().expect("index");
        let recovered = self.recovered();
        let (home, rest) = index.sealed.split_at(index.home);
        let known: Vec<u8> = recovered.iter().copied().filter(|number| rest.contains(number)).collect();
        let (sealed, at) = (&index.sealed, index.home);
        assert!(rest.starts_with(&known), "sealed {sealed:?}, home {at}, recovered {recovered:?}");
        let strange = recovered.iter().filter(|number| !sealed.contains(number)).count();
        assert!(strange <= dead, "sealed {sealed:?}, recovered {recovered:?}");
        [home, &known].concat()
    }
}

fn wal_header(restarts: u32) -> WalHeader {
    WalHeader::parse(&make_wal_header(PAGE as u32, restarts, [1 + restarts, 2])).expect("header")
}

fn page_of(stream: &mut WalStream<Waldio>, frame: u32) -> u8 {
    let mut page = [0; PAGE];
    stream.engine_mut().read_page(&NoDatabase, frame, &mut page).expect("page");
    page[100]
}

pub struct Process {
    pub stream: WalStream<Waldio>,
    holder: Holder,
    /// How long a process waits for the WRITE lock in one attempt.
    limit: Duration,
}

impl Process {
    pub fn durability_waiter(&self) -> Arc<dyn DurabilityWaiter> {
        self.stream.engine().durability_waiter().expect("a waiter")
    }

    fn take_write(&self) {
        assert!(self.take_write_within(u32::MAX));
    }

    /// Tries to take the WRITE lock, at most `tries` times. Returns whether it got the lock.
    fn take_write_within(&self, tries: u32) -> bool {
        for _ in 0..tries {
            match self.holder.lock_exclusive(WRITE, 1) {
                Ok(()) => return true,
                Err(LockError::Busy) => {
                    self.holder.wait_for_write(self.limit).expect("wait");
                }
                Err(error) => panic!("{error}"),
            }
        }
        false
    }

    /// Commits a transaction of one page. When this returns, the transaction is durable.
    pub fn commit(&mut self, world: &World, number: u8) {
        while !self.try_commit(world, number, u32::MAX) {}
    }

    /// Does the same as [`Process::commit`], but gives up if another process keeps the WRITE lock. Returns
    /// whether it has committed.
    pub fn commit_unless_locked(&mut self, world: &World, number: u8) -> bool {
        self.try_commit(world, number, 2)
    }

    fn try_commit(&mut self, world: &World, number: u8, tries: u32) -> bool {
        if !self.take_write_within(tries) {
            return false;
        }
        let mut page = [0; PAGE];
        page[100] = number;
        // The process copies the index here, and writes it back only at the end. So if it dies in between,
        // the index is unchanged.
        let (header, frames, sum) = {
            let index = world.index.lock().expect("index");
            (index.header, index.frames, index.sum)
        };
        if frames == 0 && self.starts_over(&header) == Err(ErrorKind::Busy) {
            self.holder.unlock_exclusive(WRITE, 1);
            return false;
        }
        let sum = header.extend(sum, u32::from(number) + 1, 30, &page);
        let at = 32 + frames * header.frame_bytes();
        let head = header.frame_header(u32::from(number) + 1, 30, sum);
        self.stream.write(&NoDatabase, at, &head).expect("frame header");
        let sealed = self.stream.write(&NoDatabase, at + 24, &page).expect("page");
        {
            let mut index = world.index.lock().expect("index");
            (index.frames, index.sum) = (frames + 1, sum);
            index.sealed.push(number);
        }
        self.holder.unlock_exclusive(WRITE, 1);
        let ticket = sealed.and_then(|sealed| sealed.ticket).expect("a ticket");
        self.durability_waiter().wait(ticket).expect("durable");
        assert!(world.is_durable(number), "transaction {number} was acknowledged and is not durable");
        true
    }

    fn starts_over(&mut self, header: &WalHeader) -> Result<(), ErrorKind> {
        match self.stream.write(&NoDatabase, 0, &header.bytes) {
            Err(error) if error.kind() == ErrorKind::Busy => Err(ErrorKind::Busy),
            done => {
                done.expect("a new generation");
                Ok(())
            }
        }
    }

    /// Makes every sealed transaction durable. Then, if the log is allowed to start over, writes its pages
    /// into the database file and starts it over. Returns whether it started the log over.
    pub fn restart(&mut self, world: &World) -> bool {
        if !self.take_write_within(2) {
            return false;
        }
        let settled = self.durability_waiter().settle().expect("settled");
        if settled {
            let header = {
                let mut index = world.index.lock().expect("index");
                index.home = index.sealed.len();
                index.restarts += 1;
                index.header = wal_header(index.restarts);
                (index.frames, index.sum) = (0, index.header.checksum);
                index.header
            };
            let _ = self.starts_over(&header);
        }
        self.holder.unlock_exclusive(WRITE, 1);
        settled
    }

    /// Starts the log over without asking first whether that is allowed. Returns whether it succeeded.
    pub fn restart_unasked(&mut self, world: &World) -> bool {
        self.take_write();
        let header = world.index.lock().expect("index").header;
        let done = self.starts_over(&header);
        self.holder.unlock_exclusive(WRITE, 1);
        done.is_ok()
    }

    /// Returns the number of the newest transaction in the log; 0 if the log is empty.
    pub fn newest(&mut self) -> u8 {
        self.stream.engine_mut().refresh().expect("refresh");
        match self.stream.engine().committed() {
            0 => 0,
            frames => page_of(&mut self.stream, frames),
        }
    }
}
