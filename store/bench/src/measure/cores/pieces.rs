//! The costs of single operations, measured without disturbance.

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

/// Processor time that this process or this thread has used, in nanoseconds.
pub(super) fn cpu_ns(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The costs of the machine's parts, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// Taking and releasing a mutex that no other thread wants.
    pub(super) mutex: f64,
    /// Processor time to wake a sleeping thread, and to be woken.
    pub(super) switch: f64,
    /// The time from one thread's wake-up call until the other thread runs, while both cores are otherwise
    /// idle, without that processor time.
    pub(super) idle_wake: f64,
    /// An atomic increment of a line that no other core has, and of one that two cores keep incrementing.
    pub(super) alone: f64,
    pub(super) contended: f64,
    /// The transfer of a line between two cores that change it in turns.
    pub(super) transfer: f64,
    /// Reading the clock.
    pub(super) clock: f64,
}

/// How often each operation is measured. The minimum counts, since any other load of the machine makes it
/// longer.
const ROUNDS: usize = 50;

fn least(mut once: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).fold(f64::INFINITY, |least, _| once().min(least))
}

/// The time of a call, averaged over this many calls.
fn per_call(calls: u32, mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..calls).for_each(|_| call());
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// The time of a call, averaged over this many calls, while another thread makes the same calls.
fn contended(calls: u32, call: impl Fn() + Sync) -> f64 {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::SeqCst);
            while !over.load(Ordering::Relaxed) {
                call();
            }
        });
        // This thread does not yield, so that each thread has a core of its own.
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        let time = per_call(calls, &call);
        over.store(true, Ordering::SeqCst);
        time
    })
}

/// The time that a word takes from one core to the other, if both change it in turns.
fn transfer(turns: u32) -> f64 {
    let word = AtomicU64::new(0);
    let take = |from: u64| {
        let mut tries = 0_u32;
        while word.load(Ordering::Acquire) != from {
            std::hint::spin_loop();
            tries += 1;
            // The other thread has probably lost its core.
            if tries.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
        }
        word.store(from + 1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=u64::from(turns)).for_each(|turn| take(turn * 2 + 1)));
        // Wait until the other thread runs.
        take(0);
        let mut turn = 0;
        per_call(turns, || {
            turn += 2;
            take(turn);
        }) / 2.0
    })
}

/// Two threads wake each other this often. Returns the processor time and the remaining time for each
/// wake-up.
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

/// Measures all parts.
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
        // The minimum would be from a moment at which the other thread did not run.
        contended: median([(); ROUNDS].map(|()| contended(5000, add))),
        transfer: least(|| transfer(500)),
        clock: least(|| per_call(5000, read_clock)),
    }
}

/// The time to seal an object of this many bytes and to copy it into the central buffer.
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
    /// The wait until a commit is durable, after few and after many changes.
    pub(super) force: [f64; 2],
    /// The objects, and their bytes, of each of the two commits.
    pub(super) objects: [f64; 2],
    pub(super) bytes: [f64; 2],
}

/// Changes before a commit.
const FEW_AND_MANY: [u32; 2] = [1, 40];

/// Measures a log with transactions of one thread on rows of its own.
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
        // The objects were made durable when they were put into the log.
        pieces.force[1] = pieces.force[0];
    }
    Ok(pieces)
}
