//! In each run, one write or flush of a file fails.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::Arc;

use common::crash::{Images, OnRig, Rig};
use common::data::{self, BULK, Data, ROW_BYTES, ROWS, smallest as small};
use common::value;
use duralite_crashmodel::{BlockOp, RecordingBlock};
use duralite_medium::MediumError;
use duralite_store::{Error, Scheme, Store, Transaction};

fn some_error() -> MediumError {
    MediumError::Unsupported { what: "this call, which was made to fail," }
}

/// Each transaction changes this many rows of the first half of the other data, and the corresponding rows of the
/// second half.
const BESIDE: u32 = 8;

/// Commits transactions until a call fails. Returns how many commits were acknowledged.
fn work(store: &Store, data: Data) -> Result<u64, (u64, Error)> {
    let mut done = 0;
    let failed = |done: u64| move |error| (done, error);
    let table = store.table("t").map_err(failed(done))?;
    let bulk = (data == Data::TenTimes).then(|| store.table(BULK)).transpose().map_err(failed(done))?;
    for n in 0..120_u64 {
        let work = |tx: &mut Transaction| {
            tx.put(&table, &n.to_be_bytes(), &[n as u8; 500])?;
            let mut random = fastrand::Rng::with_seed(n);
            bulk.as_ref().map_or(Ok(()), |bulk| data::change(tx, bulk, BESIDE, &mut random))
        };
        store.run(work).map_err(failed(done))?;
        done += 1;
        if n % 40 == 39 {
            store.checkpoint().map_err(failed(done))?;
        }
    }
    Ok(done)
}

fn check(images: Images, (scheme, data): (Scheme, Data), acknowledged: u64, what: &str) {
    let store = Store::open_on(OnRig(Rig::new(Some(images))), small(scheme)).unwrap();
    store.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
    let table = store.table("t").unwrap();
    let rows = store.run(|tx| tx.scan(&table, ..).collect::<Result<Vec<_>, _>>()).unwrap();
    assert!(rows.len() as u64 >= acknowledged, "{what}: {} rows of {acknowledged}", rows.len());
    assert!(rows.len() as u64 <= acknowledged + 1, "{what}: {} rows of {acknowledged}", rows.len());
    let Some(bulk) = data.bulk(&store) else { return };
    let mut numbers = vec![0; ROWS as usize];
    for n in 0..rows.len() as u64 {
        let (chosen, number) = data::choose(BESIDE, &mut fastrand::Rng::with_seed(n));
        chosen.iter().for_each(|row| {
            [0, ROWS / 2].iter().for_each(|half| numbers[(row + half) as usize] = number);
        });
    }
    let tx = store.begin();
    for (n, row) in tx.scan(&bulk, ..).enumerate() {
        assert!(row.unwrap().1 == value(numbers[n], ROW_BYTES), "{what}: row {n} of those besides");
    }
}

/// In each run, makes one call fail: in the first run the first call, and so on. With ten times as much data as the
/// cache holds, only every seventh call has a run. Returns the percentage of runs in which a caller got the error.
fn fail_each(
    (scheme, data): (Scheme, Data),
    of: fn(&Rig) -> &RecordingBlock,
    operation: BlockOp,
    name: &str,
) -> usize {
    let (every, cuts) = if data == Data::TenTimes { (7, 1) } else { (1, 3) };
    let mut noticed = 0;
    for nth in (0..60).step_by(every) {
        let rig = data.rig(scheme);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap();
        of(&rig).fail(operation, nth, some_error());
        let acknowledged = match work(&store, data) {
            Ok(done) => done,
            Err((done, error)) => {
                noticed += 1;
                let again = store.run(|tx| tx.put(&store.table("t")?, b"k", b"v"));
                assert!(
                    matches!(again, Err(Error::Poisoned { .. })),
                    "{name} {nth}: {error}, then {again:?}"
                );
                assert!(matches!(store.checkpoint(), Err(Error::Poisoned { .. })));
                done
            }
        };
        let what = format!("{scheme:?}, {data:?}: {operation:?} {nth} of the {name}");
        check(rig.death(), (scheme, data), acknowledged, &what);
        for seed in 0..cuts {
            let images = Images {
                pages: rig.pages.crash_at_random(seed),
                blocks: rig.blocks.crash_at_random(seed),
                memory: rig.memory.crash(seed).to_bytes(),
            };
            check(images, (scheme, data), acknowledged, &format!("{what}, then a power failure"));
        }
        drop(store);
    }
    noticed * every * 100 / 60
}

fn fail_the_log(data: Data) {
    for scheme in [Scheme::Auto, Scheme::NvDisk, Scheme::NvDiskDecentralized] {
        for operation in [BlockOp::Write, BlockOp::Flush] {
            let noticed = fail_each((scheme, data), |rig| &rig.blocks, operation, "log");
            assert!(noticed > 80, "{scheme:?}, {data:?}, {operation:?}: {noticed} % noticed");
        }
    }
}

fn fail_pages(data: Data) {
    for scheme in [Scheme::Auto, Scheme::FlushOnCommit] {
        for operation in [BlockOp::Write, BlockOp::Flush] {
            let noticed = fail_each((scheme, data), |rig| &rig.pages, operation, "page file");
            // While everything fits into the cache, the store rarely writes or flushes the page file.
            let least = if data == Data::TenTimes { 80 } else { 5 };
            assert!(noticed > least, "{scheme:?}, {data:?}, {operation:?}: {noticed} % noticed");
        }
    }
}

#[test]
fn inv37_a_failed_write_or_flush_of_the_log_stops_the_store() {
    fail_the_log(Data::InCache);
}

#[test]
fn inv37_a_failed_write_or_flush_of_pages_stops_the_store() {
    fail_pages(Data::InCache);
}

#[test]
fn inv37_so_does_one_of_the_log_at_ten_times_the_smallest_cache() {
    fail_the_log(Data::TenTimes);
}

#[test]
fn inv37_so_does_one_of_pages_at_ten_times_the_smallest_cache() {
    fail_pages(Data::TenTimes);
}

/// During a checkpoint, a flush of the page file fails, and the process ends. The next opening finds everything that
/// the process wrote, because it is still in the system's cache. Then the power fails at some step of that opening. A
/// checkpoint makes three flushes: after it has written the double-write area, the pages, and the superblock. `nth`
/// says which of them fails.
fn open_after_a_failed_flush(nth: u64) {
    const ROWS: u64 = 40;
    let open = |rig: &Arc<Rig>| Store::open_on(OnRig(Arc::clone(rig)), small(Scheme::Auto));
    for seed in 0..8 {
        let rig = Rig::new(None);
        let store = open(&rig).unwrap();
        let table = store.table("t").unwrap();
        let put = |row: u64| store.run(|tx| tx.put(&table, &row.to_be_bytes(), b"v")).unwrap();
        (0..ROWS / 2).for_each(put);
        store.checkpoint().unwrap();
        (ROWS / 2..ROWS).for_each(put);
        rig.pages.fail(BlockOp::Flush, nth, some_error());
        store.checkpoint().unwrap_err();
        drop((table, store));
        // With 2000 random crashes among 100 steps, hardly any step is left out.
        rig.crash(2000, 100, seed);
        drop(open(&rig).unwrap());
        let crashes = rig.crashes();
        assert!(crashes.len() > 10, "{} crashes", crashes.len());
        for crash in crashes {
            let what = format!("seed {seed}, step {}", crash.step);
            let store = open(&Rig::new(Some(crash.images))).unwrap_or_else(|error| panic!("{what}: {error}"));
            let table = store.table("t").unwrap();
            assert_eq!(store.begin().scan(&table, ..).map(Result::unwrap).count() as u64, ROWS, "{what}");
        }
    }
}

#[test]
fn inv31_a_double_write_whose_flush_failed_is_durable_before_its_pages_go_home() {
    open_after_a_failed_flush(0);
    open_after_a_failed_flush(1);
}

#[test]
fn inv76_a_superblock_whose_flush_failed_is_durable_before_the_log_relies_on_it() {
    open_after_a_failed_flush(2);
}

/// Returns a store whose page file cannot grow beyond `bytes` bytes.
fn limited(bytes: u64) -> (Arc<Rig>, Store) {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(Scheme::Auto)).unwrap();
    rig.pages.set_limit(bytes);
    (rig, store)
}

#[test]
fn a_disk_that_runs_full_in_a_transaction_loses_nothing() {
    let (rig, store) = limited(1 << 20);
    let table = store.table("t").unwrap();
    let mut done = 0_u64;
    let error = loop {
        match store.run(|tx| tx.put(&table, &done.to_be_bytes(), &[1; 900])) {
            Ok(()) => done += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(done > 100);
    // The store must remain usable, because deleting rows makes room for others.
    store.verify().unwrap();
    for n in 0..done / 2 {
        assert!(store.run(|tx| tx.delete(&table, &n.to_be_bytes())).unwrap());
    }
    for n in 0..done / 4 {
        store.run(|tx| tx.put(&table, &n.to_be_bytes(), &[2; 900])).unwrap();
    }
    store.checkpoint().unwrap();
    store.verify().unwrap();
    drop((table, store));
    let again = Store::open_on(OnRig(Rig::new(Some(rig.death()))), small(Scheme::Auto)).unwrap();
    assert_eq!(again.verify().unwrap().rows, done - done / 2 + done / 4);
}

#[test]
fn a_transaction_that_fails_half_way_can_be_rolled_back() {
    let (_rig, store) = limited(1 << 20);
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"small", b"1")).unwrap();
    let mut tx = store.begin();
    tx.put(&table, b"small", b"2").unwrap();
    let savepoint = tx.savepoint();
    let error = tx.put(&table, b"large", &vec![7; 2 << 20]).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(matches!(tx.get(&table, b"small"), Err(Error::Finished)));
    tx.rollback_to(savepoint).unwrap();
    tx.commit().unwrap();
    assert_eq!(store.run(|tx| tx.get(&table, b"small")).unwrap(), Some(b"2".to_vec()));
    store.verify().unwrap();
}

/// The store must not show any reader a change that it could not undo.
#[test]
fn inv37_whoever_waited_for_a_lock_of_a_store_that_stopped_reads_nothing() {
    let rig = Rig::new(None);
    let options = small(Scheme::Auto).lock_timeout(std::time::Duration::from_secs(60));
    let store = Store::open_on(OnRig(Arc::clone(&rig)), options).unwrap();
    let (table, other) = (store.table("t").unwrap(), store.table("other").unwrap());
    store.run(|tx| tx.put(&table, b"k", b"committed")).unwrap();
    let mut writer = store.begin();
    writer.put(&table, b"k", b"never committed").unwrap();
    std::thread::scope(|scope| {
        let waits = store.metrics().lock_waits;
        let reader = scope.spawn(|| store.begin().get(&table, b"k"));
        let scanner = scope.spawn(|| store.begin().scan(&table, ..).collect::<Result<Vec<_>, _>>());
        while store.metrics().lock_waits < waits + 2 {
            std::thread::yield_now();
        }
        rig.blocks.fail(BlockOp::Write, 0, some_error());
        assert!(matches!(
            store.run(|tx| tx.put(&other, b"k", b"v")),
            Err(Error::Poisoned { .. } | Error::Io { .. })
        ));
        assert!(matches!(writer.rollback(), Err(Error::Poisoned { .. })));
        let read = reader.join().unwrap();
        assert!(matches!(read, Err(Error::Poisoned { .. })), "{read:?}");
        let read = scanner.join().unwrap();
        assert!(matches!(read, Err(Error::Poisoned { .. })), "{read:?}");
    });
}
