//! Judges the sessions' reports on lists and registers.

use duralite_histories::{Fate, Last, Told, Tx, check, reads_of_the_uncommitted};
use duralite_testkit::{Fixture, LISTS_SCHEMA, integrity, read_lists, stock};

use super::{Case, Judged, NAME, reported};

/// Makes the database.
pub fn make(fixture: &Fixture, case: &Case) {
    let conn = fixture.open(NAME);
    let rows = case.keys * case.spread;
    let schema =
        LISTS_SCHEMA.replace(":rows", &rows.to_string()).replace(":spread", &case.spread.to_string());
    conn.execute_batch(&schema).unwrap();
    conn.close().unwrap();
}

/// The numbers of transactions that ended in each way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub committed: usize,
    pub aborted: usize,
    pub unknown: usize,
}

/// Returns what the sessions have reported.
pub fn history(fixture: &Fixture, processes: u64) -> Vec<Tx> {
    let mut told = Told::default();
    for line in reported(fixture, processes).lines() {
        told.line(line).unwrap();
    }
    told.history()
}

/// Returns the final content of the lists and registers, read through Duralite. Checks that the database file
/// has the same content after the last close.
pub fn last(fixture: &Fixture, spread: u64) -> Last {
    let conn = fixture.open(NAME);
    integrity(&conn);
    let last = read_lists(&conn, spread).unwrap();
    conn.close().unwrap();
    fixture.assert_plain(NAME);
    assert_eq!(read_lists(&stock(&fixture.path(NAME)), spread).unwrap(), last, "in the file that is left");
    last
}

/// Panics unless one order of the transactions explains everything that they saw.
pub fn judged(seed: u64, history: Vec<Tx>, last: &Last) -> (Counts, Judged) {
    let verdict = || verdict(history, last).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    Judged::by(verdict, |counts| counts.committed as u64)
}

/// Returns an error unless one order of the transactions explains everything that they saw. Aborted
/// transactions count too: the order must also explain what they saw.
pub fn verdict(mut history: Vec<Tx>, last: &Last) -> Result<Counts, String> {
    let count = |fate| history.iter().filter(|tx| tx.fate == fate).count();
    let counts = Counts {
        committed: count(Fate::Committed),
        aborted: count(Fate::Aborted),
        unknown: count(Fate::Unknown),
    };
    history.extend(reads_of_the_uncommitted(&history));
    check(&history, last).map(|()| counts)
}
