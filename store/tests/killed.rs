//! `kill -9` of a process whose threads report what their transactions and snapshots see. The content of the store
//! afterwards must fit that history.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;

use common::lists::{Watcher, now, read_all, transaction};
use common::{options, schemes, value};
use duralite_histories::{Fate, Op, Told, check, commits, ended};
use duralite_store::{Options, Scheme, Store, Table};

const THREADS: u64 = 6;
const DIR: &str = "STORE_KILLED_DIR";
const SCHEME: &str = "STORE_KILLED_SCHEME";
const SEED: &str = "STORE_KILLED_SEED";
/// The number of rows in the table `others`. They need ten times as many pages as the cache has frames.
const OTHERS: u64 = 64 * 10 * 7;

fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).cache_bytes(cache_bytes).page_bytes(4096)
}

/// Prints a line by a single write. So a kill leaves either the whole line or nothing of it.
fn tell(line: &str) {
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

struct Child<'a> {
    store: &'a Store,
    table: &'a Table,
    others: &'a Table,
    next: AtomicU64,
    clock: AtomicU64,
}

impl Child<'_> {
    fn work(&self, mut random: fastrand::Rng) {
        let mut watcher = Watcher::default();
        loop {
            let (number, mut ops) = (now(&self.clock), Vec::new());
            let mut tx = self.store.begin();
            let done = transaction(&mut tx, self.table, &mut random, &self.next, &mut ops).and_then(|()| {
                let other = random.u64(0..OTHERS).to_be_bytes();
                tx.put(self.others, &other, &value(random.u32(..), 500))
            });
            if done.is_ok() {
                // From here on, the transaction may be in the store even if the child never reports its end.
                tell(&commits(number, number, &ops));
                let fate = tx.commit().map_or(Fate::Aborted, |()| Fate::Committed);
                tell(&ended(number, fate, now(&self.clock)));
            } else {
                drop(tx);
            }
            if let Some(seen) = watcher.look(self.store, self.table, &self.clock, &mut random)
                && let (Fate::Committed, Some((begin, end))) = (seen.fate, seen.span)
            {
                tell(&(commits(begin, begin, &seen.ops) + &ended(begin, Fate::Committed, end)));
            }
        }
    }
}

/// Does the work of the child process. Does nothing if it runs as an ordinary test.
#[test]
fn child() {
    let (Ok(dir), Ok(scheme)) = (std::env::var(DIR), std::env::var(SCHEME)) else { return };
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    let scheme = schemes().into_iter().find(|known| known.as_str() == scheme).unwrap();
    let store = Store::open(Path::new(&dir), smallest(scheme)).unwrap();
    let (table, others) = (store.table("lists").unwrap(), store.table("others").unwrap());
    let numbers = || AtomicU64::new(1);
    let child = Child { store: &store, table: &table, others: &others, next: numbers(), clock: numbers() };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let child = &child;
            scope.spawn(move || child.work(fastrand::Rng::with_seed(seed * 64 + thread)));
        }
    });
}

fn prepare(dir: &Path, scheme: Scheme) {
    let store = Store::open(dir, smallest(scheme)).unwrap();
    store.table("lists").unwrap();
    let others = store.table("others").unwrap();
    for first in (0..OTHERS).step_by(128) {
        let mut tx = store.begin();
        let all = first..OTHERS.min(first + 128);
        let put = all.into_iter().try_for_each(|n| tx.put(&others, &n.to_be_bytes(), &value(n as u32, 500)));
        put.and_then(|()| tx.commit()).unwrap();
    }
}

/// Lets the child work until `wanted` transactions have committed, and then kills it. Returns what the child reported.
fn kill_after(dir: &Path, scheme: Scheme, seed: u64, wanted: u64) -> Told {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture"])
        .env(DIR, dir)
        .env(SCHEME, scheme.as_str())
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut told, mut committed) = (Told::default(), 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if told.line(&line.unwrap()).unwrap() {
            committed += 1;
            if committed == wanted {
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(committed >= wanted, "the child ended by itself");
    told
}

#[test]
fn inv55_what_a_kill_leaves_fits_to_what_transactions_and_snapshots_have_seen() {
    for (seed, scheme) in (1..).zip(schemes()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        prepare(&path, scheme);
        let wanted = fastrand::Rng::with_seed(seed).u64(50..400);
        let history = kill_after(&path, scheme, seed, wanted).history();
        let store = Store::open(&path, smallest(scheme)).unwrap();
        let last = read_all(&store, &store.table("lists").unwrap());
        let what = format!("seed {seed}, {scheme:?}, {wanted} committed");
        check(&history, &last).unwrap_or_else(|why| panic!("{what}: {why}"));
        // A control: removes an element from what a committed transaction has appended. The check must notice this.
        let appended = history.iter().filter(|tx| tx.fate == Fate::Committed).flat_map(|tx| &tx.ops);
        let Some(Op::Append(list, element)) = appended.rev().find(|op| matches!(op, Op::Append(..))) else {
            panic!("{what}: nothing was appended")
        };
        let mut lost = last.clone();
        lost.lists.get_mut(list).unwrap().retain(|other| other != element);
        assert!(check(&history, &lost).is_err(), "{what}");
        store.verify().unwrap();
    }
}
