//! `duralite store dump`: writes the rows of a store as lines of text.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use duralite_cli::output::{print_json, print_text};
use duralite_store::{Store, Table};
use serde_json::json;

use super::line;
use super::place::Place;
use duralite_cli::progress::{self, HowFar};

pub(super) fn run(place: &Place, tables: &[String], output: Option<&Path>) -> Result<ExitCode> {
    if place.json && output.is_none() {
        bail!("--json reports on a dump that is written to a file; name the file with --output");
    }
    let store = place.open()?;
    let tables = chosen(&store, tables)?;
    let rows = AtomicU64::new(0);
    let how_far = || HowFar::counted(rows.load(Ordering::Relaxed), "rows");
    let Some(path) = output else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let written = progress::with_output("dumping", how_far, || write(&store, &tables, &mut out, &rows));
        return match written {
            Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
            written => written.map(|()| ExitCode::SUCCESS),
        };
    };
    let file = File::create_new(path).with_context(|| format!("making {}", path.display()))?;
    let mut out = BufWriter::new(&file);
    progress::with("dumping", how_far, || write(&store, &tables, &mut out, &rows))?;
    drop(out);
    file.sync_all().with_context(|| format!("writing {}", path.display()))?;
    let rows = rows.load(Ordering::Relaxed);
    if place.json {
        print_json(&json!({ "outcome": "dumped", "rows": rows, "tables": tables.len() }))?;
    } else {
        print_text(&format!("{rows} rows of {} tables written to {}\n", tables.len(), path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether the error is that the reader of the pipe has closed it, as `head` does when it has enough lines.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Returns the tables that the user named, or all tables.
fn chosen(store: &Store, named: &[String]) -> Result<Vec<Table>> {
    let all = store.tables()?;
    if let Some(missing) = named.iter().find(|name| !all.contains(name)) {
        bail!("there is no table {missing}; there are: {}", all.join(", "));
    }
    let names = if named.is_empty() { &all } else { named };
    names.iter().map(|name| Ok(store.table(name)?)).collect()
}

/// Writes all rows of one snapshot, without a lock.
fn write(store: &Store, tables: &[Table], out: &mut dyn Write, rows: &AtomicU64) -> Result<()> {
    writeln!(out, "{}", line::FIRST)?;
    let snapshot = store.snapshot();
    for table in tables {
        for row in snapshot.scan(table, ..) {
            let (key, value) = row?;
            out.write_all(&line::write(table.name(), &key, &value))?;
            rows.fetch_add(1, Ordering::Relaxed);
        }
    }
    writeln!(out, "{}{}", line::LAST, rows.load(Ordering::Relaxed))?;
    Ok(out.flush()?)
}
