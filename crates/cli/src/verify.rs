//! `duralite verify`: checks whether a log would recover.

use std::cell::RefCell;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use duralite_cli::output::{print_json, print_text};
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::engine::walk::{WalkSummary, WalkedTransaction};
use duralite_wal::placement::{self, Looked};
use duralite_wal::{ErrorKind, LogError};
use serde_json::{Value, json};

use duralite_cli::locate;
use duralite_cli::progress::{self, HowFar};
use duralite_cli::target::Target;

pub(crate) fn run(target: &Target, frames: bool) -> Result<ExitCode> {
    let path = locate::log_file(target)?;
    let log = placement::describe(&path)?;
    let database = DatabaseAt::new(if path == target.path { &log.database } else { &target.path });
    let (mut transactions, mut text) = (Vec::new(), String::new());
    let walked = AtomicU64::new(0);
    let how_far = || HowFar::counted(walked.load(Ordering::Relaxed), "transactions");
    let found = RefCell::new((&mut transactions, &mut text));
    // The command prints nothing until it has read the whole log. If other processes change the log while the command
    // reads it, the command has to read it again from its beginning.
    let result = progress::with("verifying", how_far, || {
        let mut begin = || {
            let (transactions, text) = &mut *found.borrow_mut();
            transactions.clear();
            text.clear();
            walked.store(0, Ordering::Relaxed);
        };
        placement::look_through(&path, &database, &mut begin, &mut |transaction| {
            walked.fetch_add(1, Ordering::Relaxed);
            let (transactions, text) = &mut *found.borrow_mut();
            if target.json {
                transactions.push(as_json(transaction, frames));
            } else {
                text.push_str(&as_text(transaction, frames));
            }
        })
    });
    print_text(&text)?;
    let in_use = match &result {
        Ok(looked) => looked.in_use,
        // The command cannot judge a log while other processes change it.
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}"),
        Err(_) => false,
    };
    let verdict = verdict(&result, &target.path);
    let sound = result.as_ref().is_ok_and(|looked| looked.found.mismatch.is_none());
    if target.json {
        print_json(&json!({
            "log": path.display().to_string(),
            "engine": log.engine.name,
            "log_id": log.id.to_string(),
            "database": log.database.display().to_string(),
            "transactions": transactions,
            "in_use": in_use,
            "recovers": sound,
            "verdict": verdict,
        }))?;
    } else {
        print_text(&format!("{verdict}\n"))?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(result: &Result<Looked<WalkSummary>, LogError>, database: &Path) -> String {
    match result {
        Ok(Looked { found, .. }) if found.mismatch.is_some() => format!(
            "would not recover whole: pages up to frame {} do not match SQLite's checksum",
            found.mismatch.unwrap_or_default()
        ),
        Ok(Looked { found, in_use }) => format!(
            "would recover: {} transactions, {} frames{}{}",
            found.transactions,
            found.frames,
            if found.retired { "; retired, because all of them are in the database file" } else { "" },
            if *in_use { "; programs have the log open, and this is what it held at one moment" } else { "" },
        ),
        Err(error) if error.kind() == ErrorKind::Corrupt => format!(
            "would not recover: {error}; `duralite salvage {} OUT` saves the transactions before the damage \
             in a new database, and the whole transactions after it in a directory",
            database.display()
        ),
        Err(error) => format!("would not recover: {error}"),
    }
}

fn as_text(transaction: &WalkedTransaction, frames: bool) -> String {
    let bytes: u64 = transaction.records.iter().map(|record| u64::from(record.record_bytes)).sum();
    // An offset of 0 means that the offset is not known, because other processes use the log.
    let at = |offset| if offset == 0 { String::new() } else { format!(" at {offset}") };
    let mut text = format!(
        "transaction {}{}: frames {}..={}, {} pages in the database, {} bytes in {} records, {}\n",
        transaction.sequence,
        at(transaction.offset),
        transaction.first_frame,
        transaction.last_frame,
        transaction.db_pages,
        bytes,
        transaction.records.len(),
        transaction.order,
    );
    for record in transaction.records.iter().filter(|_| frames) {
        text.push_str(&format!(
            "  frame {}{}: page {}, {} bytes, {} ranges{}\n",
            record.frame,
            at(record.offset),
            record.page_number,
            record.record_bytes,
            record.ranges,
            if record.whole { ", whole page" } else { "" },
        ));
    }
    text
}

fn as_json(transaction: &WalkedTransaction, frames: bool) -> Value {
    let records = transaction.records.iter().filter(|_| frames).map(|record| {
        json!({
            "frame": record.frame,
            "offset": record.offset,
            "page": record.page_number,
            "bytes": record.record_bytes,
            "ranges": record.ranges,
            "whole": record.whole,
        })
    });
    json!({
        "transaction": transaction.sequence,
        "offset": transaction.offset,
        "first_frame": transaction.first_frame,
        "last_frame": transaction.last_frame,
        "db_pages": transaction.db_pages,
        "order": transaction.order,
        "records": transaction.records.len(),
        "frames": records.collect::<Vec<_>>(),
    })
}
