//! Reads what to replicate, to which archive, and how often. The command line says this for one database, and
//! `duralite.toml` for many.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Deserializer};

/// The default time for which the sidecar collects commits before it uploads them. If a commit waits for the
/// archive, the sidecar uploads at once.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// The default interval between two snapshots.
pub const SNAPSHOT_EVERY: Duration = Duration::from_secs(24 * 3600);
/// The default age up to which every moment can be restored.
pub const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// The file `duralite.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    database: Vec<Database>,
}

/// A database to replicate.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// The database file.
    pub path: PathBuf,
    /// The URL of the database's archive. If it is not given, the sidecar uses the URL that `duralite enable
    /// --archive` has written to the file beside the database.
    pub archive: Option<String>,
    /// The time for which the sidecar collects commits before it uploads them. If a commit waits for the
    /// archive, the sidecar uploads at once.
    #[serde(default = "interval", deserialize_with = "duration")]
    pub interval: Duration,
    /// The interval between two snapshots.
    #[serde(default = "snapshot_every", deserialize_with = "duration")]
    pub snapshot_every: Duration,
    /// The age up to which every moment can be restored.
    #[serde(default = "keep", deserialize_with = "duration")]
    pub keep: Duration,
    /// The largest number of bytes per second that a snapshot reads from the database; `None` for no limit.
    pub limit: Option<u64>,
    /// The directory with the log, if the log is in none of the usual places.
    pub log_dir: Option<PathBuf>,
    /// The directory with the log in persistent memory, if the log is in none of the usual places.
    pub nvram_dir: Option<PathBuf>,
    /// Settings with which the sidecar opens the database. They have the names that a URI may have.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

fn interval() -> Duration {
    INTERVAL
}

fn snapshot_every() -> Duration {
    SNAPSHOT_EVERY
}

fn keep() -> Duration {
    KEEP
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text).map_err(serde::de::Error::custom)
}

impl Database {
    /// Returns the configuration of a database with all settings at their defaults.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            archive: None,
            interval: INTERVAL,
            snapshot_every: SNAPSHOT_EVERY,
            keep: KEEP,
            limit: None,
            log_dir: None,
            nvram_dir: None,
            settings: BTreeMap::new(),
        }
    }

    /// Returns the settings as pairs.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        self.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// Reads the configurations of all databases that a file lists.
///
/// # Errors
/// The file cannot be read or is not valid; it names no database; it names a database twice.
pub fn read(path: &Path) -> Result<Vec<Database>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Database>> {
    let File { database } = toml::from_str(text)?;
    if database.is_empty() {
        bail!("it names no [[database]]");
    }
    for (nth, one) in database.iter().enumerate() {
        if database.iter().take(nth).any(|other| other.path == one.path) {
            bail!("{} is named twice", one.path.display());
        }
    }
    Ok(database)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_databases_and_what_it_leaves_out_is_the_default() {
        let text = r#"
            [[database]]
            path = "/srv/app.db"
            archive = "s3://bucket/app?region=eu-central-1"
            interval = "2s"
            keep = "7d"
            limit = 50000000
            settings = { journal = "waldio" }

            [[database]]
            path = "/srv/queue.db"
        "#;
        let found = parse(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].interval, Duration::from_secs(2));
        assert_eq!(found[0].keep, Duration::from_secs(7 * 24 * 3600));
        assert_eq!(found[0].limit, Some(50_000_000));
        assert_eq!(found[0].pairs(), [("journal".to_owned(), "waldio".to_owned())]);
        assert_eq!((found[1].interval, found[1].archive.as_ref()), (INTERVAL, None));
    }

    #[test]
    fn what_a_file_cannot_mean_is_refused() {
        for (text, what) in [
            ("", "no [[database]]"),
            ("[[database]]\npath = \"a\"\n[[database]]\npath = \"a\"", "twice"),
            ("[[database]]\npath = \"a\"\nintervall = \"1s\"", "intervall"),
            ("[[database]]\npath = \"a\"\ninterval = \"1 parsec\"", "parsec"),
            ("[[database]]\narchive = \"file:///a\"", "path"),
        ] {
            let said = format!("{:#}", parse(text).unwrap_err());
            assert!(said.contains(what), "{said}");
        }
    }
}
