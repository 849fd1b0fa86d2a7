//! The ways to commit that the demonstration compares. Every setting that a mode does not name has SQLite's
//! default.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags};

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS characters (line INTEGER PRIMARY KEY, code TEXT NOT NULL, name TEXT NOT NULL)";

/// A way to commit.
pub(crate) struct Mode {
    pub(crate) key: &'static str,
    pub(crate) label: &'static str,
    /// The settings of Duralite as URI parameters; `None` for stock SQLite.
    pub(crate) settings: Option<&'static str>,
    pub(crate) exclusive: bool,
    /// Whether SQLite makes its automatic checkpoints.
    pub(crate) checkpoints: bool,
    pub(crate) journal_mode: &'static str,
}

const PLAIN: Mode =
    Mode { key: "", label: "", settings: None, exclusive: false, checkpoints: true, journal_mode: "WAL" };
const NVWAL: Option<&str> = Some("journal=nvwal&nvram=emulate");
// The settings of the engine `scratchpad`, whose log is in emulated memory. `home=emulate` puts the database
// there too.
const SCRATCHPAD: Option<&str> = Some("journal=scratchpad&scratchpad=emulate&home=emulate");

/// All modes, in the order of the table.
pub(crate) const MODES: [Mode; 9] = [
    Mode { key: "cold", label: "stock WAL, log growing (cold)", checkpoints: false, ..PLAIN },
    Mode { key: "warm", label: "stock WAL, log recycled (warm)", ..PLAIN },
    Mode { key: "waldio", label: "Duralite, nothing else set (waldio)", settings: Some(""), ..PLAIN },
    Mode { key: "nvwal", label: "Duralite nvwal", settings: NVWAL, ..PLAIN },
    Mode { key: "exclusive", label: "Duralite nvwal, exclusive", settings: NVWAL, exclusive: true, ..PLAIN },
    Mode { key: "ppl", label: "Duralite ppl", settings: Some("journal=ppl&nvram=emulate"), ..PLAIN },
    Mode { key: "scratchpad", label: "Duralite scratchpad", settings: SCRATCHPAD, ..PLAIN },
    Mode { key: "rollback", label: "stock DELETE (rollback journal)", journal_mode: "DELETE", ..PLAIN },
    Mode {
        key: "scratchpad-delete",
        label: "Duralite scratchpad, DELETE",
        settings: SCRATCHPAD,
        journal_mode: "DELETE",
        ..PLAIN
    },
];

/// Returns the mode with this key.
///
/// # Errors
/// An error if no mode has this key.
pub(crate) fn find(key: &str) -> Result<&'static Mode> {
    MODES.iter().find(|mode| mode.key == key).with_context(|| format!("no mode {key}"))
}

impl Mode {
    /// Returns whether the log is a file on disk, not in emulated memory.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.settings.is_none_or(str::is_empty)
    }

    /// Opens a database with `synchronous=FULL`. Each statement is a transaction of its own. The caller must
    /// have loaded Duralite if the mode uses it.
    ///
    /// # Errors
    /// An error of SQLite.
    pub(crate) fn open(&self, database: &Path, pool: &Path, checkpoints: bool) -> Result<Connection> {
        let vfs = match self.settings {
            None => "vfs=unix".to_owned(),
            Some("") => "vfs=duralite".to_owned(),
            Some(settings) => format!("vfs=duralite&{settings}&nvram_dir={}", escaped(pool)),
        };
        let uri = format!("file:{}?{vfs}", escaped(database));
        let conn = Connection::open(&uri).with_context(|| format!("cannot open {}", database.display()))?;
        if self.exclusive {
            conn.execute_batch("PRAGMA locking_mode=EXCLUSIVE")?;
        }
        conn.execute_batch(&format!("PRAGMA journal_mode={}; PRAGMA synchronous=FULL", self.journal_mode))?;
        if !(checkpoints && self.checkpoints) {
            conn.execute_batch("PRAGMA wal_autocheckpoint=0")?;
        }
        conn.execute_batch(SCHEMA)?;
        Ok(conn)
    }
}

/// Opens a closed database with plain SQLite for reading.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn open_plain(database: &Path) -> Result<Connection> {
    let uri = format!("file:{}?vfs=unix&mode=ro", escaped(database));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(&uri, flags).with_context(|| format!("cannot open {}", database.display()))
}

/// Returns the metrics in `PRAGMA duralite`; empty on stock SQLite.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn counters(conn: &Connection) -> Result<HashMap<String, f64>> {
    let mut statement = conn.prepare("PRAGMA duralite")?;
    let text = match statement.query([])?.next()? {
        Some(row) => row.get::<_, String>(0)?,
        None => return Ok(HashMap::new()),
    };
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

/// Escapes a path for use in a URI.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        match c {
            '%' | '?' | '#' | '&' => text.push_str(&format!("%{:02X}", u32::from(c))),
            _ => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_hold_what_means_something_in_a_uri() {
        assert_eq!(escaped(Path::new("/a b/50%?#&.db")), "/a b/50%25%3F%23%26.db");
    }
}
