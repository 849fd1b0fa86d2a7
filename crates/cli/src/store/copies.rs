//! `duralite store backup`, `restore` and `salvage`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use duralite_cli::output::{print_json, print_text};
use duralite_store::{RestoreTo, Store};
use serde_json::json;

use super::place::Place;
use duralite_cli::progress::{self, HowFar};

pub(super) fn backup(place: &Place, to: &Path) -> Result<ExitCode> {
    let store = place.open()?;
    let mebibytes = |dir: &Path| dir.join("pages").metadata().map_or(0, |pages| pages.len() >> 20);
    let how_far = || HowFar::of(mebibytes(to), mebibytes(&place.dir), "MiB of pages");
    let last = progress::with("copying", how_far, || store.backup(to))?;
    if place.json {
        print_json(&json!({ "outcome": "backed up", "last": last }))?;
    } else {
        print_text(&format!("{} has everything up to log object {last}\n", to.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn restore(from: &Path, place: &Place, to: RestoreTo, archive: Option<&Path>) -> Result<ExitCode> {
    let restored = progress::with("restoring", HowFar::default, || {
        Store::restore(from, archive, &place.dir, to, place.options())
    })?;
    if place.json {
        let (last, undone) = (restored.last, restored.undone);
        print_json(&json!({ "outcome": "restored", "last": last, "taken_back": undone }))?;
    } else {
        print_text(&format!(
            "{} has the state after log object {}; {} transactions had not committed by then and were rolled \
             back\n",
            place.dir.display(),
            restored.last,
            restored.undone
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn salvage(place: &Place, to: &Path) -> Result<ExitCode> {
    let salvaged =
        progress::with("salvaging", HowFar::default, || Store::salvage(&place.dir, to, place.options()))?;
    let (last, undone) = (salvaged.last, salvaged.undone);
    if place.json {
        print_json(&json!({
            "outcome": "salvaged",
            "last": last,
            "transactions": salvaged.transactions,
            "taken_back": undone,
            "lost_commits": salvaged.lost_commits,
            "whole_again": salvaged.whole_again,
        }))?;
    } else {
        print_text(&format!(
            "{} has the state after log object {last}: {} transactions of the log are there, {undone} \
             had not committed by then\n\
             lost: log objects {} and later; {} commits of these are whole, from log object {} on\n",
            to.display(),
            salvaged.transactions,
            last + 1,
            salvaged.lost_commits,
            salvaged.whole_again
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
