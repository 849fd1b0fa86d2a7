//! `duralite doctor`: shows what this machine and a directory on it offer, and which settings to use.
//!
//! The command shows what Duralite itself decides. It asks the library's probe for the fastest way to write durably. To
//! learn which engine would serve a database in the directory, it creates a temporary database there.

mod device;
mod hosts;
mod writes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_cli::output::{print_json, print_text};
use duralite_medium::block::{check_filesystem, probe};
use duralite_medium::{detect_flush_instruction, is_dax, persistence_domain};
use duralite_wal::engine::media::SHARED_MEMORY_DIR;
use serde_json::{Map, Value, json};

use crate::launch::Settings;
use crate::mode;

/// The width of the column of names, in characters.
const WIDTH: usize = 36;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory where databases are, or will be
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let dir = &arguments.dir;
    let dir = dir.canonicalize().with_context(|| format!("{}", dir.display()))?;
    if !dir.is_dir() {
        bail!(
            "{} is a file: name the directory of databases; `duralite info` says what a database is",
            dir.display()
        );
    }
    // The facts are in the order in which a user reads them. The advice is last, so that it is still visible at the
    // bottom of a terminal.
    let facts = [
        ("directory", json!(dir.display().to_string())),
        ("file_system", file_system(&dir)),
        ("device", device::describe(&dir)),
        ("durable_write_us", durable_writes(&dir)),
        ("memory", memory(&dir)),
        ("sqlite_libraries", json!(hosts::libraries())),
        ("programs", hosts::programs()),
        ("advice", advice(&dir)),
    ];
    if arguments.json {
        let facts: Map<String, Value> = facts.into_iter().map(|(name, value)| (name.into(), value)).collect();
        print_json(&Value::Object(facts))?;
    } else {
        let mut text = String::new();
        facts.iter().for_each(|(name, value)| section(&mut text, name, value));
        print_text(text.trim_start())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the name on its own line, and the values below it.
fn section(text: &mut String, name: &str, value: &Value) {
    text.push_str(&format!("\n{name}\n"));
    match value {
        Value::Object(object) => object.iter().for_each(|(part, value)| lines(text, part, value)),
        other => lines(text, "", other),
    }
}

/// Writes one line for each value. Each line begins with the names of the JSON objects that contain the value.
fn lines(text: &mut String, name: &str, value: &Value) {
    let mut line = |value: String| {
        text.push_str(&match name {
            "" => format!("  {value}\n"),
            name => format!("  {name:<WIDTH$} {value}\n"),
        })
    };
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(part, value)| lines(text, &format!("{name}, {part}"), value))
        }
        Value::Array(array) if array.is_empty() => line("none".to_owned()),
        Value::Array(array) => array.iter().for_each(|value| lines(text, name, value)),
        Value::String(value) => line(value.clone()),
        Value::Null => line("unknown".to_owned()),
        Value::Bool(value) => line(if *value { "yes" } else { "no" }.to_owned()),
        Value::Number(value) => line(value.to_string()),
    }
}

fn file_system(dir: &Path) -> Value {
    match check_filesystem(dir) {
        Ok(found) => {
            let mut facts = json!({ "name": found.name, "in_memory_only": found.volatile });
            if let Some(why) = found.unsynced {
                facts["lost_with_the_power"] = json!(why);
            }
            facts
        }
        Err(error) => json!({ "refused": error.to_string() }),
    }
}

/// Measures the methods of durable writing that work here, and returns their median latencies. Also returns which
/// method Duralite uses. Duralite bases this choice on a measurement of its own, which may be up to a day old.
fn durable_writes(dir: &Path) -> Value {
    let mut facts = writes::measure(dir);
    facts.insert("verdict".to_owned(), json!(probe(dir).reason));
    Value::Object(facts)
}

fn memory(dir: &Path) -> Value {
    json!({
        "dax": is_dax(dir),
        "persistence_domain": persistence_domain(dir).as_str(),
        "flush_instruction": format!("{:?}", detect_flush_instruction()).to_lowercase(),
        "shared_memory": SHARED_MEMORY_DIR,
        "shared_memory_free_bytes": rustix::fs::statvfs(SHARED_MEMORY_DIR).ok().map(|stat| stat.f_bavail * stat.f_frsize),
    })
}

/// Returns the settings to use, and the engine that serves a database with these settings.
fn advice(dir: &Path) -> Value {
    let (settings, options, why) = if is_dax(dir) {
        let nvram = dir.display().to_string();
        let why = "the directory is on persistent memory: a commit needs no system call";
        (Settings { nvram: Some(nvram.clone()), ..Settings::default() }, format!("--nvram {nvram}"), why)
    } else if check_filesystem(dir).is_ok_and(|found| found.volatile) {
        let why = "the directory is in memory: nothing in it survives a power loss, whatever the settings \
                   are; use it for experiments only";
        (Settings::default(), String::new(), why)
    } else if check_filesystem(dir).is_ok_and(|found| found.unsynced.is_some()) {
        let why = "a sync in this directory does not make a commit survive a power loss, whatever the \
                   settings are (file_system, lost_with_the_power): mount the file system without that \
                   option, or keep databases and logs elsewhere";
        (Settings::default(), String::new(), why)
    } else {
        let why = "no setting is needed on a disk: Duralite allocates blocks in advance, so that a commit is \
                   an overwrite and a flush (durable_write_us.overwrite...); stock SQLite appends to its \
                   log, and the file system's journal has to commit too (append...)";
        (Settings::default(), String::new(), why)
    };
    match serves(dir, &settings) {
        Ok(what) => {
            let command =
                format!("duralite run {options}{}-- PROGRAM", if options.is_empty() { "" } else { " " });
            json!({ "serves": what, "command": command, "why": why })
        }
        Err(error) => json!({ "serves": Value::Null, "why": format!("{error:#}") }),
    }
}

/// Creates a temporary database in the directory, and returns which engine serves it.
fn serves(dir: &Path, settings: &Settings) -> Result<String> {
    let dir = tempfile::Builder::new().prefix(".duralite-doctor-").tempdir_in(dir)?;
    let status = mode::set(&dir.path().join("doctor.db"), "wal", settings)?;
    Ok(status.in_words().replace(&format!("{}/", dir.path().display()), ""))
}
