//! Each workload's consistency conditions must hold while it runs and after crashes. Wrong rows must violate them.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::sync::Arc;

// The module `crash` uses this crate.
use duralite_crashmodel as _;
use duralite_store::{LogMedium, Options, Scheme, Store};

use crate::crash::{OnRig, Rig};
use crate::kv::{Db, run};
use crate::measure::schemes::SCHEMES;
use crate::nv::NvDb;
use crate::row::{field, key, row, set};
use crate::tatp::Tatp;
use crate::tpcb::TpcB;
use crate::tpcc::TpcC;
use crate::workload::{Thread, Workload, unique};
use crate::ycsb::{Mix, Ycsb};

const TPCC: TpcC = TpcC { warehouses: 2, customers_of_a_district: 9, items: 40 };

fn options(scheme: Scheme) -> Options {
    let log = if scheme == Scheme::Auto { LogMedium::Disk } else { LogMedium::Emulated };
    Options::default().scheme(scheme).log(log).cache_bytes(8 << 20).log_bytes(8 << 20)
}

fn open(rig: &Arc<Rig>, scheme: Scheme, workload: &dyn Workload) -> NvDb {
    NvDb::new(Store::open_on(OnRig(Arc::clone(rig)), options(scheme)).unwrap(), workload.schema()).unwrap()
}

/// Runs `threads` threads, each of which runs `count` transactions.
fn steps(db: &NvDb, workload: &dyn Workload, threads: u64, count: u64, seed: u64) {
    std::thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || {
                let rng = fastrand::Rng::with_seed(seed * 64 + number);
                let mut thread = Thread { number, rng, serial: unique(), commits: [0; 8] };
                let mut session = db.session().unwrap();
                for _ in 0..count {
                    workload.step(&mut *session, &mut thread).unwrap();
                }
            });
        }
    });
}

fn check(db: &NvDb, workload: &dyn Workload) -> anyhow::Result<()> {
    workload.check(&mut *db.session().unwrap())
}

#[test]
fn every_workload_fits_together_after_many_threads() {
    let ycsb = [Mix::A, Mix::D, Mix::E, Mix::F, Mix::BesideScan].map(|mix| Ycsb::new(mix, 300, 100, true));
    let mut workloads: Vec<&dyn Workload> =
        vec![&TpcB { branches: 3, accounts_of_a_branch: 20 }, &Tatp { subscribers: 50 }, &TPCC];
    workloads.extend(ycsb.iter().map(|one| one as &dyn Workload));
    for workload in workloads {
        for scheme in [Scheme::Auto, Scheme::FlushOnCommit] {
            let db = open(&Rig::new(None), scheme, workload);
            workload.load(&db).unwrap();
            check(&db, workload).unwrap();
            steps(&db, workload, 8, 60, 1);
            check(&db, workload).unwrap();
        }
    }
}

#[test]
fn tpcc_fits_together_after_every_crash() {
    let seed = std::env::var("STORE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    for scheme in SCHEMES.into_iter().chain([Scheme::Auto]) {
        let rig = Rig::new(None);
        let db = open(&rig, scheme, &TPCC);
        TPCC.load(&db).unwrap();
        db.store.checkpoint().unwrap();
        let begin = rig.steps();
        steps(&db, &TPCC, 1, 10, seed);
        // The four threads below take about 16 times as many steps as the single thread above. The crashes are in the
        // first half of their steps.
        let each = (rig.steps() - begin).max(10) * 16 / 2;
        rig.crash(4, each, seed);
        steps(&db, &TPCC, 4, 40, seed);
        drop(db);
        let crashes = rig.crashes();
        assert!(!crashes.is_empty(), "seed {seed}, {scheme:?}: no crash");
        for crash in crashes {
            let db = open(&Rig::new(Some(crash.images)), scheme, &TPCC);
            let what = format!("seed {seed}, {scheme:?}, step {}", crash.step);
            check(&db, &TPCC).unwrap_or_else(|why| panic!("{what}: {why}"));
            db.store.verify().unwrap_or_else(|why| panic!("{what}: {why}"));
            // The store must still be usable.
            steps(&db, &TPCC, 2, 5, seed + 1);
            check(&db, &TPCC).unwrap_or_else(|why| panic!("{what}, later: {why}"));
        }
    }
}

/// Makes a change, checks that it breaks this condition, and undoes it.
fn breaks(
    db: &NvDb,
    condition: u32,
    table: &str,
    at: &[u32],
    change: &dyn Fn(Option<Vec<u8>>) -> Option<Vec<u8>>,
) {
    let (table, at) = (db.store.table(table).unwrap(), key(at));
    let mut old = None;
    db.store
        .run(|tx| {
            old = tx.get(&table, &at)?;
            match change(old.clone()) {
                Some(value) => tx.put(&table, &at, &value),
                None => tx.delete(&table, &at).map(drop),
            }
        })
        .unwrap();
    let said = check(db, &TPCC).unwrap_err().to_string();
    assert!(said.starts_with(&format!("condition {condition}:")), "condition {condition}: {said}");
    db.store
        .run(|tx| match &old {
            Some(value) => tx.put(&table, &at, value),
            None => tx.delete(&table, &at).map(drop),
        })
        .unwrap();
    check(db, &TPCC).unwrap();
}

/// Returns a change that adds one to the field with this index.
fn more(place: usize) -> impl Fn(Option<Vec<u8>>) -> Option<Vec<u8>> {
    move |row| {
        let mut row = row?;
        let value = field(&row, place).ok()?;
        set(&mut row, place, value + 1);
        Some(row)
    }
}

#[test]
fn each_condition_of_tpcc_finds_what_breaks_it() {
    let db = open(&Rig::new(None), Scheme::Auto, &TPCC);
    TPCC.load(&db).unwrap();
    breaks(&db, 1, "warehouses", &[1], &more(0));
    breaks(&db, 2, "districts", &[1, 1], &more(0));
    breaks(&db, 2, "new_orders", &[1, 1, 9], &|_| None);
    breaks(&db, 3, "new_orders", &[1, 1, 8], &|_| None);
    breaks(&db, 4, "orders", &[1, 1, 9], &more(3));
    breaks(&db, 4, "order_lines", &[1, 1, 2, 1], &|_| None);
    breaks(&db, 5, "orders", &[1, 1, 1], &|row| {
        let mut row = row?;
        set(&mut row, 2, 0);
        Some(row)
    });
    breaks(&db, 7, "order_lines", &[1, 1, 1, 1], &|row| {
        let mut row = row?;
        set(&mut row, 4, 0);
        Some(row)
    });
    breaks(&db, 8, "history", &[1, 1, 1, 7, 7, 7], &|_| Some(row(48, &[5, 1, 11, 1, 1, 1])));
    breaks(&db, 9, "history", &[1, 1, 1, u32::MAX, 0, 0], &|row| {
        let mut row = row?;
        set(&mut row, 2, 2);
        Some(row)
    });
    breaks(&db, 10, "customers", &[1, 1, 1], &more(0));
    breaks(&db, 12, "customers", &[1, 1, 1], &more(1));
    six_and_eleven(&db);
}

/// Breaks conditions 6 and 11, each by two changes at once, because a single change would break an earlier condition.
fn six_and_eleven(db: &NvDb) {
    let lines = |tx: &mut dyn crate::kv::Tx, order: u32, change: i64| {
        let mut found = tx.get(5, &key(&[1, 1, order]))?.unwrap();
        let count = field(&found, 3)?;
        set(&mut found, 3, count + change);
        tx.put(5, &key(&[1, 1, order]), &found)
    };
    let shift = |change| {
        run(&mut *db.session().unwrap(), true, &mut |tx| {
            lines(tx, 1, change)?;
            lines(tx, 2, -change)
        })
        .unwrap();
    };
    shift(1);
    assert!(check(db, &TPCC).unwrap_err().to_string().starts_with("condition 6:"));
    shift(-1);
    check(db, &TPCC).unwrap();
    // Deletes an order together with its lines, but leaves it in the list of new orders.
    let gone = run(&mut *db.session().unwrap(), true, &mut |tx| {
        let mut lines = Vec::new();
        tx.scan(8, &key(&[1, 1, 8]), &key(&[1, 1, 9]), false, &mut |at, _| {
            lines.push(at.to_vec());
            true
        })?;
        lines.iter().try_for_each(|at| tx.delete(8, at))?;
        tx.delete(5, &key(&[1, 1, 8]))
    });
    gone.unwrap();
    assert!(check(db, &TPCC).unwrap_err().to_string().starts_with("condition 11:"));
}
