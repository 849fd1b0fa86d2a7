//! `duralite store backup` and `restore`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use duralite_cli::output::{print_json, print_text};
use duralite_store::{RestoreTo, Store};
use serde_json::json;

use super::place::Place;
use duralite_cli::progress;

pub(super) fn backup(place: &Place, to: &Path) -> Result<ExitCode> {
    let store = place.open()?;
    let last = progress::with("copying", String::new, || store.backup(to))?;
    if place.json {
        print_json(&json!({ "outcome": "backed up", "last": last }))?;
    } else {
        print_text(&format!("{} has everything up to log object {last}\n", to.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn restore(from: &Path, place: &Place, to: RestoreTo, archive: Option<&Path>) -> Result<ExitCode> {
    let restored = progress::with("restoring", String::new, || {
        Store::restore(from, archive, &place.dir, to, place.options())
    })?;
    if place.json {
        let (last, taken_back) = (restored.last, restored.taken_back);
        print_json(&json!({ "outcome": "restored", "last": last, "taken_back": taken_back }))?;
    } else {
        print_text(&format!(
            "{} is as after log object {}; {} transactions had not committed by then\n",
            place.dir.display(),
            restored.last,
            restored.taken_back
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
