//! `duralite info`.

use std::process::ExitCode;

use anyhow::Result;
use duralite_journal::engine::Engine as _;
use duralite_journal::{offline, pool};
use duralite_logfmt::guard::DatabaseHeader;
use serde_json::{Map, Value, json};

use crate::{Target, locate, print_json, print_text};

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
            DatabaseHeader::Guarded { page_bytes, log_id } => {
                facts.insert("page_bytes".into(), json!(page_bytes));
                facts.insert("log_id".into(), json!(log_id.to_string()));
                match locate::find(target, log_id) {
                    Some(pool) => add_log(&mut facts, &pool.log_path(log_id))?,
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
            format!("{name:<16} {text}\n")
        };
        print_text(&facts.iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn add_log(facts: &mut Map<String, Value>, path: &std::path::Path) -> Result<()> {
    let log = pool::open_read_only(path)?;
    let superblock = log.superblock();
    let page_bytes = u64::from(superblock.page_bytes);
    facts.insert("log".into(), json!(path.display().to_string()));
    facts.insert("log_of".into(), json!(String::from_utf8_lossy(&superblock.path)));
    facts.insert("generation".into(), json!(log.generation()));
    facts.insert("retired".into(), json!(log.is_retired()));
    facts.insert("transactions".into(), json!(log.transactions()));
    facts.insert("frames".into(), json!(log.committed()));
    facts.insert("frames_bytes".into(), json!(u64::from(log.committed()) * page_bytes));
    facts.insert("log_bytes".into(), json!(log.blocks_used() as u64 * u64::from(superblock.block_bytes)));
    facts.insert("log_limit".into(), json!(superblock.file_bytes(superblock.limit_blocks)));
    facts.insert("block_bytes".into(), json!(superblock.block_bytes));
    Ok(())
}
