//! kill -9 of a process in which 16 threads work.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{options, schemes};
use duralite_store::{Scheme, Store, Table, Transaction};

const THREADS: u64 = 16;
const ACCOUNTS: u64 = 200;
const BALANCE: i64 = 1000;
const DIR: &str = "STORE_KILL_DIR";
const SCHEME: &str = "STORE_KILL_SCHEME";

fn number(tx: &mut Transaction, table: &Table, key: &[u8]) -> Result<i64, duralite_store::Error> {
    let value = tx.get_for_update(table, key)?;
    Ok(value.map_or(0, |value| i64::from_le_bytes(value.try_into().unwrap())))
}

/// What the child does; nothing unless it is one.
#[test]
fn child() {
    let (Ok(dir), Ok(scheme)) = (std::env::var(DIR), std::env::var(SCHEME)) else { return };
    let scheme = schemes().into_iter().find(|known| known.as_str() == scheme).unwrap();
    let store = Store::open(Path::new(&dir), options(scheme)).unwrap();
    let (accounts, counts) = (store.table("accounts").unwrap(), store.table("counts").unwrap());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, accounts, counts) = (&store, &accounts, &counts);
            scope.spawn(move || {
                let mut random = fastrand::Rng::new();
                loop {
                    let (from, to) = (random.u64(0..ACCOUNTS), random.u64(0..ACCOUNTS));
                    let amount = random.i64(1..50);
                    let count = store
                        .run(|tx| {
                            let value = number(tx, accounts, &from.to_be_bytes())? - amount;
                            tx.put(accounts, &from.to_be_bytes(), &value.to_le_bytes())?;
                            let value = number(tx, accounts, &to.to_be_bytes())? + amount;
                            tx.put(accounts, &to.to_be_bytes(), &value.to_le_bytes())?;
                            let count = number(tx, counts, &thread.to_be_bytes())? + 1;
                            tx.put(counts, &thread.to_be_bytes(), &count.to_le_bytes())?;
                            Ok(count)
                        })
                        .unwrap_or_else(|error| panic!("{scheme:?}: {error}; {:?}", store.metrics()));
                    // One write: a line is there as a whole or not at all.
                    let line = format!("\nacknowledged {thread} {count}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

fn prepare(dir: &Path, scheme: Scheme) {
    let store = Store::open(dir, options(scheme)).unwrap();
    let accounts = store.table("accounts").unwrap();
    store.table("counts").unwrap();
    store
        .run(|tx| {
            (0..ACCOUNTS)
                .try_for_each(|account| tx.put(&accounts, &account.to_be_bytes(), &BALANCE.to_le_bytes()))
        })
        .unwrap();
}

/// Lets the child work until so many commits were acknowledged, kills it, and says how often each thread was.
fn kill_after(dir: &Path, scheme: Scheme, commits: u64) -> Vec<i64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(DIR, dir)
        .env(SCHEME, scheme.as_str())
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

#[test]
fn inv30_kills_lose_nothing_that_was_acknowledged() {
    let kills = std::env::var("STORE_KILLS").ok().and_then(|kills| kills.parse::<u64>().ok());
    let rounds = kills.map_or(3, |kills| kills.div_ceil(schemes().len() as u64));
    let begun = Instant::now();
    let mut told: i64 = 0;
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        prepare(&path, scheme);
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut before = vec![0; THREADS as usize];
        for round in 0..rounds {
            let acknowledged = kill_after(&path, scheme, random.u64(1..400));
            let what = format!("{scheme:?}, seed {seed}, kill {round}");
            let store = Store::open(&path, options(scheme)).unwrap();
            store.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
            let (accounts, counts) = (store.table("accounts").unwrap(), store.table("counts").unwrap());
            let sum = store
                .run(|tx| {
                    tx.scan(&accounts, ..)
                        .map(|row| Ok(i64::from_le_bytes(row?.1.try_into().unwrap())))
                        .sum::<Result<i64, duralite_store::Error>>()
                })
                .unwrap();
            assert_eq!(sum, ACCOUNTS as i64 * BALANCE, "{what}");
            for (thread, acknowledged) in acknowledged.into_iter().enumerate() {
                let key = (thread as u64).to_be_bytes();
                let count = store.run(|tx| number(tx, &counts, &key)).unwrap();
                let least = acknowledged.max(before[thread]);
                assert!(count >= least, "{what}: thread {thread} has {count}, and {least} were acknowledged");
                before[thread] = count;
            }
        }
        told += before.iter().sum::<i64>();
    }
    println!(
        "| store | deaths of processes | {} processes of {THREADS} threads killed, {told} commits acknowledged, none lost | {} |",
        rounds * schemes().len() as u64,
        begun.elapsed().as_secs()
    );
}
