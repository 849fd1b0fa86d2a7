//! Changes that real SQLite makes to pages are recorded small, and come out byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod pages;
mod workloads;

use std::hint::black_box;
use std::time::Instant;

use duralite_logfmt::diff;
use duralite_logfmt::page_change::{self, ChangeKind, Scratch};
use pages::{Change, Pages};
use workloads::{WORKLOADS, Workload};

/// What the changes of a workload came to.
#[derive(Default)]
struct Sum {
    changes: usize,
    bytes: usize,
    plain: usize,
    kinds: [usize; 4],
}

impl Sum {
    /// Encodes, applies and counts a change.
    fn add(&mut self, scratch: &mut Scratch, change: &Change) {
        let (mut payload, mut plain) = (Vec::new(), Vec::new());
        let kind = page_change::encode(scratch, &change.old, &change.new, change.header, &mut payload);
        assert_eq!(page_change::kind(&payload), Ok(kind));
        let mut page = change.old.clone();
        page_change::apply(&mut page, &payload).unwrap();
        assert!(page == change.new, "{kind:?} came out different");
        diff::encode(&change.old, &change.new, &mut plain);
        assert!(payload.len() <= plain.len() + 2);
        self.changes += 1;
        self.bytes += payload.len();
        self.plain += plain.len();
        self.kinds[ChangeKind::ALL.iter().position(|one| *one == kind).unwrap()] += 1;
    }
}

fn changes(workload: &Workload, page_bytes: usize, pragmas: &str, steps: i64) -> Vec<Change> {
    let mut pages = Pages::new(page_bytes, pragmas, 1);
    (workload.prepare)(&mut pages);
    (0..steps).flat_map(|i| (workload.step)(&mut pages, i)).collect()
}

/// How each page size and each way to free space is set.
const SETTINGS: [(usize, &str); 5] = [
    (512, ""),
    (4096, ""),
    (4096, "PRAGMA secure_delete=ON"),
    (4096, "PRAGMA auto_vacuum=FULL"),
    (65536, ""),
];

#[test]
fn what_sqlite_does_to_pages_comes_out_byte_for_byte() {
    let mut scratch = Scratch::default();
    for (page_bytes, pragmas) in SETTINGS {
        for workload in &WORKLOADS {
            let mut sum = Sum::default();
            for change in changes(workload, page_bytes, pragmas, 200) {
                sum.add(&mut scratch, &change);
            }
            assert!(sum.changes >= 200, "{}", workload.name);
        }
    }
}

/// `cargo test --release -p duralite-testkit --test page_change -- --ignored --nocapture figures`
#[test]
#[ignore = "prints figures"]
fn figures() {
    let mut scratch = Scratch::default();
    for (page_bytes, pragmas) in SETTINGS {
        println!("\n{page_bytes} {pragmas}");
        println!(
            "{:18}{:>7}{:>8}{:>8}{:>8}{:>8}{:>8}   cells moves ranges whole",
            "", "pages", "bytes", "plain", "ns", "plain", "apply"
        );
        for workload in &WORKLOADS {
            let all = changes(workload, page_bytes, pragmas, 1000);
            let mut sum = Sum::default();
            all.iter().for_each(|change| sum.add(&mut scratch, change));
            let (encode, plain, apply) = times(&mut scratch, &all);
            let (name, n, kinds) = (workload.name, sum.changes, sum.kinds);
            println!(
                "{name:18}{n:>7}{:>8}{:>8}{encode:>8}{plain:>8}{apply:>8}   {kinds:?}",
                sum.bytes / n,
                sum.plain / n
            );
        }
    }
}

/// Nanoseconds per change: encoding, encoding by `diff`, applying.
fn times(scratch: &mut Scratch, all: &[Change]) -> (u128, u128, u128) {
    const ROUNDS: u128 = 20;
    let per_change = |started: Instant| started.elapsed().as_nanos() / (ROUNDS * all.len() as u128);
    let mut out = Vec::with_capacity(1 << 18);
    let started = Instant::now();
    for change in (0..ROUNDS).flat_map(|_| all) {
        out.clear();
        page_change::encode(scratch, &change.old, &change.new, change.header, black_box(&mut out));
    }
    let encode = per_change(started);
    let started = Instant::now();
    for change in (0..ROUNDS).flat_map(|_| all) {
        out.clear();
        diff::encode(&change.old, &change.new, black_box(&mut out));
    }
    let plain = per_change(started);
    let mut apply = 0;
    for change in all {
        out.clear();
        page_change::encode(scratch, &change.old, &change.new, change.header, &mut out);
        let mut pages = vec![change.old.clone(); ROUNDS as usize];
        let started = Instant::now();
        for page in &mut pages {
            page_change::apply(black_box(page), &out).unwrap();
        }
        apply += started.elapsed().as_nanos();
    }
    (encode, plain, apply / (ROUNDS * all.len() as u128))
}
