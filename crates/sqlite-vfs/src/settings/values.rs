//! From the text of a connection's setting to its value, and back.

use duralite_wal::engine::settings::Given;
use duralite_wal::{Descriptor, engines};

/// The number of frames at which the background checkpoint begins: well before SQLite's own, at 1000.
const BACKGROUND_FRAMES: u32 = 400;
const AUTO: &str = "auto";
const OFF: &str = "off";

/// What serves the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// The first engine that has the media it needs, else the base VFS.
    Auto,
    /// Always this engine.
    Engine(&'static Descriptor),
    /// The base VFS.
    Off,
}

/// The values that `journal` takes, in words.
pub(super) fn journals() -> String {
    let engines: Vec<&str> = engines::all().map(|engine| engine.name).collect();
    format!("{AUTO}, {} or {OFF}", engines.join(", "))
}

pub(super) fn journal(given: &Given<'_>) -> Result<Journal, String> {
    match given.value {
        AUTO => Ok(Journal::Auto),
        OFF => Ok(Journal::Off),
        name => engines::by_name(name).map(Journal::Engine).ok_or_else(|| given.invalid()),
    }
}

pub(super) fn journal_name(journal: Journal) -> &'static str {
    match journal {
        Journal::Auto => AUTO,
        Journal::Engine(engine) => engine.name,
        Journal::Off => OFF,
    }
}

pub(super) fn background_checkpoint(given: &Given<'_>) -> Result<u32, String> {
    match given.switch() {
        Ok(true) => Ok(BACKGROUND_FRAMES),
        Ok(false) => Ok(0),
        Err(_) => given.parsed(),
    }
}
