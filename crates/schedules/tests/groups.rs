//! Group commit under explored schedules: processes seal under the WRITE lock, and wait for one
//! leader; any of them may die at any operation.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duralite_journal::WaldioOptions;
use duralite_journal::engine::Engine as _;
use duralite_journal::stream::WalStream;
use duralite_journal::waldio::{SHARED_BYTES, Waldio};
use duralite_locks::{Holder, LAYOUT_BYTES, LockError, Table, WRITE};
use duralite_logfmt::LogId;
use duralite_logfmt::sqlite_wal::{Checksum, WalHeader, make_wal_header};
use duralite_logfmt::waldio::{Layout, Superblock};
use duralite_medium::Segment;
use duralite_medium::block::{Block, RecordingBlock};
use duralite_schedules::{Death, Member, Memory};

const PAGE: usize = 512;
const GROUP: u64 = LAYOUT_BYTES.next_multiple_of(4096);

fn superblock(layout: Layout) -> Superblock {
    Superblock {
        page_bytes: PAGE as u32,
        log_id: LogId([9; 16]),
        db_inode: 1,
        db_birth_ns: 2,
        block_bytes: 512,
        layout,
        limit_bytes: 1 << 20,
        path: b"/model.db".to_vec(),
        file: None,
    }
}

/// The database, as SQLite's wal-index tells it from one writer to the next.
struct Index {
    header: WalHeader,
    frames: u64,
    sum: Checksum,
    /// Numbers of the transactions that are in it, in order.
    sealed: Vec<u8>,
}

struct World {
    memory: Arc<Memory>,
    block: Arc<RecordingBlock>,
    layout: Layout,
    index: Mutex<Index>,
}

impl World {
    fn new(layout: Layout) -> (Arc<Self>, Process) {
        let memory = Memory::new(GROUP + SHARED_BYTES);
        let block = Arc::new(RecordingBlock::new(512));
        Waldio::format(block.as_ref(), &superblock(layout)).expect("format");
        let bytes = make_wal_header(PAGE as u32, 1, [1, 2]);
        let header = WalHeader::parse(&bytes).expect("header");
        let index = Mutex::new(Index { header, frames: 0, sum: header.checksum, sealed: Vec::new() });
        let world = Arc::new(Self { memory, block, layout, index });
        let mut first = world.process(world.memory.join(0, None), true);
        first.stream.write(0, &bytes).expect("restart");
        (world, first)
    }

    fn process(&self, member: Arc<Member>, first: bool) -> Process {
        let segment: Arc<dyn Segment> = member;
        let options = WaldioOptions { layout: self.layout, ..WaldioOptions::default() };
        let engine = Waldio::attach(
            self.block.clone(),
            superblock(self.layout),
            Path::new("model"),
            &options,
            segment.clone(),
            GROUP,
            first,
        );
        let stream = WalStream::new(engine.expect("attach"));
        Process { stream, holder: Table::with_bound(segment, 0, 2).holder() }
    }

    /// The transactions that survive a power loss now.
    fn durable(&self) -> Vec<u8> {
        let left = Arc::new(RecordingBlock::from_bytes(self.block.crash(|_, _| 0), 512));
        let log = Waldio::open_read_only(left, superblock(self.layout), Path::new("left")).expect("recovery");
        let mut stream = WalStream::new(log);
        assert_eq!(stream.find_checksum_mismatch().expect("checksums"), None);
        let frames = stream.engine().committed();
        let mut page = [0; PAGE];
        (1..=frames)
            .map(|frame| {
                stream.engine_mut().read_page(frame, &mut page).expect("page");
                page[100]
            })
            .collect()
    }
}

struct Process {
    stream: WalStream<Waldio>,
    holder: Holder,
}

impl Process {
    /// Commits a transaction of one page; returns when it is durable.
    fn commit(&mut self, world: &World, number: u8) {
        loop {
            match self.holder.lock_exclusive(WRITE, 1) {
                Ok(()) => break,
                Err(LockError::Busy) => {
                    self.holder.wait_for_write(Duration::from_millis(1)).expect("wait");
                }
                Err(error) => panic!("{error}"),
            }
        }
        let mut page = [0; PAGE];
        page[100] = number;
        // Copied out and in: a process that dies in between has not changed it.
        let (header, frames, sum) = {
            let index = world.index.lock().expect("index");
            (index.header, index.frames, index.sum)
        };
        let sum = header.extend(sum, u32::from(number) + 1, 30, &page);
        let at = 32 + frames * header.frame_bytes();
        let head = header.frame_header(u32::from(number) + 1, 30, sum);
        self.stream.write(at, &head).expect("frame header");
        self.stream.write(at + 24, &page).expect("page");
        {
            let mut index = world.index.lock().expect("index");
            (index.frames, index.sum) = (frames + 1, sum);
            index.sealed.push(number);
        }
        self.holder.unlock_exclusive(WRITE, 1);
        let ticket = self.stream.take_ticket().expect("a ticket");
        self.stream.engine().committer().expect("a committer").wait(ticket).expect("durable");
        assert!(
            world.durable().contains(&number),
            "transaction {number} was acknowledged and is not durable"
        );
    }
}

/// Three processes commit twice each; one of them may die at an operation.
fn processes_commit(layout: Layout, dies_at: Option<u64>) {
    let (world, first) = World::new(layout);
    let mut first = Some(first);
    let threads: Vec<_> = (0..3u8)
        .map(|index| {
            let world = Arc::clone(&world);
            let first = if index == 0 { first.take() } else { None };
            shuttle::thread::spawn(move || {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let mut process = first.unwrap_or_else(|| {
                        let dies_at = dies_at.filter(|_| index == 1);
                        world.process(world.memory.join(index.into(), dies_at), false)
                    });
                    for round in 0..2 {
                        process.commit(&world, 1 + index * 2 + round);
                    }
                }));
                match result {
                    Err(panic) if !panic.is::<Death>() => std::panic::resume_unwind(panic),
                    result => result.is_ok(),
                }
            })
        })
        .collect();
    let lived: Vec<bool> = threads.into_iter().map(|thread| thread.join().expect("a process")).collect();
    assert!(lived[0] && lived[2]);
    // What is durable is what was sealed, in that order; a dead process may have sealed one more
    // that nobody was told of, which the next writer's took the place of.
    let sealed = world.index.lock().expect("index").sealed.clone();
    let durable = world.durable();
    let of = |numbers: &[u8]| numbers.iter().copied().filter(|number| [3, 4].contains(number)).count();
    let known: Vec<u8> = durable.iter().copied().filter(|number| sealed.contains(number)).collect();
    assert!(sealed.starts_with(&known), "sealed {sealed:?}, durable {durable:?}");
    assert_eq!(known.len() - of(&known), 4, "sealed {sealed:?}, durable {durable:?}");
    assert!(durable.len() <= known.len() + 1);
    assert!(world.block.counters().flushes <= 12);
}

#[test]
fn inv04_what_is_acknowledged_is_durable_in_every_explored_schedule() {
    shuttle::check_random(|| processes_commit(Layout::Delta, None), 3000);
    shuttle::check_pct(|| processes_commit(Layout::Delta, None), 3000, 3);
    shuttle::check_random(|| processes_commit(Layout::Embedded, None), 1000);
}

#[test]
fn inv04_a_process_that_dies_at_any_operation_holds_nobody_up_and_loses_nothing() {
    std::panic::set_hook(Box::new(|_| {}));
    let at = AtomicU64::new(0);
    let next = move || at.fetch_add(1, Ordering::SeqCst) % 250;
    shuttle::check_random(move || processes_commit(Layout::Delta, Some(next())), 2500);
}
