//! Long values are written and read, as a whole and in pieces, while the log is smaller than the values.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::io::{self, Read};
use std::sync::Arc;

use common::crash::{OnRig, Rig};
use common::{options, schemes};
use duralite_store::{Error, Options, Scheme, Store, VALUE_LIMIT};

const LONG: usize = 64 << 20;

fn smallest(options: Options, page_bytes: u32) -> Options {
    options.page_bytes(page_bytes).cache_bytes(Options::smallest_cache_bytes(page_bytes))
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Returns all schemes except the one in which each transaction writes its own blocks. How much fits into the log
/// depends in that scheme on how full these blocks are.
fn schemes_that_fill_blocks() -> impl Iterator<Item = Scheme> {
    schemes().into_iter().filter(|scheme| *scheme != Scheme::NvDiskDecentralized)
}

/// A source that yields its bytes in pieces of random size. If the flag is set, it fails at the end.
struct Pieces<'a>(&'a [u8], fastrand::Rng, bool);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() && self.2 {
            return Err(io::Error::other("the source broke off"));
        }
        let most = buffer.len().min(self.1.usize(1..20_000));
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn values_of_64_mib_need_a_log_of_12_mib() {
    for scheme in schemes_that_fill_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(dir.path().join("s"), smallest(options(scheme), 8192).log_bytes(12 << 20)).unwrap();
        let table = store.table("t").unwrap();
        let value = bytes(LONG, 1);
        let stream = || Pieces(&value, fastrand::Rng::with_seed(2), false);
        store
            .run(|tx| tx.put_stream(&table, b"in pieces", &mut stream()))
            .unwrap_or_else(|error| panic!("{scheme:?}: {error}"));
        store.run(|tx| tx.put(&table, b"at once", &value)).unwrap();
        let tx = store.begin();
        for key in [&b"in pieces"[..], b"at once"] {
            let mut reader = tx.get_stream(&table, key).unwrap().unwrap();
            assert_eq!(reader.len(), LONG as u64);
            let mut found = Vec::new();
            reader.read_to_end(&mut found).unwrap();
            assert!(found == value, "{scheme:?}");
        }
        drop(tx);
        store.run(|tx| tx.delete(&table, b"at once")).unwrap();
        // After the rollback, all pages of the value must be free again.
        let pages = store.verify().unwrap().pages;
        let mut tx = store.begin();
        tx.put_stream(&table, b"never", &mut stream()).unwrap();
        tx.rollback().unwrap();
        assert_eq!(store.verify().unwrap().pages, pages, "{scheme:?}");
    }
}

#[test]
fn a_log_that_is_too_small_is_named_with_the_size_that_is_enough() {
    for scheme in schemes_that_fill_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let with_log = |bytes| smallest(options(scheme), 4096).log_bytes(bytes);
        let value = vec![7; 48 << 20];
        let store = Store::open(&path, with_log(4 << 20)).unwrap();
        let table = store.table("t").unwrap();
        let before = store.metrics().log_bytes;
        let Err(Error::Full { what }) = store.run(|tx| tx.put(&table, b"long", &value)) else {
            panic!("{scheme:?}: it has been put")
        };
        assert!(store.metrics().log_bytes - before < 4096, "{scheme:?}: it was refused late");
        let mut tx = store.begin();
        let streamed = tx.put_stream(&table, b"long", &mut io::repeat(7).take(48 << 20));
        assert!(matches!(streamed, Err(Error::Full { .. })), "{scheme:?}: {streamed:?}");
        tx.rollback().unwrap();
        store.verify().unwrap();
        drop((table, store));
        let enough = what.split(' ').filter_map(|word| word.parse().ok()).next_back().unwrap();
        let store = Store::open(&path, with_log(enough)).unwrap();
        let table = store.table("t").unwrap();
        store.run(|tx| tx.put(&table, b"long", &value)).unwrap_or_else(|error| panic!("{scheme:?}: {error}"));
    }
}

#[test]
fn values_of_all_lengths_are_streamed_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), smallest(Options::default(), 4096)).unwrap();
    let table = store.table("t").unwrap();
    let piece = 4096 - 48;
    let lens =
        [0, 1, 900, 1000, 1010, 1012, 1013, 4000, piece - 1, piece, piece + 1, 2 * piece, 2 * piece + 1];
    for (seed, len) in (0..).zip(lens) {
        for key_len in [0, 1, 900, 1024] {
            let (value, key) = (bytes(len, seed), vec![1; key_len]);
            let mut source = Pieces(&value, fastrand::Rng::with_seed(seed), false);
            let written = store.run(|tx| tx.put_stream(&table, &key, &mut source)).unwrap();
            assert_eq!(written, len as u64);
            let tx = store.begin();
            assert_eq!(tx.get(&table, &key).unwrap().as_ref(), Some(&value), "{len} with a key of {key_len}");
            let mut found = Vec::new();
            let mut reader = tx.get_stream(&table, &key).unwrap().unwrap();
            assert_eq!((reader.len(), reader.is_empty()), (len as u64, len == 0));
            reader.read_to_end(&mut found).unwrap();
            assert_eq!(found, value, "{len} with a key of {key_len}");
        }
        store.verify().unwrap();
    }
    assert!(store.begin().get_stream(&table, b"nobody").unwrap().is_none());
}

/// Reads the next `bytes` bytes, in pieces of random size.
fn read_on(from: &mut impl Read, bytes: usize, found: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let until = found.len() + bytes;
    while found.len() < until {
        let mut piece = vec![0; random.usize(1..9000).min(until - found.len())];
        let count = from.read(&mut piece).unwrap();
        if count == 0 {
            return;
        }
        found.extend(&piece[..count]);
    }
}

/// The things that may happen to a row while a snapshot streams it.
const FATES: [&str; 5] = ["stays", "is deleted", "is changed", "is moved", "goes with its table"];

#[test]
fn inv56_a_snapshot_streams_a_value_whatever_becomes_of_the_row() {
    for seed in 0..20 {
        for fate in FATES {
            let mut random = fastrand::Rng::with_seed(seed);
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path().join("s"), smallest(Options::default(), 4096)).unwrap();
            let (before, table) = (store.table("before").unwrap(), store.table("t").unwrap());
            let value = bytes(random.usize(0..100_000), seed);
            store.run(|tx| tx.put(&before, b"gap", &vec![1; 300_000])).unwrap();
            store.run(|tx| tx.put_stream(&table, b"k", &mut value.as_slice())).unwrap();
            let snapshot = store.snapshot();
            let mut stream = snapshot.get_stream(&table, b"k").unwrap().unwrap();
            assert_eq!(stream.len(), value.len() as u64);
            let mut found = Vec::new();
            read_on(&mut stream, random.usize(0..=value.len()), &mut found, &mut random);
            match fate {
                "is deleted" => assert!(store.run(|tx| tx.delete(&table, b"k")).unwrap()),
                "is changed" => {
                    store.run(|tx| tx.put(&table, b"k", &vec![2; value.len()])).unwrap();
                    read_on(&mut stream, random.usize(0..10_000), &mut found, &mut random);
                    store.run(|tx| tx.put(&table, b"k", b"short")).unwrap();
                }
                "is moved" => {
                    store.run(|tx| tx.delete(&before, b"gap")).unwrap();
                    store.compact().unwrap();
                }
                "goes with its table" => assert!(store.drop_table("t").unwrap()),
                _ => {}
            }
            // Writes another value, which may reuse the pages of the first one if they were freed.
            let other = store.table("other").unwrap();
            store.run(|tx| tx.put(&other, b"other", &vec![3; 200_000])).unwrap();
            read_on(&mut stream, usize::MAX / 2, &mut found, &mut random);
            assert!(found == value, "seed {seed}: {fate}: {} of {} bytes", found.len(), value.len());
            drop(stream);
            drop(snapshot);
            store.verify().unwrap();
        }
    }
}

#[test]
fn inv57_a_stream_of_a_snapshot_that_has_ended_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let options = smallest(Options::default(), 4096).snapshot_bytes(10_000);
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"k", &[1; 100_000])).unwrap();
    let snapshot = store.snapshot();
    let mut stream = snapshot.get_stream(&table, b"k").unwrap().unwrap();
    let mut piece = [0; 100];
    stream.read_exact(&mut piece).unwrap();
    store.run(|tx| tx.delete(&table, b"k")).unwrap();
    for n in 0..100_u32 {
        store.run(|tx| tx.put(&table, &n.to_be_bytes(), &[2; 500])).unwrap();
    }
    assert_eq!(store.metrics().snapshots_ended, 1);
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    let source = error.get_ref().and_then(|source| source.downcast_ref::<Error>());
    assert!(matches!(source, Some(Error::SnapshotTooOld)), "{error}");
    assert!(matches!(snapshot.approximate_len(&table), Err(Error::SnapshotTooOld)));
}

#[test]
fn a_source_that_breaks_off_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), smallest(Options::default(), 4096)).unwrap();
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"k", b"before")).unwrap();
    let pages = store.verify().unwrap().pages;
    let mut tx = store.begin();
    let savepoint = tx.savepoint();
    let value = bytes(1 << 20, 3);
    let mut source = Pieces(&value, fastrand::Rng::with_seed(4), true);
    let broken = tx.put_stream(&table, b"k", &mut source);
    assert!(matches!(broken, Err(Error::Io { .. })), "{broken:?}");
    tx.rollback_to(savepoint).unwrap();
    assert_eq!(tx.get(&table, b"k").unwrap(), Some(b"before".to_vec()));
    tx.commit().unwrap();
    assert_eq!(store.verify().unwrap().pages, pages);
    assert_eq!(VALUE_LIMIT, 1 << 30);
}

/// The value is one byte too long. If a program passes it as a whole, the store refuses it at once. If a program
/// streams it, the store notices only at the end of the value. Testing the stream, and the longest allowed value, takes
/// a gigabyte of disk, so this part runs only with `STORE_LARGE`.
#[test]
fn a_value_that_is_too_long_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), smallest(Options::default(), 32768)).unwrap();
    let table = store.table("t").unwrap();
    let too_long = VALUE_LIMIT + 1;
    let is_refused =
        |done: Result<(), Error>| matches!(done, Err(Error::RowTooLong { len }) if len == too_long);
    // The system allocates no memory for zero pages that nobody touches.
    let value = vec![0; too_long as usize];
    let before = store.metrics();
    let mut tx = store.begin();
    tx.put(&table, b"k", b"before").unwrap();
    assert!(is_refused(tx.put(&table, b"k", &value)));
    assert!(is_refused(tx.insert(&table, b"new", &value)));
    // The transaction can continue after the error.
    assert_eq!(tx.get(&table, b"k").unwrap().unwrap(), b"before");
    tx.commit().unwrap();
    assert!(store.metrics().log_bytes - before.log_bytes < 64 << 10);
    if std::env::var_os("STORE_LARGE").is_none() {
        return;
    }
    let pages = store.verify().unwrap().pages;
    let mut tx = store.begin();
    let savepoint = tx.savepoint();
    // The error names the length at which the store noticed that the value is too long.
    let streamed = tx.put_stream(&table, b"k", &mut io::repeat(7).take(too_long)).map(|_| ());
    assert!(is_refused(streamed));
    tx.rollback_to(savepoint).unwrap();
    assert_eq!(tx.put_stream(&table, b"k", &mut io::repeat(7).take(VALUE_LIMIT)).unwrap(), VALUE_LIMIT);
    tx.commit().unwrap();
    let tx = store.begin();
    let mut found = tx.get_stream(&table, b"k").unwrap().unwrap();
    assert_eq!(found.len(), VALUE_LIMIT);
    let mut piece = vec![0; 1 << 20];
    for _ in 0..VALUE_LIMIT >> 20 {
        found.read_exact(&mut piece).unwrap();
        assert!(piece.iter().all(|byte| *byte == 7));
    }
    drop(found);
    drop(tx);
    store.run(|tx| tx.put(&table, b"k", b"before")).unwrap();
    assert_eq!(store.verify().unwrap().pages, pages);
}

/// A source of bytes. While the store reads it, the media crash at certain points.
struct Crashing<'a> {
    rest: &'a [u8],
    rig: &'a Rig,
    /// The test schedules a crash whenever this many bytes of the source are left. The numbers ascend, so the last one
    /// is the first crash.
    crashes: Vec<usize>,
    random: fastrand::Rng,
}

impl Read for Crashing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.crashes.pop_if(|left| self.rest.len() <= *left).is_some() {
            self.rig.crash_soon(20, &mut self.random);
        }
        self.rest.read(buffer)
    }
}

#[test]
fn inv30_a_crash_in_the_middle_of_a_value_of_64_mib_leaves_the_one_before() {
    let value = bytes(LONG + 1, 5);
    for (seed, scheme) in [Scheme::Auto, Scheme::FlushOnCommit, Scheme::Distributed].into_iter().enumerate() {
        let small = smallest(options(scheme), 32768).log_bytes(12 << 20);
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), small.clone()).unwrap();
        let table = store.table("t").unwrap();
        let before = bytes(100_000, 6);
        store.run(|tx| tx.put(&table, b"k", &before)).unwrap();
        let pages = store.verify().unwrap().pages;
        let mut source = Crashing {
            rest: &value,
            rig: &rig,
            crashes: vec![0, LONG / 4, LONG / 2],
            random: fastrand::Rng::with_seed(seed as u64),
        };
        let mut tx = store.begin();
        assert_eq!(tx.put_stream(&table, b"k", &mut source).unwrap(), value.len() as u64);
        tx.commit().unwrap();
        rig.acknowledged.store(1, std::sync::atomic::Ordering::SeqCst);
        rig.idle_step();
        rig.crash_soon(1, &mut fastrand::Rng::with_seed(seed as u64));
        rig.idle_step();
        drop((table, store));
        let crashes = rig.crashes();
        assert!(crashes.len() >= 3, "{scheme:?}: {} crashes", crashes.len());
        assert_eq!(crashes.last().unwrap().acknowledged, 1);
        for crash in crashes {
            let what = format!("{scheme:?}, seed {seed}, step {}", crash.step);
            let store = Store::open_on(OnRig(Rig::new(Some(crash.images))), small.clone())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = store.begin().get(&store.table("t").unwrap(), b"k").unwrap().unwrap();
            let is_new = found == value;
            assert!(is_new || (found == before && crash.acknowledged == 0), "{what}: {} bytes", found.len());
            let more =
                if is_new { value.len().div_ceil(32768 - 48) - before.len().div_ceil(32768 - 48) } else { 0 };
            assert_eq!(store.verify().unwrap().pages, pages + more as u64, "{what}");
        }
    }
}
