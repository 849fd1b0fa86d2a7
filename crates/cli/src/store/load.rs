//! `duralite store load`: puts the rows of a dump into a store.

use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use duralite_cli::output::{print_json, print_text};
use duralite_store::{Error, Store};
use serde_json::json;

use super::line;
use super::place::Place;
use duralite_cli::progress::{self, HowFar};

/// The largest number of rows, and the largest number of bytes, in one transaction. A store's log can hold far larger
/// transactions.
const ROWS: usize = 1000;
const BYTES: usize = 1 << 20;

type Row = (String, Vec<u8>, Vec<u8>);

pub(super) fn run(place: &Place, input: &Path, replace: bool) -> Result<ExitCode> {
    let (reader, all): (Box<dyn BufRead>, _) = if input == Path::new("-") {
        (Box::new(stdin().lock()), None)
    } else {
        let file = File::open(input).with_context(|| format!("opening {}", input.display()))?;
        // Only a regular file has a known length; a named pipe has none.
        let all = file.metadata().ok().filter(Metadata::is_file).map(|about| about.len());
        (Box::new(BufReader::new(file)), all)
    };
    let read = AtomicU64::new(0);
    let mut lines = Lines { reader, number: 0, read: &read };
    // This check comes before the store is opened, so that a file that is no dump does not create a store.
    if lines.next()?.as_deref() != Some(line::FIRST.as_bytes()) {
        bail!("{} is not a dump: it does not begin with `{}`", input.display(), line::FIRST);
    }
    let store = place.open_or_make()?;
    let loaded = AtomicU64::new(0);
    let how_far = || HowFar {
        part: all.map(|all| (read.load(Ordering::Relaxed), all)),
        ..HowFar::counted(loaded.load(Ordering::Relaxed), "rows")
    };
    let done = progress::with("loading", how_far, || load(&store, &mut lines, replace, &loaded));
    let rows = loaded.load(Ordering::Relaxed);
    done.with_context(|| format!("{rows} rows were loaded before the failure"))?;
    if place.json {
        print_json(&json!({ "outcome": "loaded", "rows": rows }))?;
    } else {
        print_text(&format!("{rows} rows loaded\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads lines and counts them.
struct Lines<'a> {
    reader: Box<dyn BufRead>,
    number: u64,
    /// The number of bytes read.
    read: &'a AtomicU64,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        self.number += 1;
        let bytes = self.reader.read_until(b'\n', &mut line).context("reading the dump")?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        if line.is_empty() {
            return Ok(None);
        }
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            bail!("the dump ends in the middle of line {}", self.number);
        }
        Ok(Some(line))
    }
}

fn load(store: &Store, lines: &mut Lines<'_>, replace: bool, loaded: &AtomicU64) -> Result<()> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    loop {
        let Some(line) = lines.next()? else {
            bail!("the dump is cut off: its last line does not give the number of rows");
        };
        if let Some(count) = line.strip_prefix(line::LAST.as_bytes()) {
            put(store, &mut rows, replace, loaded)?;
            let has = loaded.load(Ordering::Relaxed);
            if String::from_utf8_lossy(count) != has.to_string() {
                bail!(
                    "the last line of the dump says that it has {} rows, but it has {has}",
                    String::from_utf8_lossy(count)
                );
            }
            return Ok(());
        }
        let row = line::read(&line).with_context(|| format!("line {} of the dump", lines.number))?;
        bytes += row.1.len() + row.2.len();
        rows.push(row);
        if rows.len() >= ROWS || bytes >= BYTES {
            put(store, &mut rows, replace, loaded)?;
            bytes = 0;
        }
    }
}

/// Puts the rows into the store in one transaction.
fn put(store: &Store, rows: &mut Vec<Row>, replace: bool, loaded: &AtomicU64) -> Result<()> {
    let mut found = None;
    let done = store.run(|tx| {
        for (table, key, value) in rows.iter() {
            let to = store.table(table)?;
            if replace {
                tx.put(&to, key, value)?;
            } else if let Err(error) = tx.insert(&to, key, value) {
                found = Some((table.clone(), key.clone()));
                return Err(error);
            }
        }
        Ok(())
    });
    if let (Err(Error::Exists), Some((table, key))) = (&done, &found) {
        let key = String::from_utf8_lossy(key);
        bail!("table {table} has a row with the key {key} already; --replace overwrites rows");
    }
    done?;
    loaded.fetch_add(rows.len() as u64, Ordering::Relaxed);
    rows.clear();
    Ok(())
}
