//! A transaction as its writer sees it, and what a kind of transactions has to say.

use std::time::Duration;

use fastrand::Rng;

use crate::writers::client::{Client, Done};

/// How much a transaction adds to the answer of each query of [`Workload::sums`].
pub type Effects = [i64; 4];

/// A hundred bytes, and three thousand: a row with them has a leaf of its own.
pub(super) const SHORT: &str = "substr(hex(zeroblob(50)),1,100)";
pub(super) const LONG: &str = "substr(hex(zeroblob(1500)),1,3000)";

/// One attempt at a transaction of one writer.
pub struct Turn<'a> {
    pub client: &'a mut dyn Client,
    /// The same in each attempt at a transaction.
    pub random: Rng,
    /// The number of this transaction.
    pub number: u64,
    /// Which writer this is, from 0.
    pub writer: i64,
    /// How long the transaction is held open.
    pub hold: Duration,
}

impl Turn<'_> {
    /// Updates or inserts rows; there have to be some.
    pub(super) fn write(&mut self, sql: &str, values: &[i64]) -> Done<()> {
        if self.client.run(sql, values)? == 0 {
            return Err(anyhow::anyhow!("{sql} {values:?} found no row").into());
        }
        Ok(())
    }

    /// A number that has to be there.
    pub(super) fn read(&mut self, sql: &str, values: &[i64]) -> Done<i64> {
        let found = self.client.ask(sql, values)?;
        found.ok_or_else(|| anyhow::anyhow!("{sql} {values:?} found no row").into())
    }

    /// Holds the transaction open, as a program does that computes, or asks a server.
    pub(super) fn think(&self) {
        if !self.hold.is_zero() {
            std::thread::sleep(self.hold);
        }
    }
}

/// Transactions, and what has to be true after them.
pub trait Workload {
    /// Creates the tables.
    fn tables(&self) -> String;
    /// Fills them for this many writers, in one transaction; the answers of `sums` afterwards.
    fn fill(&self, client: &mut dyn Client, writers: i64) -> Done<Effects>;
    /// What is between BEGIN and COMMIT.
    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects>;
    /// Queries for sums and counts over the tables. Each answer is what [`Workload::fill`] said, and what each
    /// commit has added since. A query for something that has to stay 0 has no effects.
    fn sums(&self) -> &'static [&'static str];
}
