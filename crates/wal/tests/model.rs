//! Compares the engine with a plain byte model of SQLite's log: random transactions, rollbacks, spills, restarts,
//! reopens, and power losses in the middle of any operation.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, Transaction, contents, for_seeds, fresh_medium, open};
use duralite_crashmodel::{Crashes as _, RecordingNvm};
use duralite_format::nvwal::{Order, TX_HEADER_BYTES, encode_mark};
use duralite_medium::{LINE_BYTES, Nvm};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::nvwal::{Nvwal, walk};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{HeapMode, NvwalOptions, SyncMode};

fn options(sync: SyncMode, heap: HeapMode, diff: bool) -> NvwalOptions {
    // Use a small log, so that transactions cross blocks, the file grows by chunks, and the limit is near.
    NvwalOptions { sync, diff, heap, block_bytes: 8192, limit_bytes: 4 << 20, cache_bytes: 0 }
}

fn variants() -> Vec<NvwalOptions> {
    let mut all = Vec::new();
    for sync in [SyncMode::Eager, SyncMode::Lazy, SyncMode::Checksum] {
        for heap in [HeapMode::User, HeapMode::System] {
            for diff in [true, false] {
                all.push(options(sync, heap, diff));
            }
        }
    }
    all
}

/// Runs one random history. Takes the image that a crash before medium operation `crash_at` leaves, and recovers that
/// image.
fn history(seed: u64, options: &NvwalOptions, page_bytes: usize, crash_at: u64) -> Option<()> {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let nvm = Arc::new(fresh_medium(options, page_bytes as u32));
    nvm.crash_before(crash_at, rng.next());
    let mut stream = open(nvm.clone(), options).expect("open");
    let mut model = Model::of_seed(seed, page_bytes, 20);
    for _ in 0..30 {
        let before = model.committed.clone();
        let mut possible = vec![before];
        match rng.below(10) {
            0 if model.frames() > 20 => {
                model.truncate();
                stream.truncate(&NoDatabase, 0).expect("truncate");
            }
            1 | 2 if model.has_header() => {
                // Roll a transaction back: SQLite writes only a part of it, without the page of its commit frame.
                let transaction = model.transaction(&mut rng, false);
                let keep = rng.below(transaction.writes.len() as u64) as usize;
                for (offset, data) in &transaction.writes[..keep] {
                    stream.write(&NoDatabase, *offset, data).expect("write");
                }
            }
            3 => stream = open(nvm.clone(), options).expect("reopen"),
            _ => {
                if !model.has_header() || model.frames() > 150 {
                    let (offset, data) = model.restart();
                    possible.push(model.committed.clone());
                    stream.write(&NoDatabase, offset, &data).expect("restart");
                }
                let spill = rng.chance(3);
                let transaction = model.transaction(&mut rng, spill);
                for (offset, data) in &transaction.writes {
                    stream.write(&NoDatabase, *offset, data).expect("write");
                }
                model.commit(transaction);
            }
        }
        possible.push(model.committed.clone());
        // During a truncation the log is empty for a moment, which is one of the possible contents.
        if let Some(image) = nvm.image().map(|left| nvm.over(left)) {
            recover_and_check(image, options, &possible, seed, crash_at);
            return Some(());
        }
        assert!(contents(&mut stream) == model.committed, "live content differs");
    }
    let image = nvm.crash(rng.next());
    recover_and_check(image, options, &[model.committed.clone()], seed, crash_at);
    None
}

/// Checks that recovery restores one of the possible contents, that a second recovery restores the same, and that the
/// log is usable afterwards.
fn recover_and_check(
    image: duralite_crashmodel::RecordingNvm,
    options: &NvwalOptions,
    possible: &[Vec<u8>],
    seed: u64,
    crash_at: u64,
) {
    let image: Arc<dyn Nvm> = Arc::new(image);
    let first = contents(&mut open(image.clone(), options).expect("recovery"));
    let index = possible.iter().rposition(|content| *content == first);
    assert!(
        index.is_some(),
        "seed {seed}, crash at {crash_at}: recovered {} bytes, possible {:?}",
        first.len(),
        possible.iter().map(Vec::len).collect::<Vec<_>>()
    );
    let mut again = open(image, options).expect("second recovery");
    assert!(contents(&mut again) == first, "recovering twice differs");
    let mut model = Model::new(again.engine().superblock().head.page_bytes as usize, 20);
    let (offset, data) = model.restart();
    again.write(&NoDatabase, offset, &data).expect("restart after recovery");
    let transaction = model.transaction(&mut Rng(seed | 1), true);
    for (offset, data) in &transaction.writes {
        again.write(&NoDatabase, *offset, data).expect("write after recovery");
    }
    model.commit(transaction);
    assert!(contents(&mut again) == model.committed, "content after recovery differs");
}

#[test]
fn inv07_every_acknowledged_commit_survives_a_power_loss_anywhere() {
    for (i, options) in variants().iter().enumerate() {
        for_seeds(60, |seed| {
            let crash_at = Rng(seed * 77 + i as u64 + 1).below(900);
            history(seed * 100 + i as u64, options, 512, crash_at);
        });
    }
}

#[test]
fn inv07_histories_without_a_crash_match_the_model_at_every_page_size() {
    for page_bytes in [512, 1024, 4096, 65536] {
        for_seeds(4, |seed| {
            let big =
                NvwalOptions { limit_bytes: 256 << 20, ..options(SyncMode::Lazy, HeapMode::User, true) };
            assert_eq!(history(seed, &big, page_bytes, u64::MAX), None);
        });
    }
}

#[test]
fn inv05_inv07_async_keeps_a_prefix_and_is_forced_before_home_writes() {
    for_seeds(40, |seed| {
        let options = options(SyncMode::Async, HeapMode::User, true);
        let mut rng = Rng(seed * 31 + 7);
        let nvm = Arc::new(fresh_medium(&options, 512));
        let mut stream = open(nvm.clone(), &options).expect("open");
        let mut model = Model::of_seed(seed, 512, 20);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        let mut prefixes = vec![model.committed.clone()];
        for _ in 0..20 {
            let transaction = model.transaction(&mut rng, false);
            for (offset, data) in &transaction.writes {
                stream.write(&NoDatabase, *offset, data).expect("write");
            }
            model.commit(transaction);
            prefixes.push(model.committed.clone());
        }
        let crashed: Arc<dyn Nvm> = Arc::new(nvm.crash(rng.next()));
        let recovered = contents(&mut open(crashed, &options).expect("recovery"));
        assert!(prefixes.contains(&recovered), "not a prefix");
        // Invariant 5: the VFS forces the log before it writes any page home.
        stream.engine_mut().force().expect("force");
        let forced: Arc<dyn Nvm> = Arc::new(nvm.crash(rng.next()));
        assert!(contents(&mut open(forced, &options).expect("recovery")) == model.committed);
    });
}

/// Writes a transaction of two frames. If the engine logs whole pages, all such transactions have the same length.
fn write_two_frames(stream: &mut WalStream<Nvwal>, model: &Model, rng: &mut Rng) -> Transaction {
    let mut transactions = std::iter::repeat_with(|| model.transaction(rng, false));
    let transaction = transactions.find(|found| found.writes.len() == 4).expect("endless");
    for (offset, data) in &transaction.writes {
        stream.write(&NoDatabase, *offset, data).expect("write");
    }
    transaction
}

/// Where a transaction is on the medium: its header and records, as offsets and lengths, and the offset of its end.
struct Placed {
    parts: Vec<(u64, u64)>,
    end: u64,
}

impl Placed {
    fn begin(&self) -> u64 {
        self.parts[0].0
    }

    /// Writes back the cache lines of the transaction, as the processor may do, except for the one with the
    /// terminator.
    fn evict(&self, nvm: &RecordingNvm) {
        for (at, bytes) in &self.parts {
            for line in at / LINE_BYTES..(at + bytes).div_ceil(LINE_BYTES) {
                if line != self.end / LINE_BYTES {
                    nvm.flush(line * LINE_BYTES, LINE_BYTES);
                }
            }
        }
        nvm.fence();
    }
}

/// Returns the transactions of a log.
fn placed(nvm: &Arc<RecordingNvm>) -> Vec<Placed> {
    let mut all = Vec::new();
    walk(nvm.clone(), Path::new("model"), &NoDatabase, |found| {
        let records = found.records.iter().map(|record| (record.offset, u64::from(record.record_bytes)));
        let parts: Vec<_> = [(found.offset, u64::from(TX_HEADER_BYTES))].into_iter().chain(records).collect();
        let end = parts.last().map_or(0, |(at, bytes)| (at + bytes).next_multiple_of(8));
        all.push(Placed { parts, end });
    })
    .expect("walk");
    all
}

/// Returns the number of transactions that an attaching process finds in the log.
fn count(nvm: RecordingNvm, options: &NvwalOptions) -> u32 {
    Nvwal::open(Arc::new(nvm), Path::new("model"), options.clone()).expect("a sound log").transactions()
}

/// A power loss tears a transaction, and the transaction after it stays whole. For recovery the log ends before both. A
/// new transaction then ends exactly where the whole one begins, and the power fails again, before the new terminator
/// is durable.
#[test]
fn inv07_what_a_power_loss_left_behind_a_torn_transaction_never_counts_again() {
    // The torn transaction is in the first block, or reaches into a second block, which recovery frees.
    for before in [2, 7] {
        let options = options(SyncMode::Async, HeapMode::User, false);
        let (mut rng, nvm) = (Rng(before + 1), Arc::new(fresh_medium(&options, 512)));
        let mut stream = open(nvm.clone(), &options).expect("open");
        let mut model = Model::new(512, 20);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        for _ in 0..before {
            let transaction = write_two_frames(&mut stream, &model, &mut rng);
            model.commit(transaction);
        }
        stream.engine_mut().force().expect("force");
        let mut lost = model.clone();
        for _ in 0..2 {
            let transaction = write_two_frames(&mut stream, &lost, &mut rng);
            lost.commit(transaction);
        }
        let whole = placed(&nvm).pop().expect("transactions");
        whole.evict(&nvm);
        // The terminator of the whole transaction shares its cache line with the end of that transaction.
        nvm.flush(whole.end, 8);
        nvm.fence();
        let is_torn = |left: &RecordingNvm| u64::from(count(left.survive(), &options)) == before;
        let left = (0..1000).map(|seed| nvm.crash(seed)).find(is_torn).expect("a torn transaction");
        assert_ne!(left.load_u64(whole.begin()), 0, "the mark of the whole transaction");
        let left = Arc::new(left);
        let mut stream = open(left.clone(), &options).expect("recovery");
        write_two_frames(&mut stream, &model, &mut rng);
        let again = placed(&left).pop().expect("transactions");
        assert_eq!(again.end, whole.begin(), "it ends where the other one began");
        again.evict(&left);
        for seed in 0..300 {
            let found = u64::from(count(left.crash(seed), &options));
            assert!(found <= before + 1, "{found} transactions after {before} and one, seed {seed}");
        }
    }
}

/// A process dies after it has stored a mark and before it has flushed the mark. The next process sees the transaction
/// and commits another one after it.
#[test]
fn inv07_no_mark_is_durable_before_those_in_front_of_it() {
    let options = options(SyncMode::Async, HeapMode::User, false);
    let (mut rng, nvm) = (Rng(3), Arc::new(fresh_medium(&options, 512)));
    let attach = || {
        let engine = Nvwal::open(nvm.clone(), Path::new("model"), options.clone()).expect("attach");
        WalStream::new(engine)
    };
    let (mut dying, mut model) = (attach(), Model::new(512, 20));
    let (offset, data) = model.restart();
    dying.write(&NoDatabase, offset, &data).expect("restart");
    let first = write_two_frames(&mut dying, &model, &mut rng);
    model.commit(first);
    dying.engine_mut().force().expect("force");
    nvm.drop_flush(0);
    let second = write_two_frames(&mut dying, &model, &mut rng);
    model.commit(second);
    let generation = dying.engine().generation();
    std::mem::forget(dying);
    let mut next = attach();
    write_two_frames(&mut next, &model, &mut rng);
    let marks = [2, 3].map(|sequence| encode_mark(Order::Async, generation, sequence).to_le_bytes());
    for seed in 0..300 {
        let left = nvm.crash(seed).to_bytes();
        let [second, third] = marks.map(|mark| left.chunks_exact(8).any(|word| word == mark));
        assert!(second || !third, "seed {seed}");
    }
}

/// Several processes share the medium, and each has an index of its own. The processes write in turns, as SQLite's
/// WRITE lock enforces, roll back and restart. Some die after storing a part of a transaction.
#[test]
fn inv11_processes_that_take_turns_agree() {
    for_seeds(300, |seed| {
        let options = options(SyncMode::Lazy, HeapMode::User, true);
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let nvm: Arc<dyn Nvm> = Arc::new(fresh_medium(&options, 512));
        let attach =
            || duralite_wal::engines::nvwal::Nvwal::open(nvm.clone(), "model".as_ref(), options.clone());
        let fresh = || duralite_wal::log::stream::WalStream::new(attach().expect("attach"));
        let mut processes = [fresh(), fresh(), fresh()];
        let mut model = Model::of_seed(seed, 512, 20);
        for _ in 0..60 {
            let writer = rng.below(3) as usize;
            let process = &mut processes[writer];
            match rng.below(10) {
                0 if model.has_header() => {
                    model.truncate();
                    process.truncate(&NoDatabase, 0).expect("truncate");
                }
                1..=3 if model.has_header() => {
                    let spill = rng.chance(2);
                    let transaction = model.transaction(&mut rng, spill);
                    let keep = rng.below(transaction.writes.len() as u64 / 2 + 1) as usize;
                    for (offset, data) in &transaction.writes[..keep] {
                        process.write(&NoDatabase, *offset, data).expect("write");
                    }
                    if rng.chance(2) {
                        processes[writer] = fresh();
                    }
                }
                _ => {
                    if !model.has_header() || rng.chance(8) {
                        let (offset, data) = model.restart();
                        process.write(&NoDatabase, offset, &data).expect("restart");
                    }
                    let transaction = model.transaction(&mut rng, false);
                    for (offset, data) in &transaction.writes {
                        process.write(&NoDatabase, *offset, data).expect("write");
                    }
                    model.commit(transaction);
                }
            }
            // Refresh the engine without the stream, as happens before a page is written home. The stream must notice
            // that the engine has dropped the staged frames.
            if rng.chance(4) {
                processes[rng.below(3) as usize].engine_mut().refresh().expect("refresh");
            }
            // Not every process refreshes its view each time, so the view may be many generations old.
            let reader = rng.below(6) as usize;
            if let Some(process) = processes.get_mut(reader) {
                // First read a piece from the middle. What the stream remembers of this piece must not be used for
                // another generation.
                let from = rng.below(model.committed.len() as u64 + 1) as usize;
                let mut piece = vec![0; (model.committed.len() - from).min(30)];
                let count = process.read(&NoDatabase, from as u64, &mut piece).expect("read");
                assert!(
                    piece[..count] == model.committed[from..from + piece.len()],
                    "a piece of a reader's view differs"
                );
                assert!(contents(process) == model.committed, "a reader's view differs");
            }
        }
    });
}

/// A commit that waits until it is durable also makes the earlier `Async` commits durable, whichever [`SyncMode`] it
/// uses itself.
#[test]
fn inv04_a_commit_that_waits_takes_along_those_below_that_did_not() {
    for sync in [SyncMode::Lazy, SyncMode::Eager, SyncMode::Checksum] {
        for_seeds(200, |seed| {
            let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
            let options = options(SyncMode::Async, HeapMode::User, true);
            let nvm = Arc::new(fresh_medium(&options, 512));
            let mut stream = open(nvm.clone(), &options).expect("open");
            let mut model = Model::new(512, 20);
            let (offset, data) = model.restart();
            stream.write(&NoDatabase, offset, &data).expect("restart");
            for sync in [SyncMode::Async, sync] {
                let nvwal = NvwalOptions { sync, ..options.clone() };
                let settings = duralite_wal::EngineOptions::default().with(nvwal);
                stream.engine_mut().configure(&settings);
                let transaction = model.transaction(&mut rng, false);
                for (offset, data) in &transaction.writes {
                    stream.write(&NoDatabase, *offset, data).expect("write");
                }
                model.commit(transaction);
            }
            let left: Arc<dyn Nvm> = Arc::new(nvm.crash(rng.next()));
            let mut recovered = open(left, &options).expect("recovery");
            assert!(contents(&mut recovered) == model.committed, "{sync:?}: a commit that waited is lost");
        });
    }
}

/// SQLite splits a write at a sector boundary if it syncs there. The boundary may be anywhere in a header or a page.
#[test]
fn writes_in_pieces_mean_the_same() {
    for_seeds(60, |seed| {
        let options = options(SyncMode::Lazy, HeapMode::User, true);
        let mut rng = Rng(seed * 7919 + 1);
        let mut stream = open(Arc::new(fresh_medium(&options, 512)), &options).expect("open");
        let mut model = Model::new(512, 20);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        for _ in 0..20 {
            let transaction = model.transaction(&mut rng, false);
            for (offset, data) in &transaction.writes {
                let cut = rng.below(data.len() as u64) as usize;
                for (at, piece) in [(0, &data[..cut]), (cut, &data[cut..])] {
                    if !piece.is_empty() {
                        stream.write(&NoDatabase, offset + at as u64, piece).expect("write");
                    }
                }
            }
            model.commit(transaction);
            assert!(contents(&mut stream) == model.committed, "content differs");
        }
    });
}
