//! Makes the transactions of processes that write concurrently, and checks their effects on the database.
//!
//! Each of these processes writes to a *lane*: a table of its own, and a row that counts the lane's
//! transactions, in a page of its own. So most transactions of different lanes do not conflict. There are
//! only `LANES` lanes, so several processes may share one. Now and then a transaction reads how many
//! transactions another lane has, or adds 1 to a row that all lanes share. With these transactions the check
//! can tell whether the database has the first transactions of one common order, without a gap in any lane.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rusqlite::{Connection, params};

use crate::ledger::payload;

/// The number of lanes.
pub(crate) const LANES: i64 = 4;
/// The number of newest rows that a lane keeps.
const WINDOW: i64 = 40;
/// A transaction whose number is a multiple of this also reads how many transactions another lane has.
const LOOKS_EVERY: i64 = 5;
/// A transaction whose number is a multiple of this adds 1 to the row that all lanes share.
const COUNTS_EVERY: i64 = 9;
/// A transaction whose number is a multiple of this has a row that takes several pages.
const LARGE_EVERY: i64 = 11;
const LARGE_BYTES: usize = 20_000;

/// The file of acknowledgements of the lanes. Each acknowledgement has the lane, and the transaction's number
/// in the lane.
pub(crate) type LaneAcks = duralite_testkit::Acks<2>;

/// Makes the tables.
pub(crate) fn create(conn: &Connection) -> Result<()> {
    let mut text = String::from(
        "BEGIN IMMEDIATE;
         CREATE TABLE heads(lane INTEGER PRIMARY KEY, total INTEGER NOT NULL, counted INTEGER NOT NULL, pad BLOB);
         CREATE TABLE counted(only INTEGER PRIMARY KEY, total INTEGER NOT NULL);
         INSERT INTO counted VALUES(0, 0);
         CREATE TABLE audits(only INTEGER PRIMARY KEY, total INTEGER NOT NULL);
         INSERT INTO audits VALUES(0, 0);",
    );
    for lane in 0..LANES {
        text += &format!(
            "CREATE TABLE lane{lane}(m INTEGER PRIMARY KEY, worker INTEGER NOT NULL, seen INTEGER, payload BLOB);
             INSERT INTO heads SELECT {lane}, 0, 0, zeroblob(page_size * 3 / 5) FROM pragma_page_size;"
        );
    }
    conn.execute_batch(&(text + "COMMIT;")).context("cannot make the tables of the lanes")
}

/// Returns how many transactions the lane has.
pub(crate) fn total(conn: &Connection, lane: i64) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT total FROM heads WHERE lane = ?1")?.query_row([lane], |row| row.get(0))
}

/// Returns the other lane that transaction `m` of a lane reads; `None` if it reads none.
fn looked_at(lane: i64, m: i64) -> Option<i64> {
    (m % LOOKS_EVERY == 0).then(|| (lane + 1 + m / LOOKS_EVERY) % LANES)
}

fn row_payload(m: i64, lane: i64, worker: u64) -> Vec<u8> {
    let length = if m % LARGE_EVERY == 0 { LARGE_BYTES } else { 60 + (m % 90).unsigned_abs() as usize };
    payload(m * LANES + lane, worker.cast_signed(), length)
}

/// Makes the changes of transaction `m` of a lane. The caller has begun the transaction, and commits it.
pub(crate) fn change(conn: &Connection, lane: i64, m: i64, worker: u64) -> rusqlite::Result<()> {
    let seen = looked_at(lane, m).map(|other| total(conn, other)).transpose()?;
    conn.prepare_cached(&format!("INSERT INTO lane{lane} VALUES(?1, ?2, ?3, ?4)"))?.execute(params![
        m,
        worker.cast_signed(),
        seen,
        row_payload(m, lane, worker)
    ])?;
    conn.prepare_cached(&format!("DELETE FROM lane{lane} WHERE m = ?1"))?.execute([m - WINDOW])?;
    let counts = i64::from(m % COUNTS_EVERY == 0);
    if counts > 0 {
        conn.prepare_cached("UPDATE counted SET total = total + 1")?.execute([])?;
    }
    conn.prepare_cached("UPDATE heads SET total = ?1, counted = counted + ?2 WHERE lane = ?3")?
        .execute([m, counts, lane])?;
    Ok(())
}

/// The acknowledgements read so far.
pub(crate) struct Acknowledged {
    file: LaneAcks,
    newest: [i64; LANES as usize],
}

impl Acknowledged {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = LaneAcks::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, newest: [0; LANES as usize] })
    }

    /// Reads the new acknowledgements.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        for [lane, m] in self.file.refresh()? {
            let newest = usize::try_from(lane).ok().and_then(|lane| self.newest.get_mut(lane));
            let newest = newest.with_context(|| format!("there is no lane {lane}"))?;
            *newest = m.max(*newest);
        }
        Ok(())
    }

    /// Checks all lanes. The caller has first read the acknowledgements, and then begun the transaction on
    /// `conn`.
    pub(crate) fn verify(&self, conn: &Connection) -> Result<()> {
        let mut statement = conn.prepare_cached("SELECT total, counted FROM heads ORDER BY lane")?;
        let heads = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let heads = heads.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        ensure!(heads.len() == self.newest.len(), "there are {} lanes", heads.len());
        for (lane, ((total, counted), newest)) in heads.iter().zip(self.newest).enumerate() {
            ensure!(
                *total >= newest,
                "lost: lane {lane} has {total} transactions, and {newest} was acknowledged"
            );
            ensure!(*counted == total / COUNTS_EVERY, "lane {lane} has counted {counted} of {total}");
        }
        let counted: i64 = conn.query_row("SELECT total FROM counted", [], |row| row.get(0))?;
        let sum: i64 = heads.iter().map(|(_, counted)| counted).sum();
        ensure!(counted == sum, "all lanes have counted {sum}, and {counted} are counted");
        (0..LANES).zip(&heads).try_for_each(|(lane, (total, _))| verify_lane(conn, lane, *total, &heads))
    }
}

fn verify_lane(conn: &Connection, lane: i64, total: i64, heads: &[(i64, i64)]) -> Result<()> {
    let mut statement =
        conn.prepare_cached(&format!("SELECT m, worker, seen, payload FROM lane{lane} ORDER BY m"))?;
    let mut rows = statement.query([])?;
    for m in (total - WINDOW + 1).max(1)..=total {
        let row = rows.next()?.with_context(|| format!("row {m} of {total} of lane {lane} is missing"))?;
        let (found, worker) = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned());
        ensure!(found == m, "row {m} of {total} of lane {lane} is missing: the next is {found}");
        let right = row.get_ref(3)?.as_blob()? == row_payload(m, lane, worker);
        ensure!(right, "row {m} of {total} of lane {lane} has a wrong payload");
        let other = looked_at(lane, m).and_then(|other| heads.get(usize::try_from(other).ok()?));
        let seen: Option<i64> = row.get(2)?;
        ensure!(
            seen.unwrap_or(0) <= other.map_or(0, |(total, _)| *total),
            "row {m} of {total} of lane {lane} has seen {seen:?} transactions of another one, of {other:?}"
        );
    }
    ensure!(rows.next()?.is_none(), "lane {lane} has more rows than {total} transactions leave");
    Ok(())
}
