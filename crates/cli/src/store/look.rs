//! `duralite store info` and `verify`.

use std::process::ExitCode;

use anyhow::{Error, Result};
use duralite_store::{Error as StoreError, Store, Verified};
use serde_json::{Map, Value, json};

use super::place::Place;
use duralite_cli::progress::{self, HowFar};

fn facts<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn info(place: &Place) -> Result<ExitCode> {
    let store = place.open()?;
    let (metrics, tables) = (store.metrics(), store.tables()?);
    place.print(&facts([
        ("store", json!(place.dir.display().to_string())),
        ("tables", if place.json { json!(tables) } else { json!(tables.join(", ")) }),
        ("pages", json!(metrics.pages)),
        ("log", json!(metrics.log)),
        ("newest_object", json!(metrics.newest_object)),
        ("log_free_bytes", json!(metrics.log_free_bytes)),
        ("recovered_objects", json!(metrics.recovered_objects)),
        ("recovered_transactions", json!(metrics.recovered_transactions)),
    ]))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens and verifies the store. The inner result says what the check found: the store's contents, or damage. The outer
/// error is any other failure: then the command does not know whether the store is damaged.
fn look(place: &Place) -> Result<Result<(Verified, u64), StoreError>> {
    let damaged = |error: Error| match error.downcast::<StoreError>() {
        Ok(error @ StoreError::Corrupt { .. }) => Ok(Err(error)),
        Ok(error) => Err(error.into()),
        Err(error) => Err(error),
    };
    // Opening the store reads the log and redoes the log's changes.
    let store: Store = match place.open() {
        Ok(store) => store,
        Err(error) => return damaged(error),
    };
    let how_far = || {
        let metrics = store.metrics();
        let read = metrics.cache_misses + metrics.cache_hits;
        HowFar::of(read.min(metrics.pages), metrics.pages, "pages")
    };
    match progress::with("verifying", how_far, || store.verify()) {
        Ok(verified) => Ok(Ok((verified, store.metrics().recovered_objects))),
        Err(error) => damaged(error.into()),
    }
}

pub(super) fn verify(place: &Place) -> Result<ExitCode> {
    let (mut facts, code) = match look(place)? {
        Ok((verified, objects)) => {
            let found = facts([
                ("verdict", json!("sound")),
                ("tables", json!(verified.tables)),
                ("rows", json!(verified.rows)),
                ("pages", json!(verified.pages)),
                ("free_pages", json!(verified.free_pages)),
                ("log_objects_repeated", json!(objects)),
            ]);
            (found, ExitCode::SUCCESS)
        }
        Err(error) => (facts([("verdict", json!(error.to_string()))]), ExitCode::FAILURE),
    };
    facts.insert("sound".to_owned(), json!(code == ExitCode::SUCCESS));
    place.print(&facts)?;
    Ok(code)
}
