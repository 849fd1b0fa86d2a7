//! The interface through which a workload runs a transaction, and the trait that each workload implements.

use std::time::Duration;

use fastrand::Rng;

use crate::writers::client::{Client, Done};

/// The amount that a transaction adds to the answer of each query in [`Workload::sums`].
pub type Effects = [i64; 4];

/// An SQL expression for a hundred bytes. The next constant is one for three thousand bytes. A row with that
/// many bytes fills a leaf page.
pub(super) const SHORT: &str = "substr(hex(zeroblob(50)),1,100)";
pub(super) const LONG: &str = "substr(hex(zeroblob(1500)),1,3000)";

/// One attempt at a transaction of one writer.
pub struct Turn<'a> {
    pub client: &'a mut dyn Client,
    /// The source of random numbers, which are the same in each attempt at a transaction.
    pub random: Rng,
    /// The number of this transaction.
    pub number: u64,
    /// The number of this writer, from 0.
    pub writer: i64,
    /// The time for which the transaction is held open.
    pub hold: Duration,
}

impl Turn<'_> {
    /// Updates or inserts rows. Fails if the statement changes no row.
    pub(super) fn write(&mut self, sql: &str, values: &[i64]) -> Done<()> {
        if self.client.run(sql, values)? == 0 {
            return Err(anyhow::anyhow!("{sql} {values:?} found no row").into());
        }
        Ok(())
    }

    /// Returns the number that a query returns. Fails if there is none.
    pub(super) fn read(&mut self, sql: &str, values: &[i64]) -> Done<i64> {
        let found = self.client.ask(sql, values)?;
        found.ok_or_else(|| anyhow::anyhow!("{sql} {values:?} found no row").into())
    }

    /// Holds the transaction open, like a program that computes or waits for a server.
    pub(super) fn think(&self) {
        if !self.hold.is_zero() {
            std::thread::sleep(self.hold);
        }
    }
}

/// A kind of transaction, and the conditions that must hold after any number of them.
pub trait Workload {
    /// Returns the statements that create the tables.
    fn tables(&self) -> String;
    /// Fills the tables for this many writers, in one transaction. Then returns the answers of the queries
    /// in `sums`.
    fn fill(&self, client: &mut dyn Client, writers: i64) -> Done<Effects>;
    /// Does the work between BEGIN and COMMIT.
    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects>;
    /// Returns queries for sums and counts over the tables. The answer of each must be the value that
    /// [`Workload::fill`] returned, plus the amounts that all commits have added. If an answer must stay 0,
    /// no commit adds to it.
    fn sums(&self) -> &'static [&'static str];
}
