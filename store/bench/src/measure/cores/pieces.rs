//! Measures what single operations cost when nothing disturbs them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use duralite_bench::workload::median;
use duralite_store::Scheme;
use duralite_store::format::{Object, ObjectKind, seal_object};
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};

use crate::nv::NvDb;
use crate::row::{key, row};

/// Returns the processor time that this process or this thread has used, in nanoseconds.
pub(super) fn cpu_ns(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The costs of the machine's basic operations, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// The time to take and release a mutex that no other thread uses.
    pub(super) mutex: f64,
    /// The processor time that it takes to wake a sleeping thread, and to be woken.
    pub(super) switch: f64,
    /// The time from a wake-up call until the woken thread runs, if both cores are otherwise idle. Does not include the
    /// processor time `switch`.
    pub(super) idle_wake: f64,
    /// The time of an atomic increment: of a cache line that no other core uses (`alone`), and of one that another core
    /// increments all the time (`contended`).
    pub(super) alone: f64,
    pub(super) contended: f64,
    /// The time to move a cache line from one core to another, while two cores change it in turn.
    pub(super) transfer: f64,
    /// The time to read the clock once.
    pub(super) clock: f64,
}

/// The number of measurements of each operation. The minimum counts, because any other load on the machine makes an
/// operation take longer.
const ROUNDS: usize = 50;

fn least(mut once: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).fold(f64::INFINITY, |least, _| once().min(least))
}

/// Returns how long one call takes: the mean of `calls` calls.
fn per_call(calls: u32, mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..calls).for_each(|_| call());
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Returns how long one call takes while another thread makes the same calls: the mean of `calls` calls.
fn contended(calls: u32, call: impl Fn() + Sync) -> f64 {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::SeqCst);
            while !over.load(Ordering::Relaxed) {
                call();
            }
        });
        // Spins and does not yield, so that each thread gets a core of its own.
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        let time = per_call(calls, &call);
        over.store(true, Ordering::SeqCst);
        time
    })
}

/// Returns how long it takes to move a word from one core to another, while two cores change it in turn.
fn transfer(turns: u32) -> f64 {
    let word = AtomicU64::new(0);
    let take = |from: u64| {
        let mut tries = 0_u32;
        while word.load(Ordering::Acquire) != from {
            std::hint::spin_loop();
            tries += 1;
            // After this many attempts, the other thread has probably lost its core.
            if tries.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
        }
        word.store(from + 1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=u64::from(turns)).for_each(|turn| take(turn * 2 + 1)));
        // Waits until the other thread runs.
        take(0);
        let mut turn = 0;
        per_call(turns, || {
            turn += 2;
            take(turn);
        }) / 2.0
    })
}

/// Lets two threads wake each other, `turns` times each. Returns the processor time of one wake-up, and how much longer
/// than that the wake-up takes.
fn switches(turns: u64) -> (f64, f64) {
    let (turn, changed) = (Mutex::new(0_u64), Condvar::new());
    let (turn, changed) = (&turn, &changed);
    let work = move |own: u64| {
        for at in 0..turns {
            let mut turn = turn.lock();
            while *turn != at * 2 + own {
                changed.wait(&mut turn);
            }
            *turn += 1;
            drop(turn);
            changed.notify_one();
        }
    };
    let (cpu, begun) = (cpu_ns(ClockId::ProcessCPUTime), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(move || work(1));
        work(0);
    });
    let all = (turns * 2) as f64;
    let each = (cpu_ns(ClockId::ProcessCPUTime) - cpu) / all;
    (each, (begun.elapsed().as_nanos() as f64 / all - each).max(0.0))
}

/// Measures all basic operations.
pub(super) fn parts() -> Parts {
    let (lock, word) = (Mutex::new(0_u64), AtomicU64::new(0));
    let add = || {
        std::hint::black_box(&word).fetch_add(1, Ordering::SeqCst);
    };
    let read_clock = || {
        std::hint::black_box(Instant::now());
    };
    Parts {
        mutex: least(|| per_call(5000, || *std::hint::black_box(&lock).lock() += 1)),
        switch: least(|| switches(200).0),
        idle_wake: least(|| switches(200).1),
        alone: least(|| per_call(5000, add)),
        // Takes the median, because the minimum would be from a moment at which the other thread did not run.
        contended: median([(); ROUNDS].map(|()| contended(5000, add))),
        transfer: least(|| transfer(500)),
        clock: least(|| per_call(5000, read_clock)),
    }
}

/// Returns how long it takes to seal a log object of `bytes` bytes (to set its number and its checksum), and to copy it
/// into the central buffer.
pub(super) fn seal(bytes: f64) -> f64 {
    let mut object = Object::build(ObjectKind::Commit, 1, 0, &vec![7; bytes as usize], &[]);
    let mut buffer: Vec<u8> = Vec::with_capacity(1 << 20);
    let mut lsn = 0;
    least(|| {
        buffer.clear();
        per_call(500, || {
            lsn += 1;
            seal_object(&mut object, lsn, 1, 7);
            buffer.extend(std::hint::black_box(&object));
        })
    })
}

/// The costs of a scheme's log, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogPieces {
    /// How much longer it takes to change a row than to read it for a change.
    pub(super) change: f64,
    /// The time for which a commit waits until it is durable, after few and after many changes.
    pub(super) force: [f64; 2],
    /// For each of the two commits in `force`: the number of its objects, and their size in bytes.
    pub(super) objects: [f64; 2],
    pub(super) bytes: [f64; 2],
}

/// How many changes a transaction makes before its commit: few, or many.
const FEW_AND_MANY: [u32; 2] = [1, 40];

/// Measures a log with the transactions of a single thread, on rows that only this thread uses.
pub(super) fn log_pieces(db: &NvDb, scheme: Scheme) -> Result<LogPieces> {
    let table = db.store.table("pieces")?;
    let mut pieces = LogPieces::default();
    let mut times = [Vec::new(), Vec::new()];
    for (at, changes) in FEW_AND_MANY.into_iter().enumerate() {
        let (mut waits, begin) = (Vec::new(), db.store.metrics());
        let rounds = 4000 / (changes + 4);
        for round in 0..rounds {
            let mut tx = db.store.begin();
            for change in 0..changes {
                let at = key(&[change]);
                tx.put(&table, &at, &row(100, &[i64::from(round)]))?;
                let begun = Instant::now();
                tx.get_for_update(&table, &at)?;
                times[0].push(begun.elapsed().as_nanos() as f64);
                let begun = Instant::now();
                tx.put(&table, &at, &row(100, &[i64::from(round) + 1]))?;
                times[1].push(begun.elapsed().as_nanos() as f64);
            }
            let ticket = tx.commit_async()?;
            let begun = Instant::now();
            ticket.wait()?;
            waits.push(begun.elapsed().as_nanos() as f64);
        }
        let end = db.store.metrics();
        pieces.force[at] = median(&waits);
        pieces.objects[at] = f64::from(changes * 2 + 1);
        pieces.bytes[at] = (end.log_bytes - begin.log_bytes) as f64 / f64::from(rounds);
    }
    pieces.change = (median(&times[1]) - median(&times[0])).max(0.0);
    if scheme == Scheme::FlushOnInsert {
        // With this scheme, appending an object makes it durable, so the number of changes makes no difference.
        pieces.force[1] = pieces.force[0];
    }
    Ok(pieces)
}
