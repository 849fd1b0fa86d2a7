//! The whole interface of the store is compared with a model, with crashes at any step.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::backups::Backups;
use common::data::{self, BULK, Data, ROW_BYTES, smallest};
use common::explore::Course;
use common::model::{Content, Walker, Witness, content};
use common::{schemes, value};
use duralite_store::{Options, RestoreTo, Scheme, Store};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Makes one walk. The seed determines the scheme, the data, and whether there is an archive. Returns how many crashes
/// were checked.
fn walk(seed: u64, steps: u64) -> u64 {
    let scheme = schemes()[(seed % 6) as usize];
    let data = Data::ALL[(seed / 6 % 2) as usize];
    let dir = (seed % 4 == 3).then(|| tempfile::tempdir().unwrap());
    let mut options = smallest(scheme);
    if let Some(dir) = &dir {
        options = options.archive(Backups::archive(dir.path()));
    }
    println!("STORE_MODEL_SEED={seed} repeats: {scheme:?}, {data:?}, an archive: {}", dir.is_some());
    let course = Course { data, options, seed, steps, crash_every: 12, then_broken: None };
    course.explore().unwrap_or_else(|why| panic!("{why}"))
}

/// Twelve walks: each scheme once with data that fits into the cache, and once with ten times as much.
/// `STORE_MODEL_ROUNDS` sets how many such rounds are made. `STORE_MODEL_SEED` selects a single walk.
#[test]
fn inv30_the_whole_interface_is_as_its_model_through_crashes() {
    let begun = Instant::now();
    if let Some(seed) = number("STORE_MODEL_SEED") {
        walk(seed, 60);
        return;
    }
    let rounds = number("STORE_MODEL_ROUNDS");
    let walks = rounds.unwrap_or(1) * 12;
    let steps = if rounds.is_some() { 60 } else { 40 };
    let states: u64 = (1..=walks).map(|seed| walk(seed, steps)).sum();
    println!(
        "| store | walks through the whole interface beside a model | {walks} walks of {steps} calls, on all schemes, half of them \
         at ten times the smallest cache; {states} crashes as the model says | {} |",
        begun.elapsed().as_secs()
    );
}

/// The environment variable that tells the child process its directory, its scheme, and its seed.
const CHILD: &str = "STORE_MODEL_CHILD";

fn hash(content: &Content) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// A witness that reports to the parent process which state each commit makes, and which commits are acknowledged.
struct Tells;

impl Tells {
    fn line(line: &str) {
        // Prints the line by a single write. So a kill leaves either the whole line or nothing of it.
        std::io::stdout().lock().write_all(format!("\n{line}\n").as_bytes()).unwrap();
    }
}

impl Witness for Tells {
    fn commits(&self, number: u64, state: &Content) {
        Self::line(&format!("commits {number} {}", hash(state)));
    }

    fn acknowledged(&self, number: u64) {
        Self::line(&format!("acknowledged {number}"));
    }
}

fn with_archive(dir: &Path, scheme: Scheme) -> Options {
    smallest(scheme).archive(Backups::archive(dir))
}

/// Does the work of the child process: a walk that goes on until the process is killed. Does nothing if it runs as an
/// ordinary test.
#[test]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let [dir, scheme, seed] = told.split('\n').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let scheme = schemes().into_iter().find(|known| known.as_str() == scheme).unwrap();
    let store = Store::open(Path::new(dir).join("store"), with_archive(Path::new(dir), scheme)).unwrap();
    let now = content(&store).unwrap();
    Tells.commits(0, &now);
    Tells.acknowledged(0);
    let mut walker = Walker::new(&store, seed.parse().unwrap(), now, &Tells);
    loop {
        walker.step().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Kills a child once `commits` commits have been acknowledged. Returns the hashes of the states that the store may now
/// have.
fn killed(dir: &Path, scheme: Scheme, seed: u64, commits: u64) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "model::child", "--nocapture"])
        .env(CHILD, format!("{}\n{}\n{seed}", dir.display(), scheme.as_str()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut states, mut known) = (BTreeMap::new(), 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["commits", number, hash] => {
                states.insert(number.parse::<u64>().unwrap(), hash.parse::<u64>().unwrap());
            }
            ["acknowledged", number] => {
                known = number.parse().unwrap();
                if known >= commits {
                    child.kill().unwrap();
                }
            }
            _ => {}
        }
    }
    child.wait().unwrap();
    assert!(known >= commits, "seed {seed}, {scheme:?}: the child ended by itself");
    states.range(known..).map(|(_, hash)| *hash).collect()
}

/// Fills a store with ten times as much data as the smallest cache holds, and makes a backup of the store.
fn prepare(dir: &Path, scheme: Scheme) {
    let store = Store::open(dir.join("store"), with_archive(dir, scheme)).unwrap();
    let table = store.table(BULK).unwrap();
    for first in (0..data::ROWS).step_by(100) {
        let rows = (first..first + 100).map(|n| (n.to_be_bytes(), value(0, ROW_BYTES)));
        store.run(|tx| tx.put_all(&table, rows.clone())).unwrap();
    }
    store.backup(dir.join("backup")).unwrap();
}

/// Kills processes that use one store. At the end, restores the store's backup with the archive, and compares the
/// result with the store. Returns how many commits were acknowledged.
fn kills(scheme: Scheme, rounds: u64, seed: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (dir, mut random) = (dir.path(), fastrand::Rng::with_seed(seed));
    prepare(dir, scheme);
    let mut all = 0;
    for round in 0..rounds {
        let what = format!("{scheme:?}, seed {seed}, kill {round}");
        let commits = random.u64(0..40);
        let expected = killed(dir, scheme, random.u64(..), commits);
        all += commits;
        let options = with_archive(dir, scheme).create(false);
        let store = Store::open(dir.join("store"), options).unwrap_or_else(|error| panic!("{what}: {error}"));
        store.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = content(&store).unwrap();
        assert!(expected.contains(&hash(&found)), "{what}: it is none of {}", expected.len());
        if round + 1 == rounds {
            store.checkpoint().unwrap();
            let (target, archive) = (dir.join("restored"), Backups::archive(dir));
            let backup = dir.join("backup");
            Store::restore(&backup, Some(&archive), &target, RestoreTo::End, smallest(scheme))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let restored = Store::open(&target, smallest(scheme)).unwrap();
            restored.verify().unwrap();
            assert!(content(&restored).unwrap() == found, "{what}: restored it is something else");
        }
    }
    all
}

/// Kills real processes, with ten times as much data as the smallest cache holds. The same archive is used through all
/// kills. `STORE_KILLS` sets how many kills there are.
#[test]
fn inv30_kills_leave_what_the_model_says() {
    let begun = Instant::now();
    let seed = number("STORE_MODEL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = number("STORE_KILLS").map_or(2, |kills| kills.div_ceil(schemes().len() as u64));
    println!("STORE_MODEL_SEED={seed} repeats");
    let seeds = (0..).map(|nth| seed.wrapping_add(nth));
    let all: u64 = schemes().into_iter().zip(seeds).map(|(scheme, seed)| kills(scheme, rounds, seed)).sum();
    println!(
        "| store | deaths of processes that walk through the whole interface, at ten times the smallest cache | {} killed, {all} \
         commits acknowledged, all as the model says, and so is each backup brought to the end | {} |",
        rounds * schemes().len() as u64,
        begun.elapsed().as_secs()
    );
}
