//! YCSB: one table, and mixes of reads, changes, insertions and short scans. There are also full scans, alone and
//! beside another mix.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::kv::{Db, Loader, Outcome, Schema, Session, Tx, run, view};
use crate::workload::{Thread, Workload};

/// The mix of a thread's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mix {
    /// Half reads, and half changes of a row.
    A,
    /// 95% reads; the rest are changes of a row.
    B,
    /// Reads only.
    C,
    /// 95% reads of the newest rows; the rest are insertions.
    D,
    /// 95% scans of up to a hundred rows; the rest are insertions.
    E,
    /// Half reads, and half reads that are followed by a change of the same row.
    F,
    /// Each transaction reads the whole table.
    Scan,
    /// Like B, while another thread reads the whole table again and again.
    BesideScan,
}

/// A workload with one mix, on a table of this many rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ycsb {
    pub(crate) mix: Mix,
    pub(crate) rows: u64,
    pub(crate) row_bytes: usize,
    /// The distribution from which rows are drawn. `None` means the uniform distribution.
    pub(crate) zipf: Option<Zipf>,
    /// The distribution of reads of new rows: how many rows before the newest one the read row is.
    latest: Zipf,
    /// A number that distinguishes the rows inserted in this run from those of other runs.
    run: u64,
}

const THETA: f64 = 0.99;
const MOST_SCANNED: u64 = 100;
/// The first key for inserted rows. It is larger than the keys of all loaded rows.
const INSERTED: u64 = 1 << 62;

/// A Zipf distribution with exponent 0.99 over ranks that begin with 0. Ranks are drawn by the method of Gray and
/// others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    count: u64,
    all: f64,
    eta: f64,
}

/// Returns the sum of the first `count` terms of the distribution. Computes the tail as an integral.
fn zeta(count: u64) -> f64 {
    let near = count.min(10_000);
    let sum: f64 = (1..=near).map(|rank| (rank as f64).powf(-THETA)).sum();
    let rest = (count as f64).powf(1.0 - THETA) - (near as f64).powf(1.0 - THETA);
    sum + rest / (1.0 - THETA)
}

impl Zipf {
    pub(crate) fn new(count: u64) -> Self {
        let all = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Self { count, all, eta }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> u64 {
        let part = rng.f64();
        let drawn = part * self.all;
        if drawn < 1.0 {
            return 0;
        }
        if drawn < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * part - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(self.count - 1)
    }
}

/// Spreads the ranks over the table, so that rows that are often drawn are not neighbours.
fn scattered(rank: u64, count: u64) -> u64 {
    let mixed = (rank ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) % count
}

impl Ycsb {
    pub(crate) fn new(mix: Mix, rows: u64, row_bytes: usize, is_zipf: bool) -> Self {
        let zipf = is_zipf.then(|| Zipf::new(rows));
        Self { mix, rows, row_bytes, zipf, latest: Zipf::new(1000), run: fastrand::u64(0..1 << 12) }
    }

    fn draw(&self, thread: &mut Thread) -> u64 {
        match self.zipf {
            Some(zipf) => scattered(zipf.draw(&mut thread.rng), self.rows),
            None => thread.rng.u64(0..self.rows),
        }
    }

    fn row(&self, serial: u64) -> Vec<u8> {
        let mut row: Vec<u8> = (0..self.row_bytes as u64).map(|at| (at ^ serial) as u8).collect();
        row[..8].copy_from_slice(&serial.to_le_bytes());
        row
    }

    fn read(&self, session: &mut dyn Session, key: u64) -> Result<(Outcome, u32)> {
        run(session, false, &mut |tx| tx.get(0, &key.to_be_bytes()).map(drop))
    }

    fn write(&self, session: &mut dyn Session, key: u64, reads: bool, serial: u64) -> Result<(Outcome, u32)> {
        let row = self.row(serial);
        run(session, true, &mut |tx| {
            if reads {
                tx.get_for_update(0, &key.to_be_bytes())?;
            }
            tx.put(0, &key.to_be_bytes(), &row)
        })
    }

    /// Reads up to `most` rows, from the key `from` on. Returns how many there were, and how often the scan was
    /// retried.
    fn scan(&self, session: &mut dyn Session, from: u64, most: u64) -> Result<(u64, u32)> {
        let mut rows = 0;
        let mut work = |tx: &mut dyn Tx| {
            rows = 0;
            tx.scan(0, &from.to_be_bytes(), &[0xff; 9], false, &mut |_, _| {
                rows += 1;
                rows < most
            })
        };
        // A long scan reads a snapshot, as a program would do.
        let is_long = most > MOST_SCANNED;
        let (_, retries) = if is_long { view(session, &mut work)? } else { run(session, false, &mut work)? };
        Ok((rows, retries))
    }

    /// Returns the key of the row that the thread has inserted with this value of `Thread::serial`.
    fn inserted(&self, thread: &Thread, serial: u64) -> u64 {
        INSERTED + (self.run << 48) + ((thread.number & 0xff) << 40) + (serial & 0xff_ffff_ffff)
    }

    /// Returns the key of a row that the thread inserted recently.
    fn latest(&self, thread: &mut Thread) -> u64 {
        let back = self.latest.draw(&mut thread.rng);
        self.inserted(thread, thread.serial.saturating_sub(back))
    }
}

impl Workload for Ycsb {
    fn name(&self) -> &'static str {
        "YCSB"
    }

    fn schema(&self) -> Schema {
        &["rows"]
    }

    fn load(&self, db: &dyn Db) -> Result<()> {
        let mut rows = (0..self.rows).map(|key| (key.to_be_bytes().to_vec(), self.row(key)));
        if db.load_sorted(0, &mut rows)? {
            return Ok(());
        }
        let mut loader = Loader::new(db)?;
        rows.try_for_each(|(key, row)| loader.put(0, key, row))?;
        loader.finish()
    }

    fn step(&self, session: &mut dyn Session, thread: &mut Thread) -> Result<(usize, Outcome, u32)> {
        let is_first = thread.rng.u8(0..100) < if matches!(self.mix, Mix::A | Mix::F) { 50 } else { 95 };
        let (outcome, retries) = match self.mix {
            Mix::Scan => {
                let (rows, retries) = self.scan(session, 0, u64::MAX)?;
                ensure!(rows >= self.rows, "{rows} rows scanned of {}", self.rows);
                (Outcome::Committed, retries)
            }
            Mix::BesideScan if thread.number == 0 => {
                let (rows, retries) = self.scan(session, 0, u64::MAX)?;
                ensure!(rows >= self.rows, "{rows} rows scanned of {}", self.rows);
                return Ok((1, Outcome::RolledBack, retries));
            }
            Mix::C => self.read(session, self.draw(thread))?,
            Mix::D if is_first => self.read(session, self.latest(thread))?,
            Mix::E if is_first => {
                let (from, most) = (self.draw(thread), thread.rng.u64(1..=MOST_SCANNED));
                (Outcome::Committed, self.scan(session, from, most)?.1)
            }
            Mix::D | Mix::E => {
                thread.serial += 1;
                let key = self.inserted(thread, thread.serial);
                self.write(session, key, false, thread.serial)?
            }
            _ if is_first => self.read(session, self.draw(thread))?,
            mix => {
                thread.serial += 1;
                self.write(session, self.draw(thread), mix == Mix::F, thread.serial)?
            }
        };
        Ok((0, outcome, retries))
    }

    fn check(&self, session: &mut dyn Session) -> Result<()> {
        let (rows, _) = self.scan(session, 0, u64::MAX)?;
        ensure!(rows >= self.rows, "{rows} rows of {}", self.rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_rows_are_drawn_most_of_the_time() {
        let mut rng = fastrand::Rng::with_seed(1);
        let count = 100_000;
        let (zipf, mut drawn) = (Zipf::new(count), vec![0_u32; count as usize]);
        for _ in 0..100_000 {
            drawn[zipf.draw(&mut rng) as usize] += 1;
        }
        // By the distribution, one draw in 12.7 is the first rank. 41 draws in 100 are among the first thousandth of
        // the ranks.
        let first = f64::from(drawn[0]) / 1e5;
        assert!((0.07..0.09).contains(&first), "{first}");
        let head = f64::from(drawn[..100].iter().sum::<u32>()) / 1e5;
        assert!((0.36..0.48).contains(&head), "{head}");
        assert!((0..count).map(|rank| scattered(rank, count)).all(|key| key < count));
    }
}
