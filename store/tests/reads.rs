//! Compares all ways to read rows with a map. Also tests tickets as futures, and the approximate number of rows.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use common::{options, schemes, value};
use duralite_store::{Durability, Error, Options, Reader, Scheme, Store, Table};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn tickets_are_awaited_by_many_at_once() {
    for scheme in schemes() {
        for durability in [Durability::Immediate, Durability::Eventual] {
            let dir = tempfile::tempdir().unwrap();
            let options = options(scheme).durability(durability);
            let store = Store::open(dir.path().join("s"), options).unwrap();
            let table = store.table("t").unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4_u32 {
                    let (store, table) = (&store, &table);
                    scope.spawn(move || {
                        for n in 0..10_u32 {
                            let mut tx = store.begin();
                            tx.put(table, &[thread.to_be_bytes(), n.to_be_bytes()].concat(), b"v").unwrap();
                            let ticket = tx.commit_async().unwrap();
                            wait(ticket.clone()).unwrap();
                            assert!(ticket.is_durable(), "{scheme:?}");
                        }
                    });
                }
            });
            // A task that stops polling a ticket must not prevent the store from closing.
            let mut tx = store.begin();
            tx.put(&table, b"last", b"v").unwrap();
            let mut ticket = pin!(tx.commit_async().unwrap());
            let _ = ticket.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            drop(store);
            wait(ticket.as_mut()).unwrap();
        }
    }
}

/// A program may report why its work failed. So everything that the work has read must be durable by then.
#[test]
fn inv39_what_work_has_read_is_durable_also_if_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), options(Scheme::Auto)).unwrap();
    let table = store.table("t").unwrap();
    let ((), ticket) = store.run_async(|tx| tx.insert(&table, b"k", b"v")).unwrap();
    assert!(!ticket.is_durable());
    let again = store.run(|tx| tx.insert(&table, b"k", b"v"));
    assert!(matches!(again, Err(Error::Exists)), "{again:?}");
    assert!(ticket.is_durable());
    let ((), ticket) = store.run_async(|tx| tx.put(&table, b"k", b"w")).unwrap();
    assert!(!ticket.is_durable());
    let again = store.run_async(|tx| tx.insert(&table, b"k", b"v"));
    assert!(matches!(again, Err(Error::Exists)), "{again:?}");
    assert!(ticket.is_durable());
}

/// A transaction ends while `verify` waits for the lock of another table. Its thread keeps its lock of the table for its
/// next transaction. So `verify` gets that lock later without anything that names the commit.
#[test]
fn inv39_what_commits_while_verify_waits_is_durable() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), options(scheme)).unwrap();
        // `verify` locks the tables in this order.
        let [first, second] = ["a", "b"].map(|name| store.table(name).unwrap());
        let (committed, (send, ticket)) = (std::sync::Barrier::new(2), std::sync::mpsc::channel());
        std::thread::scope(|scope| {
            let mut open = store.begin();
            open.put(&first, b"k", b"v").unwrap();
            let waits = store.metrics().lock_waits;
            let verify = scope.spawn(|| store.verify().unwrap());
            while store.metrics().lock_waits == waits {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                let send = send;
                send.send(store.run_async(|tx| tx.put(&second, b"k", b"v")).unwrap().1).unwrap();
                // The thread's locks stay as long as the thread.
                committed.wait();
            });
            let ticket = ticket.recv().unwrap();
            open.rollback().unwrap();
            let verified = verify.join();
            let is_durable = ticket.is_durable();
            committed.wait();
            assert_eq!(verified.unwrap().rows, 1);
            assert!(is_durable, "{scheme:?}");
        });
    }
}

/// A program may report what `verify` has counted. So all of it must be durable by then.
#[test]
fn inv39_what_verify_has_counted_is_durable() {
    for scheme in schemes() {
        for durability in [Durability::Immediate, Durability::Eventual] {
            let dir = tempfile::tempdir().unwrap();
            let options = options(scheme).durability(durability);
            let store = Store::open(dir.path().join("s"), options).unwrap();
            let table = store.table("t").unwrap();
            for round in 0..3_u32 {
                let ticket = store.run_async(|tx| tx.put(&table, &round.to_be_bytes(), b"v")).unwrap().1;
                let verified = std::thread::scope(|scope| scope.spawn(|| store.verify()).join().unwrap());
                assert_eq!(verified.unwrap().rows, u64::from(round) + 1);
                assert!(ticket.is_durable(), "{scheme:?}, {durability:?}, round {round}");
            }
        }
    }
}

/// The methods of [`Reader`], and a scan that seeks, must return what a map returns.
#[test]
fn readers_say_what_a_map_does() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let cache_bytes = Options::smallest_cache_bytes(4096);
        let options = Options::default().page_bytes(4096).cache_bytes(cache_bytes);
        let store = Store::open(dir.path().join("s"), options).unwrap();
        let table = store.table("t").unwrap();
        let key = |random: &mut fastrand::Rng| {
            let len = random.usize(0..4);
            (0..len).map(|_| [0, 1, 0xfe, 0xff][random.usize(0..4)]).collect::<Vec<u8>>()
        };
        let mut model = BTreeMap::new();
        for _ in 0..random.usize(0..120) {
            model.insert(key(&mut random), value(random.u32(..), random.usize(0..1500)));
        }
        store.run(|tx| tx.put_all(&table, &model)).unwrap();
        let tx = store.begin();
        for _ in 0..100 {
            compare(&tx, &table, &model, &key(&mut random));
            // Seeks in a scan, and reads it from both ends.
            let mut scan = tx.scan(&table, ..);
            let mut rest: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            for _ in 0..random.usize(1..30) {
                match random.u8(0..4) {
                    0 => {
                        let key = key(&mut random);
                        scan.seek(&key);
                        rest.retain(|row| row.0 >= key);
                    }
                    1 => assert_eq!(scan.next_back().transpose().unwrap(), rest.pop(), "seed {seed}"),
                    _ => {
                        let first = (!rest.is_empty()).then(|| rest.remove(0));
                        assert_eq!(scan.next().transpose().unwrap(), first, "seed {seed}");
                    }
                }
            }
            assert!(scan.map(Result::unwrap).eq(rest), "seed {seed}");
        }
    }
}

fn compare(rows: &impl Reader, table: &Table, model: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]) {
    let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    assert_eq!(rows.contains(table, key).unwrap(), model.contains_key(key));
    assert_eq!(rows.get(table, key).unwrap().as_ref(), model.get(key));
    let stream = rows.get_stream(table, key).unwrap().map(|mut value| {
        let mut bytes = Vec::new();
        value.read_to_end(&mut bytes).unwrap();
        assert_eq!(value.len(), bytes.len() as u64);
        bytes
    });
    assert_eq!(stream.as_ref(), model.get(key));
    let about = rows.approximate_len(table).unwrap();
    assert!(about.abs_diff(model.len() as u64) <= 2 + model.len() as u64 / 2, "{about} for {}", model.len());
    assert_eq!(rows.first(table).unwrap(), model.first_key_value().map(owned));
    assert_eq!(rows.last(table).unwrap(), model.last_key_value().map(owned));
    let expected: Vec<_> = model.iter().filter(|row| row.0.starts_with(key)).map(owned).collect();
    let found: Vec<_> = rows.prefix(table, key).map(Result::unwrap).collect();
    assert_eq!(found, expected, "prefix {key:?}");
    let mut found: Vec<_> = rows.prefix(table, key).rev().map(Result::unwrap).collect();
    found.reverse();
    assert_eq!(found, expected, "prefix {key:?} backwards");
}

#[test]
fn the_number_of_rows_is_about_right() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), options(duralite_store::Scheme::Auto)).unwrap();
    for (name, rows, is_random) in
        [("none", 0, false), ("few", 300, true), ("many", 30_000, false), ("mixed", 30_000, true)]
    {
        let table = store.table(name).unwrap();
        let mut random = fastrand::Rng::with_seed(rows);
        let mut keys: Vec<u64> = (0..rows).collect();
        if is_random {
            random.shuffle(&mut keys);
        }
        for keys in keys.chunks(1000) {
            let rows = keys.iter().map(|key| (key.to_be_bytes(), vec![1; (*key % 100) as usize]));
            store.run(|tx| tx.put_all(&table, rows.clone())).unwrap();
        }
        let about = store.begin().approximate_len(&table).unwrap();
        let off = if rows < 1000 { 0 } else { rows / 4 };
        assert!(about.abs_diff(rows) <= off, "{name}: {about} for {rows}");
        assert_eq!(Reader::approximate_len(&store.snapshot(), &table).unwrap(), about, "{name}");
    }
}
