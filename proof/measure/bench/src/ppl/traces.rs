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

const COLUMNS: [&str; 13] = [
    "workload",
    "",
    "transactions",
    "batches",
    "statements per batch",
    "joins %",
    "updates %",
    "pages per transaction",
    "different pages",
    "records per transaction",
    "bytes per record",
    "bytes logged per transaction",
    "database MB",
];

/// Makes table 3. Each workload has two rows: its own counts, and below them the paper's.
///
/// # Errors
/// An error of SQLite.
pub fn table3(dir: &Path, _: Effort) -> Result<Table> {
    let mut table =
        Table::new("ppl_table3", "SQLite/PPL table 3: the workloads, and the paper's traces", &COLUMNS);
    for prepared in Prepared::all(dir)? {
        let census = Census::of(dir, &prepared.workload)?;
        let logged = Logged::of(dir, &prepared)?;
        let transactions = census.transactions as f64;
        let of_log = |figure: &dyn Fn(Logged) -> f64| {
            logged.map_or_else(|| "-".to_owned(), |logged| number(figure(logged)))
        };
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
            of_log(&|logged| logged.records / transactions),
            of_log(&|logged| logged.bytes / logged.records),
            of_log(&|logged| logged.bytes / transactions),
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
            number(paper.records_per_transaction),
            number(paper.record_bytes),
            number(paper.record_bytes * paper.records_per_transaction),
            format!("{:.2}", paper.megabytes),
        ]);
    }
    table.note = format!(
        "The traces were never published; these workloads are drawn from seed {SEED}, with tables, indexes \
         and statements as the paper describes each application. A read that is in no batch is a transaction \
         of its own. Pages are those that SQLite in WAL mode hands to its log, over all transactions: in the \
         paper that product agrees with table 4. The different pages among them have to be written home at \
         least once before the database is a plain file again, whichever engine keeps the log. Records are \
         those of `ppl`, and of SQLite/PPL. `ppl` stores one record for each page of a transaction, with all that \
         the transaction changed in it; SQLite/PPL stores one whenever a page changes. The bytes of a record \
         are those of its content, without its header of 16 bytes."
    );
    Ok(table)
}

/// The log content that `ppl` stores for a whole workload.
#[derive(Clone, Copy)]
struct Logged {
    records: f64,
    bytes: f64,
}

impl Logged {
    /// Runs the workload and reads what `ppl` has stored. Returns `None` if this build lacks `ppl`.
    fn of(dir: &Path, prepared: &Prepared) -> Result<Option<Self>> {
        let Some(config) = Config::ppl(Latency::None) else { return Ok(None) };
        let database = Database::new(dir, &prepared.template, &config)?;
        let conn = database.open()?;
        let stored = || -> Result<Self> {
            let status = status(&conn)?;
            let figure = |name: &str| -> Result<f64> {
                let text = status.get(name).with_context(|| format!("PRAGMA duralite shows no {name}"))?;
                Ok(text.parse()?)
            };
            Ok(Self { records: figure("records")?, bytes: figure("record_bytes")? })
        };
        let before = stored()?;
        run(&conn, &prepared.workload)?;
        let after = stored()?;
        Ok(Some(Self { records: after.records - before.records, bytes: after.bytes - before.bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ppl::generate::Workload;

    /// Returns the relative deviation of `value` from the paper's value.
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
