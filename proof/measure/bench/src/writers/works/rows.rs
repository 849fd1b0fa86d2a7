//! Transactions on one table. They use rows that belong to one writer, or random keys, or append at the end
//! of the table.

use serde::{Deserialize, Serialize};

use super::turn::{Effects, LONG, SHORT, Turn, Workload};
use crate::writers::client::{Client, Done};

/// The number of rows that each writer has.
const ROWS: i64 = 2000;
/// The distance between the first keys of neighbouring writers.
const REACH: i64 = 1 << 32;

/// Each writer has its own rows. Between the rows of two writers lies a row that fills a leaf page, so that
/// the two writers share no leaf page.
pub(super) struct Own {
    pub(super) reads: u64,
    pub(super) updates: u64,
}

impl Workload for Own {
    fn tables(&self) -> String {
        "CREATE TABLE own(id INTEGER PRIMARY KEY, v INTEGER NOT NULL, pad TEXT NOT NULL)".to_owned()
    }

    fn fill(&self, client: &mut dyn Client, writers: i64) -> Done<Effects> {
        let row = format!("INSERT INTO own VALUES(?1, 0, {SHORT})");
        let wall = "INSERT INTO own VALUES(?1, 0, substr(hex(zeroblob(2000)),1,3990))";
        for writer in 0..writers {
            for id in 0..ROWS {
                client.run(&row, &[writer * REACH + id])?;
            }
            client.run(wall, &[writer * REACH + ROWS])?;
        }
        Ok([0; 4])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        let first = turn.writer * REACH;
        for _ in 0..self.reads {
            let id = first + turn.random.i64(0..ROWS);
            turn.read("SELECT v FROM own WHERE id=?1", &[id])?;
        }
        for _ in 0..self.updates {
            let id = first + turn.random.i64(0..ROWS);
            turn.write("UPDATE own SET v=v+1 WHERE id=?1", &[id])?;
        }
        turn.think();
        Ok([self.updates as i64, 0, 0, 0])
    }

    fn sums(&self) -> &'static [&'static str] {
        &["SELECT sum(v) FROM own"]
    }
}

/// The workload that inserts random keys.
pub(super) struct Keys {
    /// The number of rows when a run begins.
    pub(super) rows: i64,
}

const INSERT_KEY: &str = "INSERT INTO keys VALUES(?1, ?2, substr(hex(zeroblob(50)),1,100))";
const KEY_SUMS: &[&str] = &["SELECT count(*) FROM keys", "SELECT sum(v) FROM keys"];

impl Workload for Keys {
    fn tables(&self) -> String {
        "CREATE TABLE keys(k INTEGER PRIMARY KEY, v INTEGER NOT NULL, pad TEXT NOT NULL)".to_owned()
    }

    fn fill(&self, client: &mut dyn Client, _: i64) -> Done<Effects> {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..self.rows {
            client.run(INSERT_KEY, &[random.i64(0..i64::MAX), 0])?;
        }
        Ok([self.rows, 0, 0, 0])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        let (key, value) = (turn.random.i64(0..i64::MAX), turn.random.i64(1..1000));
        turn.write(INSERT_KEY, &[key, value])?;
        turn.think();
        Ok([1, value, 0, 0])
    }

    fn sums(&self) -> &'static [&'static str] {
        KEY_SUMS
    }
}

/// The workload that appends at the end of a table.
pub(super) struct Append {
    pub(super) autoincrement: bool,
}

impl Workload for Append {
    fn tables(&self) -> String {
        let autoincrement = if self.autoincrement { " AUTOINCREMENT" } else { "" };
        format!(
            "CREATE TABLE keys(k INTEGER PRIMARY KEY{autoincrement}, v INTEGER NOT NULL, pad TEXT NOT NULL)"
        )
    }

    fn fill(&self, _: &mut dyn Client, _: i64) -> Done<Effects> {
        Ok([0; 4])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        let value = turn.random.i64(1..1000);
        turn.write("INSERT INTO keys(v, pad) VALUES(?1, substr(hex(zeroblob(50)),1,100))", &[value])?;
        turn.think();
        Ok([1, value, 0, 0])
    }

    fn sums(&self) -> &'static [&'static str] {
        KEY_SUMS
    }
}

/// The place of the rows that writers read and then change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// Each writer has a row in a leaf page of its own.
    OwnLeaf,
    /// The rows of all writers are in one leaf page.
    SharedLeaf,
    /// Each writer reads its last row and inserts the next one, far from the rows of other writers. The table
    /// grows.
    Growing,
}

/// A transaction that begins with a SELECT, and then writes.
pub(super) struct Turns(pub(super) Place);

impl Workload for Turns {
    fn tables(&self) -> String {
        "CREATE TABLE turns(id INTEGER PRIMARY KEY, v INTEGER NOT NULL, pad TEXT NOT NULL)".to_owned()
    }

    fn fill(&self, client: &mut dyn Client, writers: i64) -> Done<Effects> {
        let pad = if self.0 == Place::SharedLeaf { "''" } else { LONG };
        let insert = format!("INSERT INTO turns VALUES(?1, 0, {pad})");
        for writer in 0..writers {
            client.run(&insert, &[writer * REACH])?;
        }
        Ok([writers, 0, 0, 0])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        let first = turn.writer * REACH;
        if self.0 == Place::Growing {
            let last = "SELECT max(id) FROM turns WHERE id BETWEEN ?1 AND ?2";
            let last = turn.read(last, &[first, first + REACH - 1])?;
            turn.think();
            let insert = "INSERT INTO turns VALUES(?1, ?2, substr(hex(zeroblob(250)),1,500))";
            turn.write(insert, &[last + 1, 1])?;
            return Ok([1, 1, 0, 0]);
        }
        let value = turn.read("SELECT v FROM turns WHERE id=?1", &[first])?;
        turn.think();
        turn.write("UPDATE turns SET v=?2 WHERE id=?1", &[first, value + 1])?;
        Ok([0, 1, 0, 0])
    }

    fn sums(&self) -> &'static [&'static str] {
        &["SELECT count(*) FROM turns", "SELECT sum(v) FROM turns"]
    }
}
