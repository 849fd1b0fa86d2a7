//! TPC-B: a transaction changes an account, a teller and a branch, and inserts a row into the history.

use anyhow::{Result, ensure};

use crate::kv::{Db, Done, Loader, Outcome, Schema, Session, Tx, run};
use crate::row::{field, key, present, row, set};
use crate::workload::{Thread, Workload};

const BRANCHES: usize = 0;
const TELLERS: usize = 1;
const ACCOUNTS: usize = 2;
const HISTORY: usize = 3;
const TELLERS_OF_A_BRANCH: u32 = 10;

/// TPC-B, with fewer accounts per branch than specified. The rows have the specified sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TpcB {
    pub(crate) branches: u32,
    pub(crate) accounts_of_a_branch: u32,
}

impl TpcB {
    fn transfer(
        tx: &mut dyn Tx,
        [branch, teller, account]: [u32; 3],
        delta: i64,
        history: &[u8],
    ) -> Done<()> {
        for (table, id) in [(ACCOUNTS, account), (TELLERS, teller), (BRANCHES, branch)] {
            let mut found = present(tx.get_for_update(table, &key(&[id]))?, "a row of a bank")?;
            let balance = field(&found, 0)? + delta;
            set(&mut found, 0, balance);
            tx.put(table, &key(&[id]), &found)?;
        }
        let ids = [delta, i64::from(branch), i64::from(teller), i64::from(account)];
        tx.put(HISTORY, history, &row(50, &ids))
    }
}

/// Returns the sum of the first field of all rows of a table.
fn sum(session: &mut dyn Session, table: usize) -> Result<i64> {
    let mut sum = 0;
    run(session, false, &mut |tx| {
        sum = 0;
        tx.scan(table, &[], &[0xff; 17], false, &mut |_, row| {
            sum += field(row, 0).unwrap_or_default();
            true
        })
    })?;
    Ok(sum)
}

impl Workload for TpcB {
    fn name(&self) -> &'static str {
        "TPC-B"
    }

    fn schema(&self) -> Schema {
        &["branches", "tellers", "accounts", "history"]
    }

    fn load(&self, db: &dyn Db) -> Result<()> {
        let mut loader = Loader::new(db)?;
        let counts = [
            (BRANCHES, self.branches),
            (TELLERS, self.branches * TELLERS_OF_A_BRANCH),
            (ACCOUNTS, self.branches * self.accounts_of_a_branch),
        ];
        for (table, count) in counts {
            for id in 0..count {
                loader.put(table, key(&[id]), row(100, &[0]))?;
            }
        }
        loader.finish()
    }

    fn step(&self, session: &mut dyn Session, thread: &mut Thread) -> Result<(usize, Outcome, u32)> {
        let rng = &mut thread.rng;
        let teller = rng.u32(0..self.branches * TELLERS_OF_A_BRANCH);
        let branch = teller / TELLERS_OF_A_BRANCH;
        // Of 100 accounts, 85 belong to the teller's branch.
        let of = if rng.u8(0..100) < 85 { branch } else { rng.u32(0..self.branches) };
        let account = of * self.accounts_of_a_branch + rng.u32(0..self.accounts_of_a_branch);
        let delta = rng.i64(-999_999..=999_999);
        thread.serial += 1;
        let mut history = key(&[thread.number as u32]);
        history.extend_from_slice(&thread.serial.to_be_bytes());
        let (outcome, retries) =
            run(session, true, &mut |tx| Self::transfer(tx, [branch, teller, account], delta, &history))?;
        Ok((0, outcome, retries))
    }

    fn check(&self, session: &mut dyn Session) -> Result<()> {
        let sums = [BRANCHES, TELLERS, ACCOUNTS, HISTORY].map(|table| sum(session, table));
        let [branches, tellers, accounts, history] = sums;
        let history = history?;
        for (what, sum) in [("branches", branches?), ("tellers", tellers?), ("accounts", accounts?)] {
            ensure!(sum == history, "{what} have {sum}, and the history says {history}");
        }
        Ok(())
    }
}
