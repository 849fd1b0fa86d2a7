//! `duralite info`: shows what a database or log is. The facts that users look for most come first.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use duralite_cli::output::{print_json, print_text};
use duralite_format::guard::DatabaseHeader;
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::placement::{self, Looked, Reading};
use duralite_wal::{ErrorKind, LogError};
use serde_json::{Map, Value, json};

use crate::holders;
use duralite_cli::locate::{self, Place};
use duralite_cli::target::Target;

/// The metrics of a log that describe its contents.
const SHOWN: [&str; 16] = [
    "layout",
    "generation",
    "retired",
    "log_transactions",
    "log_frames",
    "log_bytes",
    "log_limit",
    "log_usual_bytes",
    "block_bytes",
    "logged_pages",
    "sectors",
    "sectors_limit",
    "pool_pieces",
    "pool_pieces_limit",
    "slots_used",
    "slots",
];

/// Names and values, in display order.
type Facts = Vec<(&'static str, Value)>;

pub(crate) fn run(target: &Target) -> Result<ExitCode> {
    let mut facts = Facts::new();
    if locate::is_log(&target.path) {
        let database = placement::describe(&target.path)?.database;
        add_log(&mut facts, &target.path, &database)?;
    } else {
        add_database(&mut facts, target)?;
    }
    if target.json {
        let object: Map<String, Value> =
            facts.into_iter().map(|(name, value)| (name.into(), value)).collect();
        print_json(&Value::Object(object))?;
    } else {
        let line = |(name, value): &(&str, Value)| match value {
            Value::Array(values) if values.is_empty() => format!("{name:<17} nobody\n"),
            Value::Array(values) => {
                values.iter().map(|value| line(name, &holders::in_words(value))).collect()
            }
            Value::String(text) => line(name, text),
            other => line(name, &other.to_string()),
        };
        print_text(&facts.iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<17} {value}\n")
}

fn add_database(facts: &mut Facts, target: &Target) -> Result<()> {
    let (header, place) = locate::place(target)?;
    facts.push(("state", json!(locate::describe(header))));
    facts.push(("database", json!(target.path.display().to_string())));
    match place {
        Place::Log(log) => add_log(facts, &log, &target.path)?,
        Place::Missing(why) => facts.push(("log", json!(why))),
        Place::NoLog => {}
    }
    if let DatabaseHeader::Plain { page_bytes, .. } | DatabaseHeader::Guarded { page_bytes, .. } = header {
        facts.push(("page_bytes", json!(page_bytes)));
    }
    if let DatabaseHeader::Guarded { log_id, .. } = header {
        facts.push(("log_id", json!(log_id.to_string())));
    }
    Ok(())
}

fn add_log(facts: &mut Facts, path: &Path, database: &Path) -> Result<()> {
    let about = match placement::describe(path) {
        Err(error) if error.is_other_version() => {
            facts.push(("log", json!(path.display().to_string())));
            facts.push(("refused", json!(error.to_string())));
            return Ok(());
        }
        Err(error @ LogError::Format { .. }) => return add_damage(facts, path, database, &error),
        about => about?,
    };
    let looked = placement::look(path, &mut |reading| match reading {
        Reading::Along(mut engine) => {
            engine.refresh()?;
            let metrics = engine.metrics();
            Ok(engine.is_current().then_some(metrics))
        }
        Reading::Unused(path) => Ok(Some(placement::open_log_read_only(path)?.metrics())),
    });
    let (metrics, in_use) = match looked {
        Ok(Looked { found, in_use }) => (found, in_use),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            add_damage(facts, path, database, &error)?;
            (Vec::new(), false)
        }
        Err(error) => return Err(error.into()),
    };
    let holders = if in_use { holders::of(path)? } else { Vec::new() };
    facts.push(("open_in", Value::Array(holders.iter().map(holders::Holder::as_json).collect())));
    facts.push(("engine", json!(about.engine.name)));
    facts.push(("log", json!(path.display().to_string())));
    facts.push(("log_of", json!(about.database.display().to_string())));
    for name in SHOWN {
        if let Some((_, value)) = metrics.iter().find(|(metric, _)| *metric == name) {
            let number = value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number));
            facts.push((name, number));
        }
    }
    Ok(())
}

/// Puts the damage of a log at the top, and adds how many transactions of the log can still be read.
fn add_damage(facts: &mut Facts, log: &Path, database: &Path, error: &LogError) -> Result<()> {
    facts.retain(|(name, _)| *name != "state");
    let state = format!("damaged: `duralite salvage {} OUT` saves what can be read", database.display());
    facts.insert(0, ("state", json!(state)));
    facts.push(("damage", json!(error.to_string())));
    match placement::salvage(log, &DatabaseAt::new(database), &mut |_| Ok(())) {
        Ok(salvaged) => {
            facts.push(("before_damage", json!(salvaged.point.transactions)));
            facts.push(("behind_damage", json!(salvaged.later)));
        }
        Err(error) => facts.push(("before_damage", json!(format!("unknown: {error}")))),
    }
    Ok(())
}
