//! Tests that make, rename and drop tables, with all of their pages. They compare the result with a map, with and
//! without crashes.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::crash::{Crash, OnRig, Rig};
use common::{options, schemes, value};
use duralite_store::{Error, Options, Rule, Scheme, Store, Table, Transaction};

type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).log_bytes(4 << 20).cache_bytes(cache_bytes).page_bytes(4096)
}

/// Waits until all pages of dropped tables are free. Returns how many pages are still in use.
fn pages_when_gone(store: &Store) -> u64 {
    let begun = Instant::now();
    loop {
        let verified = store.verify().unwrap();
        if verified.dropped == 0 {
            return verified.pages;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "dropped tables do not go");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn content(store: &Store) -> Content {
    let mut content = Content::new();
    for name in store.tables().unwrap() {
        let table = store.table(&name).unwrap();
        let tx = store.begin();
        content.insert(name, tx.scan(&table, ..).map(Result::unwrap).collect());
    }
    content
}

#[test]
fn a_dropped_table_gives_all_its_pages_back() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), smallest(scheme)).unwrap();
        let kept = store.table("kept").unwrap();
        store.run(|tx| tx.put(&kept, b"key", b"value")).unwrap();
        let before = pages_when_gone(&store);
        for _ in 0..2 {
            let table = store.table("large").unwrap();
            for n in 0..400_u32 {
                let put = |tx: &mut Transaction| {
                    let len = if n.is_multiple_of(50) { 20_000 } else { 1 };
                    tx.put(&table, &n.to_be_bytes(), &value(n, len))?;
                    (0..20).try_for_each(|at| tx.put(&table, &(n * 1000 + at).to_le_bytes(), &value(at, 200)))
                };
                store.run(put).unwrap();
            }
            let full = pages_when_gone(&store);
            assert!(full > before + 400, "{scheme:?}: {full} pages");
            assert!(store.drop_table("large").unwrap());
            assert_eq!(store.tables().unwrap(), ["kept"]);
            assert!(matches!(store.begin().get(&table, b""), Err(Error::NoTable { .. })));
            assert_eq!(pages_when_gone(&store), before, "{scheme:?}");
        }
    }
}

#[test]
fn a_table_that_was_not_dropped_after_all_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), Options::default()).unwrap();
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"k", b"1")).unwrap();
    let mut tx = store.begin();
    let savepoint = tx.savepoint();
    assert!(tx.drop_table("t").unwrap());
    assert!(matches!(tx.get(&table, b"k"), Err(Error::NoTable { .. })));
    tx.rollback_to(savepoint).unwrap();
    assert_eq!(tx.get(&table, b"k").unwrap(), Some(b"1".to_vec()));
    assert!(tx.drop_table("t").unwrap());
    tx.rollback().unwrap();
    assert_eq!(store.run(|tx| tx.get(&table, b"k")).unwrap(), Some(b"1".to_vec()));
    // If the transaction that made a table does not commit, the table does not exist.
    let mut tx = store.begin();
    let made = tx.table("made").unwrap();
    tx.put(&made, b"k", b"1").unwrap();
    tx.rollback().unwrap();
    assert!(matches!(store.begin().get(&made, b"k"), Err(Error::NoTable { .. })));
    assert_eq!(store.tables().unwrap(), ["t"]);
    store.verify().unwrap();
}

#[test]
fn who_uses_a_table_keeps_it_and_who_drops_it_keeps_others_out() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().lock_timeout(Duration::from_millis(50));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let table = store.table("t").unwrap();
    let mut user = store.begin();
    user.put(&table, b"k", b"1").unwrap();
    let mut tx = store.begin();
    assert!(matches!(tx.drop_table("t"), Err(Error::Timeout)));
    drop(tx);
    user.commit().unwrap();
    let mut tx = store.begin();
    assert!(tx.drop_table("t").unwrap());
    // The drop may still be rolled back, so this read has to wait.
    assert!(matches!(store.begin().get(&table, b"k"), Err(Error::Timeout)));
    drop(tx);
    assert_eq!(store.begin().get(&table, b"k").unwrap(), Some(b"1".to_vec()));
}

/// A rollback of the creation would undo what another transaction had committed into the table.
#[test]
fn inv51_no_other_transaction_uses_a_table_before_its_creation_has_committed() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().lock_timeout(Duration::from_millis(50));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    for commits in [false, true] {
        let mut tx = store.begin();
        let table = tx.table("made").unwrap();
        tx.put(&table, b"own", b"1").unwrap();
        assert!(matches!(store.begin().put(&table, b"k", b"1"), Err(Error::Timeout)));
        assert!(matches!(store.begin().get(&table, b"k"), Err(Error::Timeout)));
        assert!(matches!(store.begin().scan(&table, ..).next(), Some(Err(Error::Timeout))));
        assert!(matches!(store.begin().approximate_len(&table), Err(Error::Timeout)));
        assert_eq!(tx.scan(&table, ..).map(Result::unwrap).count(), 1);
        if commits {
            tx.commit().unwrap();
            store.run(|tx| tx.put(&table, b"k", b"1")).unwrap();
            assert_eq!(store.begin().scan(&table, ..).map(Result::unwrap).count(), 2);
        } else {
            tx.rollback().unwrap();
            let put = store.run(|tx| tx.put(&table, b"k", b"1"));
            assert!(matches!(put, Err(Error::NoTable { .. })), "{put:?}");
        }
        store.verify().unwrap();
    }
}

/// Makes a table in a transaction, and undoes its creation. Then another transaction makes a second table, which gets
/// the root page of the first one. Returns the first transaction and the second table.
fn after_a_table_that_was_not_made(store: &Store) -> (Transaction, Table) {
    let mut maker = store.begin();
    let before = maker.savepoint();
    let given_up = maker.table("given up").unwrap();
    maker.put(&given_up, b"k", b"1").unwrap();
    maker.rollback_to(before).unwrap();
    let mut other = store.begin();
    let next = other.table("next").unwrap();
    other.put(&next, b"other", b"2").unwrap();
    other.commit().unwrap();
    assert!(matches!(maker.get(&given_up, b"k"), Err(Error::NoTable { .. })));
    (maker, next)
}

/// After the creation of a table is undone, the next table gets its root page. The transaction that has undone the
/// creation is still open, and must not prevent others from using the next table.
#[test]
fn inv51_a_table_that_was_not_made_keeps_nobody_from_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().lock_timeout(Duration::from_millis(50));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let (maker, next) = after_a_table_that_was_not_made(&store);
    store.run(|tx| tx.put(&next, b"third", b"3")).unwrap();
    assert_eq!(maker.get(&next, b"other").unwrap(), Some(b"2".to_vec()));
    maker.commit().unwrap();
    assert_eq!(content(&store)["next"].len(), 2);
    store.verify().unwrap();
}

/// The transaction that has undone the creation uses the next table. So no other transaction can drop that table.
#[test]
fn inv51_who_has_given_up_a_table_keeps_the_next_one_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().lock_timeout(Duration::from_millis(50));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    for commits in [false, true] {
        let (mut maker, next) = after_a_table_that_was_not_made(&store);
        maker.put(&next, b"maker", b"3").unwrap();
        let dropped = store.begin().drop_table("next");
        assert!(matches!(dropped, Err(Error::Timeout)), "{dropped:?}");
        if commits {
            maker.commit().unwrap()
        } else {
            maker.rollback().unwrap()
        }
        assert_eq!(content(&store)["next"].len(), if commits { 2 } else { 1 });
        assert!(store.drop_table("next").unwrap());
        assert_eq!(store.verify().unwrap().tables, 0);
    }
}

#[test]
fn inv51_a_snapshot_keeps_the_tables_that_it_shows() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), smallest(scheme)).unwrap();
        let table = store.table("old").unwrap();
        for n in 0..300_u32 {
            let len = if n.is_multiple_of(50) { 20_000 } else { 100 };
            store.run(|tx| tx.put(&table, &n.to_be_bytes(), &value(n, len))).unwrap();
        }
        let before = store.snapshot();
        let mut tx = store.begin();
        tx.drop_table("old").unwrap();
        let during = store.snapshot();
        assert_eq!(during.scan(&table, ..).filter(Result::is_ok).count(), 300, "{scheme:?}");
        tx.commit().unwrap();
        let after = store.snapshot();
        let gone = |result| matches!(result, Err(Error::NoTable { .. }));
        assert!(gone(after.get(&table, &0_u32.to_be_bytes())), "{scheme:?}");
        // A new table gets the old name. Its root may be the page that was the root of the old table.
        let new = store.table("old").unwrap();
        assert_eq!(before.scan(&new, ..).count(), 0, "{scheme:?}");
        for n in 0..300_u32 {
            store.run(|tx| tx.put(&new, &n.to_be_bytes(), b"new")).unwrap();
        }
        for snapshot in [before, during] {
            for (n, row) in (0..300_u32).zip(snapshot.scan(&table, ..)) {
                let len = if n.is_multiple_of(50) { 20_000 } else { 100 };
                assert_eq!(row.unwrap(), (n.to_be_bytes().to_vec(), value(n, len)), "{scheme:?}");
            }
            assert_eq!(snapshot.scan(&new, ..).count(), 0, "{scheme:?}");
            assert_ne!(store.verify().unwrap().dropped, 0, "{scheme:?}: the pages were given back");
        }
        // This snapshot was opened after the drop, so it does not keep the table's pages.
        pages_when_gone(&store);
        assert!(gone(after.get(&table, &0_u32.to_be_bytes())), "{scheme:?}");
    }
}

#[test]
fn inv51_a_snapshot_does_not_read_a_table_that_may_be_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), smallest(Scheme::Auto)).unwrap();
    let mut tx = store.begin();
    let table = tx.table("new").unwrap();
    tx.put(&table, b"key", b"value").unwrap();
    let snapshot = store.snapshot();
    assert!(matches!(snapshot.get(&table, b"key"), Err(Error::NoTable { .. })));
    tx.rollback().unwrap();
    assert!(matches!(snapshot.get(&table, b"key"), Err(Error::NoTable { .. })));
    let mut tx = store.begin();
    let table = tx.table("new").unwrap();
    tx.put(&table, b"key", b"value").unwrap();
    tx.commit().unwrap();
    assert_eq!(snapshot.get(&table, b"key").unwrap(), None);
    assert_eq!(store.snapshot().get(&table, b"key").unwrap().unwrap(), b"value");
}

#[test]
fn names_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), Options::default()).unwrap();
    for name in ["", "\0", "\0dropped ", &"x".repeat(1025)] {
        assert!(matches!(store.table(name), Err(Error::Invalid { .. })), "{name:?}");
        assert!(matches!(store.drop_table(name), Err(Error::Invalid { .. })), "{name:?}");
    }
    store.table("a").unwrap();
    store.table("b").unwrap();
    assert!(matches!(store.rename_table("a", "b"), Err(Error::TableExists { .. })));
    assert!(matches!(store.rename_table("a", "a"), Err(Error::TableExists { .. })));
    assert!(matches!(store.rename_table("none", "c"), Err(Error::NoTable { .. })));
    assert!(matches!(store.rename_table("a", "\0"), Err(Error::Invalid { .. })));
    assert_eq!(store.tables().unwrap(), ["a", "b"]);
}

/// Lets crashes happen while a rollback removes a table with several leaves. Returns what is wrong after these crashes.
fn wrong_after_a_table_was_not_made(options: &Options) -> Vec<String> {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(rig.clone()), options.clone()).unwrap();
    store.table("kept").unwrap();
    let mut tx = store.begin();
    let table = tx.table("made").unwrap();
    for n in 0..24_u32 {
        tx.put(&table, &n.to_be_bytes(), &value(n, 600)).unwrap();
    }
    rig.crash(200, 600, 1);
    tx.rollback().unwrap();
    store.verify().unwrap();
    let crashes = rig.crashes();
    assert!(crashes.len() > 50, "{} crashes in {} steps", crashes.len(), rig.steps());
    let wrong = |crash: Crash| {
        let store = Store::open_on(OnRig(Rig::new(Some(crash.images))), options.clone()).unwrap();
        assert_eq!(store.tables().unwrap(), ["kept"]);
        store.verify().err().map(|error| format!("step {}: {error}", crash.step))
    };
    crashes.into_iter().filter_map(wrong).collect()
}

/// The root of the table must be freed after the leaves. This must hold even if a crash happens when a leaf has lost
/// its last row, but is not freed yet.
#[test]
fn inv51_a_table_that_was_never_made_leaves_no_page_wherever_taking_it_back_is_crashed() {
    let options = smallest(Scheme::FlushOnInsert);
    assert_eq!(wrong_after_a_table_was_not_made(&options), Vec::<String>::new());
    assert!(!wrong_after_a_table_was_not_made(&options.breaking(Rule::EmptyTree)).is_empty());
}

/// Makes a few operations in one transaction, which make, fill, rename and drop tables.
fn change(tx: &mut Transaction, own: &mut Content, random: &mut fastrand::Rng) -> Result<(), Error> {
    for _ in 0..random.usize(1..4) {
        let name = ["a", "b", "c"][random.usize(0..3)];
        match random.u8(0..6) {
            0 => assert_eq!(tx.drop_table(name)?, own.remove(name).is_some()),
            1 => {
                let to = ["a", "b", "c", "d"][random.usize(0..4)];
                match tx.rename_table(name, to) {
                    Ok(()) => {
                        let rows = own.remove(name).unwrap();
                        assert!(own.insert(to.to_owned(), rows).is_none());
                    }
                    Err(Error::NoTable { .. }) => assert!(!own.contains_key(name)),
                    Err(Error::TableExists { .. }) => assert!(own.contains_key(to)),
                    Err(error) => return Err(error),
                }
            }
            _ => {
                let table = tx.table(name)?;
                let rows = own.entry(name.to_owned()).or_default();
                for _ in 0..random.usize(1..80) {
                    let n = random.u32(0..200);
                    let len = if n.is_multiple_of(40) { 9000 } else { random.usize(1..300) };
                    tx.put(&table, &n.to_be_bytes(), &value(n, len))?;
                    rows.insert(n.to_be_bytes().to_vec(), value(n, len));
                }
            }
        }
    }
    Ok(())
}

/// Invariant 51, with crashes at any step, and with the smallest cache. After a crash, the store must contain all
/// acknowledged commits, and at most one more. Each page must either be free, or be in use exactly once.
#[test]
fn inv51_tables_are_whole_or_gone_after_a_crash_anywhere() {
    for (seed, scheme) in (1..).zip(schemes()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(rig.clone()), smallest(scheme)).unwrap();
        let among = match scheme {
            Scheme::FlushOnInsert | Scheme::FlushOnCommit => 20_000,
            Scheme::Distributed => 6000,
            _ => 400,
        };
        rig.crash(16, among, seed);
        let mut states = vec![Content::new()];
        for _ in 0..40 {
            let mut own = states.last().unwrap().clone();
            let mut tx = store.begin();
            change(&mut tx, &mut own, &mut random).unwrap();
            if random.u8(0..4) == 0 {
                drop(tx);
                continue;
            }
            tx.commit().unwrap();
            states.push(own);
            rig.acknowledged.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            if random.u8(0..6) == 0 {
                store.checkpoint().unwrap();
            }
        }
        assert_eq!(&content(&store), states.last().unwrap(), "{scheme:?}, seed {seed}");
        pages_when_gone(&store);
        drop(store);
        let crashes = rig.crashes();
        assert!(crashes.len() > 8, "{scheme:?}: {} crashes in {} steps", crashes.len(), rig.steps());
        for crash in crashes {
            let again = Rig::new(Some(crash.images));
            let store = Store::open_on(OnRig(again), smallest(scheme)).unwrap();
            store.verify().unwrap_or_else(|error| panic!("{scheme:?}, step {}: {error}", crash.step));
            let found = content(&store);
            let known = crash.acknowledged as usize;
            let is_there = states.iter().skip(known).take(2).any(|state| *state == found);
            assert!(is_there, "{scheme:?}, seed {seed}, step {}: {:?}", crash.step, found.keys());
            pages_when_gone(&store);
        }
    }
}
