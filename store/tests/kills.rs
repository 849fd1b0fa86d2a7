//! `kill -9` of a process with 16 working threads.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{options, schemes};
use duralite_store::{Options, Scheme, Store, Table, Transaction};

const THREADS: u64 = 16;
const BALANCE: i64 = 1000;
const DIR: &str = "STORE_KILL_DIR";
const SCHEME: &str = "STORE_KILL_SCHEME";
const CASE: &str = "STORE_KILL_CASE";

/// The sizes of the data and of the cache.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    accounts: u64,
    row_bytes: usize,
    page_bytes: Option<u32>,
    cache_bytes: u64,
}

const IN_CACHE: Case =
    Case { name: "in the cache", accounts: 200, row_bytes: 8, page_bytes: None, cache_bytes: 8 << 20 };
/// The cache has 64 frames, and the data needs ten times as many pages.
const SMALLEST: Case = Case {
    name: "at ten times the smallest cache",
    accounts: 5200,
    row_bytes: 500,
    page_bytes: Some(4096),
    cache_bytes: Options::smallest_cache_bytes(4096),
};
const BEYOND: Case =
    Case { name: "10 MB in 4 MiB", accounts: 20_000, row_bytes: 500, page_bytes: None, cache_bytes: 4 << 20 };
/// The case of the soak test: ten times as much data as the cache holds.
const SOAK: Case =
    Case { name: "40 MB in 4 MiB", accounts: 80_000, row_bytes: 500, page_bytes: None, cache_bytes: 4 << 20 };
const CASES: [Case; 4] = [IN_CACHE, SMALLEST, BEYOND, SOAK];

impl Case {
    fn options(self, scheme: Scheme) -> Options {
        let options = options(scheme).cache_bytes(self.cache_bytes);
        self.page_bytes.map_or(options.clone(), |bytes| options.page_bytes(bytes))
    }

    /// Returns the value of a row: this number, padded with dots to the length of a row.
    fn row(self, number: i64) -> Vec<u8> {
        let mut row = vec![b'.'; self.row_bytes];
        row[..8].copy_from_slice(&number.to_le_bytes());
        row
    }
}

fn number_of(row: &[u8]) -> i64 {
    i64::from_le_bytes(row[..8].try_into().unwrap())
}

fn number(tx: &mut Transaction, table: &Table, key: &[u8]) -> Result<i64, duralite_store::Error> {
    let value = tx.get_for_update(table, key)?;
    Ok(value.map_or(0, |value| number_of(&value)))
}

/// Does the work of the child process. Does nothing if it runs as an ordinary test.
#[test]
fn child() {
    let (Ok(dir), Ok(scheme)) = (std::env::var(DIR), std::env::var(SCHEME)) else { return };
    let scheme = schemes().into_iter().find(|known| known.as_str() == scheme).unwrap();
    let case = std::env::var(CASE).unwrap();
    let case = CASES.into_iter().find(|known| known.name == case).unwrap();
    let store = Store::open(Path::new(&dir), case.options(scheme)).unwrap();
    let (accounts, counts) = (store.table("accounts").unwrap(), store.table("counts").unwrap());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, accounts, counts) = (&store, &accounts, &counts);
            scope.spawn(move || {
                let mut random = fastrand::Rng::new();
                loop {
                    let (from, to) = (random.u64(0..case.accounts), random.u64(0..case.accounts));
                    let amount = random.i64(1..50);
                    let count = store
                        .run(|tx| {
                            let value = number(tx, accounts, &from.to_be_bytes())? - amount;
                            tx.put(accounts, &from.to_be_bytes(), &case.row(value))?;
                            let value = number(tx, accounts, &to.to_be_bytes())? + amount;
                            tx.put(accounts, &to.to_be_bytes(), &case.row(value))?;
                            let count = number(tx, counts, &thread.to_be_bytes())? + 1;
                            tx.put(counts, &thread.to_be_bytes(), &count.to_le_bytes())?;
                            Ok(count)
                        })
                        .unwrap_or_else(|error: duralite_store::Error| {
                            panic!("{scheme:?}: {error}; {:?}", store.metrics())
                        });
                    // Prints the line by a single write. So a kill leaves either the whole line or nothing of it.
                    let line = format!("\nacknowledged {thread} {count}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

fn prepare(dir: &Path, scheme: Scheme, case: Case) {
    let store = Store::open(dir, case.options(scheme)).unwrap();
    let accounts = store.table("accounts").unwrap();
    store.table("counts").unwrap();
    for first in (0..case.accounts).step_by(500) {
        let some = first..case.accounts.min(first + 500);
        store
            .run(|tx| {
                let mut some = some.clone();
                some.try_for_each(|account| tx.put(&accounts, &account.to_be_bytes(), &case.row(BALANCE)))
            })
            .unwrap();
    }
}

/// Lets the child work until `commits` commits have been acknowledged, and then kills it. Returns how many commits of
/// each thread were acknowledged.
fn kill_after(dir: &Path, scheme: Scheme, case: Case, commits: u64) -> Vec<i64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child", "--nocapture"])
        .env(DIR, dir)
        .env(SCHEME, scheme.as_str())
        .env(CASE, case.name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = vec![0; THREADS as usize];
    let mut seen = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some(rest) = line.strip_prefix("acknowledged ") else { continue };
        let (thread, count) = rest.split_once(' ').unwrap();
        acknowledged[thread.parse::<usize>().unwrap()] = count.parse().unwrap();
        seen += 1;
        if seen == commits {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(seen >= commits, "the child ended by itself");
    acknowledged
}

/// Kills a process `rounds` times, and each time checks what it left. Returns how many commits were acknowledged.
fn killed(scheme: Scheme, case: Case, rounds: u64) -> i64 {
    killed_while(scheme, case, 400, &|round| round < rounds).1
}

/// Kills processes that use one store, each after up to `most` commits, and each time checks what the process left.
/// Returns how many kills there were, and how many acknowledged commits.
fn killed_while(scheme: Scheme, case: Case, most: u64, goes_on: &dyn Fn(u64) -> bool) -> (u64, i64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    prepare(&path, scheme, case);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut before = vec![0; THREADS as usize];
    let mut round = 0;
    while goes_on(round) {
        let acknowledged = kill_after(&path, scheme, case, random.u64(1..most));
        let what = format!("{scheme:?}, {}, seed {seed}, kill {round}", case.name);
        let store =
            Store::open(&path, case.options(scheme)).unwrap_or_else(|error| panic!("{what}: {error}"));
        store.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
        let (accounts, counts) = (store.table("accounts").unwrap(), store.table("counts").unwrap());
        let sum = store
            .run(|tx| {
                tx.scan(&accounts, ..)
                    .map(|row| Ok(number_of(&row?.1)))
                    .sum::<Result<i64, duralite_store::Error>>()
            })
            .unwrap();
        assert_eq!(sum, case.accounts as i64 * BALANCE, "{what}");
        for (thread, acknowledged) in acknowledged.into_iter().enumerate() {
            let key = (thread as u64).to_be_bytes();
            let count = store.run(|tx| number(tx, &counts, &key)).unwrap();
            let least = acknowledged.max(before[thread]);
            assert!(count >= least, "{what}: thread {thread} has {count}, and {least} were acknowledged");
            before[thread] = count;
        }
        round += 1;
    }
    (round, before.iter().sum())
}

/// Kills processes with each scheme, and prints a row for docs/fault-model.md.
fn killed_on_all(case: Case, fewest: u64) {
    let kills = std::env::var("STORE_KILLS").ok().and_then(|kills| kills.parse::<u64>().ok());
    let rounds = kills.map_or(fewest, |kills| kills.div_ceil(schemes().len() as u64));
    let begun = Instant::now();
    let told: i64 = schemes().into_iter().map(|scheme| killed(scheme, case, rounds)).sum();
    println!(
        "| store | deaths of processes, {} | {} processes of {THREADS} threads killed, {told} commits acknowledged, none lost | {} |",
        case.name,
        rounds * schemes().len() as u64,
        begun.elapsed().as_secs()
    );
}

#[test]
fn inv30_kills_lose_nothing_that_was_acknowledged() {
    killed_on_all(IN_CACHE, 3);
}

/// With this much data, the store evicts pages and writes them to the page file all the time.
#[test]
fn inv30_nor_do_kills_at_ten_times_the_smallest_cache() {
    killed_on_all(SMALLEST, 2);
}

/// With exactly these parameters, the recovery after the seventeenth kill once did not end.
#[test]
fn inv50_seventeen_kills_with_more_data_than_cache_are_recovered_from() {
    killed(Scheme::Auto, BEYOND, 17);
}

/// Uses one store for as many seconds as `STORE_SOAK` says, or for a few.
#[test]
fn inv30_a_soak_at_ten_times_the_cache_loses_nothing() {
    let seconds = std::env::var("STORE_SOAK").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let begun = Instant::now();
    let is_on = |round| round == 0 || begun.elapsed().as_secs() < seconds;
    let most = if seconds > 60 { 100_000 } else { 1000 };
    let (kills, told) = killed_while(Scheme::Auto, SOAK, most, &is_on);
    println!(
        "| store | a soak of one store, {} | {kills} processes of {THREADS} threads killed, {told} commits acknowledged, none lost | {} |",
        SOAK.name,
        begun.elapsed().as_secs()
    );
}

const OPEN: &str = "STORE_KILL_OPEN";

/// Returns how many megabytes of pages there are, and how many changes the open transaction has made when its process
/// dies. `STORE_LARGE` selects the full size.
fn large() -> (u64, u64) {
    if std::env::var_os("STORE_LARGE").is_some() { (148, 20_000) } else { (12, 1600) }
}

/// Does the work of the child process: runs one transaction, which makes many changes and never ends.
#[test]
fn open_child() {
    let Ok(dir) = std::env::var(OPEN) else { return };
    let (megabytes, changes) = large();
    let rows = megabytes * 1000;
    let store = Store::open(Path::new(&dir), large_options()).unwrap();
    let (table, other) = (store.table("rows").unwrap(), store.table("other").unwrap());
    for first in (0..rows).step_by(500) {
        store
            .run(|tx| (first..first + 500).try_for_each(|n| tx.put(&table, &n.to_be_bytes(), &[b'a'; 900])))
            .unwrap();
    }
    let mut open = store.begin();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..changes {
        open.put(&table, &random.u64(0..rows).to_be_bytes(), &[b'b'; 900]).unwrap();
    }
    // This commit makes the whole log durable, including the open transaction's changes.
    store.run(|tx| tx.put(&other, b"key", b"value")).unwrap();
    println!("\nready");
    loop {
        std::thread::park();
    }
}

/// Returns options with a cache that holds an eighth of the pages.
fn large_options() -> Options {
    Options::default().cache_bytes(large().0 << 20 >> 3).log_bytes(256 << 20)
}

#[test]
fn inv50_a_large_transaction_that_was_open_at_a_kill_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::open_child", "--nocapture"])
        .env(OPEN, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().any(|line| line.unwrap() == "ready");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said, "the child ended by itself");
    let begun = Instant::now();
    let store = Store::open(&path, large_options()).unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(store.metrics().recovered_transactions, 1);
    store.verify().unwrap();
    let table = store.table("rows").unwrap();
    let mut count = 0;
    for row in store.begin().scan(&table, ..) {
        assert_eq!(row.unwrap().1, [b'a'; 900]);
        count += 1;
    }
    let (megabytes, changes) = large();
    assert_eq!(count, megabytes * 1000);
    println!(
        "| store | a transaction that was open | {changes} changes in {megabytes} MB of pages with a cache of an eighth taken back in {seconds:.1} s | |"
    );
}
