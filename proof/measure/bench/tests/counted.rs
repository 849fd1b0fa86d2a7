//! Checks measured values that are counts and not times. Such values are the same on every machine, so the
//! report's tables must have exactly these values. A change of the code that changes a value must also change
//! the table.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::path::Path;
use std::time::Duration;

use duralite_bench::nvwal::{self, Effort};
use duralite_bench::report::Table;
use duralite_bench::{ppl, waldio_bytes};

/// The effort with which `make bench` measures.
const EFFORT: Effort =
    Effort { rounds: 5, transactions: 1000, time: Duration::from_secs(1), processes: false };

/// Makes a directory, in memory if possible, because nothing here depends on how long a flush takes.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the lines of a table of the report, with the column headings first.
fn reported(name: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../docs/bench/{name}.csv"));
    let text = std::fs::read_to_string(path).unwrap();
    let cells = |line: &str| {
        let inner = line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap();
        inner.split("\",\"").map(str::to_owned).collect()
    };
    text.lines().map(cells).collect()
}

fn is_reported(table: &Table) {
    let reported = reported(table.name);
    let (head, rows) = reported.split_first().unwrap();
    assert_eq!((head, rows), (&table.columns, table.rows.as_slice()), "{}", table.name);
}

#[test]
fn lines_fences_and_bytes_of_nvwal_are_those_of_the_report() {
    let dir = directory();
    is_reported(&nvwal::table1(dir.path(), EFFORT).unwrap());
    is_reported(&nvwal::table2(dir.path(), EFFORT).unwrap());
    is_reported(&nvwal::blocks(dir.path(), EFFORT).unwrap());
}

#[test]
fn workloads_and_records_of_ppl_are_those_of_the_report() {
    let dir = directory();
    is_reported(&ppl::table3(dir.path(), EFFORT).unwrap());
}

#[test]
fn bytes_of_waldio_are_those_of_the_report() {
    let reported = reported("waldio_bytes");
    let of = |name: &str| reported[0].iter().position(|column| column == name).unwrap();
    let columns = ["mode", "log is", "log", "zeros"].map(of);
    let dir = directory();
    for row in waldio_bytes::handed_over(dir.path(), EFFORT.transactions).unwrap() {
        let is_meant = |found: &&Vec<String>| found[columns[0]] == row[0] && found[columns[1]] == row[1];
        let found = reported[1..].iter().find(is_meant).unwrap_or_else(|| panic!("no row {row:?}"));
        assert_eq!(columns.map(|column| found[column].clone()), row);
    }
}
