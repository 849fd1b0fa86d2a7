//! Tests the encoding of page changes on changes that real SQLite makes. The encodings must be short, and
//! must decode to the same pages, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod pages;
mod workloads;

use std::hint::black_box;
use std::time::Instant;

use duralite_format::diff;
use duralite_format::page_change::{self, ChangeKind, Difference, Scratch};
use pages::{Change, Pages};
use workloads::{WORKLOADS, Workload};

/// The totals of a workload's changes.
#[derive(Default)]
struct Sum {
    changes: usize,
    bytes: usize,
    plain: usize,
    /// The total size in bytes of the changes that `encode_rearranged` encoded. That function examines a page
    /// more closely only if the page's cells were rearranged.
    rearranged: usize,
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
        // The bytes of a deleted cell stay in the page, and a new cell may happen to match them. Then plain
        // ranges can be shorter than an encoding of cells. All other encodings may be only a little longer
        // than plain ranges.
        assert!(kind == ChangeKind::Cells || payload.len() <= plain.len() + 2);
        self.rearranged += rearranged(scratch, change, &plain);
        self.changes += 1;
        self.bytes += payload.len();
        self.plain += plain.len();
        self.kinds[ChangeKind::ALL.iter().position(|one| *one == kind).unwrap()] += 1;
    }
}

/// Encodes a change with `encode_rearranged`, and applies the result. Returns the number of bytes in
/// the encoding.
fn rearranged(scratch: &mut Scratch, change: &Change, plain: &[u8]) -> usize {
    let (mut payload, mut page) = (Vec::new(), change.old.clone());
    match page_change::encode_rearranged(scratch, &change.old, &change.new, change.header, &mut payload) {
        Difference::Ranges(_) => assert!(payload == plain),
        Difference::Change => {
            page_change::apply(&mut page, &payload).unwrap();
            assert!(page == change.new, "came out different");
        }
    }
    payload.len()
}

/// A page size, a number of reserved bytes, and pragmas.
struct Setting {
    page_bytes: usize,
    reserved: u8,
    pragmas: &'static str,
}

impl Setting {
    fn is_default(&self) -> bool {
        (self.page_bytes, self.reserved, self.pragmas) == (4096, 0, "")
    }
}

const SETTINGS: [Setting; 6] = [
    Setting { page_bytes: 512, reserved: 0, pragmas: "" },
    Setting { page_bytes: 4096, reserved: 0, pragmas: "" },
    Setting { page_bytes: 4096, reserved: 0, pragmas: "PRAGMA secure_delete=ON" },
    Setting { page_bytes: 4096, reserved: 0, pragmas: "PRAGMA auto_vacuum=FULL" },
    Setting { page_bytes: 4096, reserved: 32, pragmas: "" },
    Setting { page_bytes: 65536, reserved: 0, pragmas: "" },
];

/// Returns the page changes of each transaction.
fn transactions(workload: &Workload, setting: &Setting, steps: i64) -> Vec<Vec<Change>> {
    let mut pages = Pages::new(setting.page_bytes, setting.reserved, setting.pragmas, 1);
    (workload.prepare)(&mut pages);
    (0..steps).map(|i| (workload.step)(&mut pages, i)).collect()
}

#[test]
fn what_sqlite_does_to_pages_comes_out_byte_for_byte() {
    let mut scratch = Scratch::default();
    for setting in &SETTINGS {
        for workload in &WORKLOADS {
            let mut sum = Sum::default();
            for change in transactions(workload, setting, 200).iter().flatten() {
                sum.add(&mut scratch, change);
            }
            assert!(sum.changes >= 200, "{}", workload.name);
            if setting.is_default() {
                let percent = 100 * sum.bytes / sum.plain;
                assert!(percent <= workload.percent, "{}: {percent}% of plain ranges", workload.name);
                let percent = 100 * sum.rearranged / sum.plain;
                let most = workload.rearranged_percent;
                assert!(percent <= most, "{}: {percent}% of plain ranges where rearranged", workload.name);
            }
        }
    }
}

/// The largest number of pages that a transaction changes without a split. An update of a row changes one
/// leaf. A transaction that changes more pages has split one.
const PAGES_WITHOUT_SPLIT: usize = 2;

/// Prints the sizes and the times. To run it: `cargo test --release -p duralite-testkit --test all --
/// --ignored --nocapture page_change::figures`.
#[test]
#[ignore = "prints figures"]
fn figures() {
    for setting in &SETTINGS {
        println!("\n{} bytes, {} reserved {}", setting.page_bytes, setting.reserved, setting.pragmas);
        println!(
            "                    pages   bytes   plain      ns   plain   apply   [cells, moves, ranges, whole]"
        );
        for workload in &WORKLOADS {
            let all = transactions(workload, setting, 1000);
            // Leave out page 1, because its counters change in every transaction.
            let other_pages = |all: Vec<Vec<Change>>| {
                all.into_iter().flatten().filter(|change| change.header == 0).collect::<Vec<_>>()
            };
            if workload.name == "random insert" {
                let (splits, rows): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|pages| pages.len() > PAGES_WITHOUT_SPLIT);
                print_row(workload.name, &other_pages(rows));
                print_row("  that split", &other_pages(splits));
            } else {
                print_row(workload.name, &other_pages(all));
            }
        }
    }
}

fn print_row(name: &str, all: &[Change]) {
    let mut scratch = Scratch::default();
    let mut sum = Sum::default();
    all.iter().for_each(|change| sum.add(&mut scratch, change));
    let (encode, plain, apply) = times(&mut scratch, all);
    let (n, kinds) = (sum.changes.max(1), sum.kinds);
    let (bytes, plain_bytes) = (sum.bytes / n, sum.plain / n);
    println!("{name:18}{n:>7}{bytes:>8}{plain_bytes:>8}{encode:>8}{plain:>8}{apply:>8}   {kinds:?}");
}

/// Returns three times in nanoseconds per change: to encode it, to encode it as plain ranges, and to apply
/// it.
fn times(scratch: &mut Scratch, all: &[Change]) -> (u128, u128, u128) {
    let mut out = Vec::with_capacity(1 << 18);
    let (mut encode, mut plain, mut apply) = (0, 0, 0);
    for Change { old, new, header } in all {
        plain += shortest(|| {
            out.clear();
            diff::encode(old, new, black_box(&mut out));
        });
        encode += shortest(|| {
            out.clear();
            page_change::encode(scratch, old, new, *header, black_box(&mut out));
        });
        let mut pages = vec![old.clone(); ROUNDS * CALLS];
        let mut next = pages.iter_mut();
        apply += shortest(|| page_change::apply(black_box(next.next().unwrap()), &out).unwrap());
    }
    let count = all.len().max(1) as u128;
    (encode / count, plain / count, apply / count)
}

const ROUNDS: usize = 8;
const CALLS: usize = 4;

/// Returns the nanoseconds per call in the fastest round, so that other load on the machine matters little.
fn shortest(mut call: impl FnMut()) -> u128 {
    let round = |_| {
        let started = Instant::now();
        (0..CALLS).for_each(|_| call());
        started.elapsed().as_nanos() / CALLS as u128
    };
    (0..ROUNDS).map(round).min().unwrap_or(0)
}
