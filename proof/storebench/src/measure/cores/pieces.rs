//! What single things cost, measured where nobody is in the way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use duralite_logfmt::store::{Object, ObjectKind, seal_object};
use duralite_store::Scheme;
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};

use crate::nv::NvDb;
use crate::row::{key, row};
use crate::workload::median;

/// Nanoseconds of processor time that this process, or this thread, has used.
pub(super) fn cpu_ns(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// What the machine's parts cost, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// A mutex that nobody else wants, taken and given back.
    pub(super) mutex: f64,
    /// Processor time of waking a thread that sleeps, and of being woken.
    pub(super) switch: f64,
    /// From one thread to the other, while both cores have nothing else to do, less that time.
    pub(super) idle_wake: f64,
    /// An atomic increment of a line that no other core has, and of one that two cores increment all the time.
    pub(super) alone: f64,
    pub(super) contended: f64,
    /// A line that two cores change in turns, from one to the other.
    pub(super) transfer: f64,
    /// Reading the clock.
    pub(super) clock: f64,
}

/// So many times each is done, and the least taken: whatever else the machine does makes it longer.
const ROUNDS: usize = 50;

fn least(mut once: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).fold(f64::INFINITY, |least, _| once().min(least))
}

/// How long one of so many calls takes.
fn per_call(calls: u32, mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..calls).for_each(|_| call());
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// How long one of so many calls takes while another thread makes the same ones.
fn contended(calls: u32, call: impl Fn() + Sync) -> f64 {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::SeqCst);
            while !over.load(Ordering::Relaxed) {
                call();
            }
        });
        // Without giving this core away: each has one then.
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        let time = per_call(calls, &call);
        over.store(true, Ordering::SeqCst);
        time
    })
}

/// How long a word takes from one core to the other, changed by both in turns.
fn transfer(turns: u32) -> f64 {
    let word = AtomicU64::new(0);
    let take = |from: u64| {
        let mut tries = 0_u32;
        while word.load(Ordering::Acquire) != from {
            std::hint::spin_loop();
            tries += 1;
            // The other one has lost its core.
            if tries.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
        }
        word.store(from + 1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=u64::from(turns)).for_each(|turn| take(turn * 2 + 1)));
        // Until the other one runs.
        take(0);
        let mut turn = 0;
        per_call(turns, || {
            turn += 2;
            take(turn);
        }) / 2.0
    })
}

/// Two threads wake each other so often: processor time and the rest of the time, for each time.
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

/// Measures them.
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
        // The least would be of a moment at which the other one did not run.
        contended: median(&[(); ROUNDS].map(|()| contended(5000, add))),
        transfer: least(|| transfer(500)),
        clock: least(|| per_call(5000, read_clock)),
    }
}

/// Sealing an object of so many bytes and copying it into the central buffer.
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

/// What a scheme's log costs, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogPieces {
    /// What changing a row takes longer than reading it for that.
    pub(super) change: f64,
    /// Waiting for a commit with so many objects before it to be durable.
    pub(super) force: [f64; 2],
    /// Objects and their bytes in each of the two.
    pub(super) objects: [f64; 2],
    pub(super) bytes: [f64; 2],
}

/// Changes before a commit.
const FEW_AND_MANY: [u32; 2] = [1, 40];

/// Measures a log by transactions of one thread on rows of its own.
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
        // It has been done when the object was put in.
        pieces.force[1] = pieces.force[0];
    }
    Ok(pieces)
}
