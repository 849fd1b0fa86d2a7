//! `duralite verify`: would this log recover?

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use duralite_cli::output::{print_json, print_text};
use duralite_journal::directory;
use duralite_journal::home::DatabaseAt;
use duralite_journal::walk::WalkedTransaction;
use serde_json::{Value, json};

use crate::locate;
use crate::target::Target;
use duralite_cli::progress::{self, HowFar};

pub(crate) fn run(target: &Target, frames: bool) -> Result<ExitCode> {
    let path = locate::log_file(target)?;
    let log = directory::describe(&path)?;
    let database = DatabaseAt::new(if path == target.path { &log.database } else { &target.path });
    let mut transactions = Vec::new();
    let walked = AtomicU64::new(0);
    let how_far = || HowFar::counted(walked.load(Ordering::Relaxed), "transactions");
    let walk = || {
        directory::walk(&path, &database, &mut |transaction| {
            walked.fetch_add(1, Ordering::Relaxed);
            if target.json {
                transactions.push(as_json(transaction, frames));
            } else {
                // A failure to print is reported by the verdict's own print.
                let _ = print_text(&as_text(transaction, frames));
            }
        })
    };
    let result = if target.json {
        progress::with("verifying", how_far, walk)
    } else {
        progress::with_output("verifying", how_far, walk)
    };
    let verdict = match &result {
        Ok(summary) if summary.mismatch.is_none() => format!(
            "would recover: {} transactions, {} frames{}",
            summary.transactions,
            summary.frames,
            if summary.retired { "; retired, all of it is in the database file" } else { "" }
        ),
        Ok(summary) => format!(
            "would not recover whole: pages up to frame {} do not match SQLite's checksum",
            summary.mismatch.unwrap_or_default()
        ),
        Err(error) => format!("would not recover: {error}"),
    };
    let sound = result.as_ref().is_ok_and(|summary| summary.mismatch.is_none());
    if target.json {
        print_json(&json!({
            "log": path.display().to_string(),
            "engine": log.engine.name,
            "log_id": log.id.to_string(),
            "database": log.database.display().to_string(),
            "transactions": transactions,
            "recovers": sound,
            "verdict": verdict,
        }))?;
    } else {
        print_text(&format!("{verdict}\n"))?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(transaction: &WalkedTransaction, frames: bool) -> String {
    let bytes: u64 = transaction.records.iter().map(|record| u64::from(record.record_bytes)).sum();
    let mut text = format!(
        "transaction {} at {}: frames {}..={}, {} pages in the database, {} bytes in {} records, {}\n",
        transaction.sequence,
        transaction.offset,
        transaction.first_frame,
        transaction.last_frame,
        transaction.db_pages,
        bytes,
        transaction.records.len(),
        transaction.order,
    );
    for record in transaction.records.iter().filter(|_| frames) {
        text.push_str(&format!(
            "  frame {} at {}: page {}, {} bytes, {} ranges{}\n",
            record.frame,
            record.offset,
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
