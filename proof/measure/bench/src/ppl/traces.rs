//! Table 3: how close the workloads are to the paper's traces.

use std::path::Path;

use anyhow::{Context, Result};

use super::census::Census;
use super::config::{Config, Latency};
use super::prepared::{Prepared, SEED};
use super::replay::{Database, run};
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::status;

const COLUMNS: [&str; 11] = [
    "workload",
    "",
    "transactions",
    "batches",
    "statements per batch",
    "joins %",
    "updates %",
    "pages per transaction",
    "different pages",
    "bytes logged per transaction",
    "database MB",
];

/// Table 3: for each workload, its own counts above those of the paper.
///
/// # Errors
/// An error of SQLite.
pub fn table3(dir: &Path, _: Effort) -> Result<Table> {
    let mut table =
        Table::new("ppl_table3", "SQLite/PPL table 3: the workloads, and the paper's traces", &COLUMNS);
    for prepared in Prepared::all(dir)? {
        let census = Census::of(dir, &prepared.workload)?;
        let logged = logged_bytes(dir, &prepared)? / census.transactions as f64;
        let paper = prepared.workload.paper;
        table.row([
            prepared.name(),
            "here".to_owned(),
            format!("{} ({} write)", census.transactions, census.writing),
            census.batches.to_string(),
            format!("{:.2}", census.statements_per_batch),
            format!("{:.1}", census.joins),
            format!("{:.1}", census.updates),
            format!("{:.2}", census.pages_per_transaction),
            census.different_pages.to_string(),
            number(logged),
            format!("{:.2}", census.megabytes),
        ]);
        table.row([
            String::new(),
            "paper".to_owned(),
            paper.transactions.to_string(),
            paper.batches.to_string(),
            format!("{:.2}", paper.statements_per_batch),
            format!("{:.1}", paper.joins),
            format!("{:.1}", paper.updates),
            format!("{:.2}", paper.pages_per_transaction),
            "-".to_owned(),
            number(paper.record_bytes * paper.records_per_transaction),
            format!("{:.2}", paper.megabytes),
        ]);
    }
    table.note = format!(
        "The traces were never published; these workloads are drawn from seed {SEED}, with tables, indexes \
         and statements as the paper describes each application. A read that is in no batch is a transaction \
         of its own. Pages are those that SQLite in WAL mode hands to its log, over all transactions: in the \
         paper that product agrees with table 4. The different pages among them have to be written home at \
         least once before the database is a plain file again, whichever engine keeps the log. Bytes logged \
         are, in the paper, the log records of SQLite/PPL (size times number); here they are what `nvwal` \
         stores: differences in bytes, with its own headers. The two ways of logging differ, but the numbers \
         show that the workloads change as much as the paper's."
    );
    Ok(table)
}

/// The bytes that `nvwal` stores in its log for the whole workload.
fn logged_bytes(dir: &Path, prepared: &Prepared) -> Result<f64> {
    const NAME: &str = "stored_bytes";
    let database = Database::new(dir, &prepared.template, &Config::nvwal(Latency::None))?;
    let conn = database.open()?;
    let stored = || -> Result<f64> {
        let status = status(&conn)?;
        Ok(status.get(NAME).with_context(|| format!("PRAGMA duralite shows no {NAME}"))?.parse()?)
    };
    let before = stored()?;
    run(&conn, &prepared.workload)?;
    Ok(stored()? - before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ppl::generate::Workload;

    /// The relative deviation of `value` from the paper's value.
    fn off(value: f64, paper: f64) -> f64 {
        (value / paper - 1.0).abs()
    }

    #[test]
    fn workloads_come_to_the_counts_of_table_3() {
        let dir = tempfile::tempdir().unwrap();
        for app in crate::ppl::apps::ALL {
            let (paper, name) = (app.paper, app.paper.name);
            let census = Census::of(dir.path(), &Workload::new(app, SEED)).unwrap();
            assert_eq!(census.transactions, paper.transactions as usize, "{name}");
            assert_eq!(census.batches, paper.batches as usize, "{name}");
            assert!(
                (census.statements_per_batch - paper.statements_per_batch).abs() < 0.01,
                "{name}: {census:?}"
            );
            assert!((census.joins - paper.joins).abs() < 0.06, "{name}: {census:?}");
            assert!((census.updates - paper.updates).abs() < 0.06, "{name}: {census:?}");
            assert!(
                off(census.pages_per_transaction, paper.pages_per_transaction) < 0.15,
                "{name}: {census:?}"
            );
            assert!(off(census.megabytes, paper.megabytes) < 0.25, "{name}: {census:?}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_workload_and_another_one_another() {
        let app = crate::ppl::apps::ALL[2];
        assert_eq!(Workload::new(app, 7), Workload::new(app, 7));
        assert_ne!(Workload::new(app, 7), Workload::new(app, 8));
    }
}
