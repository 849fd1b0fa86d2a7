//! Long values, in and out, as a whole and piece by piece, in a log that is smaller than they are.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{self, Read};

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

/// All but the one that writes a block for each transaction's buffer: there a log has room for less, by how full blocks are.
fn schemes_that_fill_blocks() -> impl Iterator<Item = Scheme> {
    schemes().into_iter().filter(|scheme| *scheme != Scheme::NvDiskDecentralized)
}

/// Gives its bytes in pieces of any size, and fails at the end if it is to.
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
        // Taken back: all its pages are free again.
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
