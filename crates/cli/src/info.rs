//! `duralite info`.

use std::process::ExitCode;

use anyhow::Result;
use duralite_cli::output::{print_json, print_text};
use duralite_journal::{directory, offline};
use duralite_logfmt::guard::DatabaseHeader;
use serde_json::{Map, Value, json};

use crate::locate;
use crate::target::Target;

/// The figures of a log that say what is in it.
const SHOWN: [&str; 15] = [
    "layout",
    "generation",
    "retired",
    "log_transactions",
    "log_frames",
    "log_bytes",
    "log_limit",
    "block_bytes",
    "logged_pages",
    "sectors",
    "sectors_limit",
    "pool_pieces",
    "pool_pieces_limit",
    "slots_used",
    "slots",
];

pub(crate) fn run(target: &Target) -> Result<ExitCode> {
    let mut facts = Map::new();
    if !locate::is_log(&target.path) {
        let header = offline::inspect(&target.path)?;
        facts.insert("database".into(), json!(target.path.display().to_string()));
        facts.insert("state".into(), json!(locate::describe(header)));
        match header {
            DatabaseHeader::Plain { page_bytes, .. } => {
                facts.insert("page_bytes".into(), json!(page_bytes));
            }
            DatabaseHeader::Guarded { page_bytes, log_id, provisional, .. } => {
                facts.insert("page_bytes".into(), json!(page_bytes));
                facts.insert("log_id".into(), json!(log_id.to_string()));
                match locate::find(target, log_id) {
                    Some(log) => add_log(&mut facts, &log.path)?,
                    None if provisional => {}
                    None => drop(facts.insert("log".into(), json!(locate::missing(target, log_id)))),
                }
            }
            _ => {}
        }
    } else {
        add_log(&mut facts, &target.path)?;
    }
    if target.json {
        print_json(&Value::Object(facts))?;
    } else {
        let line = |(name, value): (&String, &Value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{name:<17} {text}\n")
        };
        print_text(&facts.iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn add_log(facts: &mut Map<String, Value>, path: &std::path::Path) -> Result<()> {
    let about = directory::describe(path)?;
    let log = directory::open_log_read_only(path)?;
    facts.insert("log".into(), json!(path.display().to_string()));
    facts.insert("log_of".into(), json!(about.database.display().to_string()));
    facts.insert("engine".into(), json!(about.engine.name));
    for name in SHOWN {
        if let Some((_, value)) = log.metrics().into_iter().find(|(metric, _)| *metric == name) {
            let number = value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number));
            facts.insert((*name).into(), number);
        }
    }
    Ok(())
}
