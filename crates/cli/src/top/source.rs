//! Finds the memory that the processes of a database share, and reads it. Between two readings the database may get a
//! different log, or lose its log.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use duralite_format::guard::DatabaseHeader;
use duralite_format::wal_index::{WAL_INDEX_BYTES, WalIndex};
use duralite_locks::observe;
use duralite_medium::Segment as _;
use duralite_wal::DatabaseIdentity;
use duralite_wal::log::offline;
use duralite_wal::placement::{self, LOCKS_OFFSET, Watch};

use super::reading::{Reading, Seen};
use duralite_cli::locate;
use duralite_cli::target::Target;

/// The result of one reading.
pub(crate) enum State {
    /// Processes use the database through Duralite.
    InUse(Box<Reading>),
    /// No process uses the database.
    Idle {
        /// The state as a text for programs: `not in use`, `plain SQLite`, `log missing` or `not readable`.
        state: &'static str,
        why: String,
    },
}

/// A database, and the memory that its processes share, if processes use the database.
pub(crate) struct Source {
    target: Target,
    watch: Option<Watch>,
}

impl Source {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, watch: None }
    }

    /// Returns the path of the database, as the user gave it.
    pub(crate) fn database(&self) -> &Path {
        &self.target.path
    }

    /// Reads the shared memory again after `look` has succeeded once. An error becomes a state, because the next
    /// reading may succeed.
    pub(crate) fn look_on(&mut self) -> State {
        self.look().unwrap_or_else(|error| State::Idle { state: "not readable", why: format!("{error:#}") })
    }

    /// Finds and reads the shared memory once.
    pub(crate) fn look(&mut self) -> Result<State> {
        if let Some(watch) = &self.watch
            && let Some(reading) = read(watch)?
        {
            return Ok(State::InUse(Box::new(reading)));
        }
        self.watch = None;
        let (database, header) = self.header()?;
        let DatabaseHeader::Guarded { log_id, provisional, .. } = header else {
            return plain(&database, header);
        };
        let Some(log) = locate::find(&self.target, log_id) else {
            if provisional {
                return Ok(State::Idle { state: "not in use", why: locate::describe(header).to_owned() });
            }
            if let Some(log) = locate::unreadable(&self.target, log_id) {
                bail!("this user may not read {}", log.display());
            }
            return Ok(State::Idle { state: "log missing", why: locate::missing(&self.target, log_id) });
        };
        let identity = DatabaseIdentity::of(&database)?;
        if let Some(watch) = Watch::open(&log.path, log_id, &identity)?
            && let Some(reading) = read(&watch)?
        {
            self.watch = Some(watch);
            return Ok(State::InUse(Box::new(reading)));
        }
        let why = "no program has it open; its newest commits are in its log".to_owned();
        Ok(State::Idle { state: "not in use", why })
    }

    /// Returns the database file and its header.
    fn header(&self) -> Result<(PathBuf, DatabaseHeader)> {
        let path = &self.target.path;
        let database = if locate::is_log(path) { placement::describe(path)?.database } else { path.clone() };
        let header = offline::inspect(&database)?;
        Ok((database, header))
    }
}

/// Returns the state of a database without a log.
fn plain(database: &Path, header: DatabaseHeader) -> Result<State> {
    let idle = |state, why: &str| Ok(State::Idle { state, why: why.to_owned() });
    match header {
        DatabaseHeader::Plain { wal: true, .. } => {
            idle("plain SQLite", "no program uses it through Duralite now")
        }
        DatabaseHeader::Plain { wal: false, .. } => {
            idle("plain SQLite", "it is not in WAL mode: `duralite enable` sets that mode")
        }
        DatabaseHeader::Empty => idle("plain SQLite", "it is an empty file"),
        other => bail!("{} is {}", database.display(), locate::describe(other)),
    }
}

/// Returns what is in shared memory now; `None` if no process uses that memory any more.
fn read(watch: &Watch) -> Result<Option<Reading>> {
    let segment = watch.segment();
    // This function reads the locks before the metrics. So a process that opens the database between these two steps
    // appears without locks.
    let locks = observe(segment, LOCKS_OFFSET);
    let Some(glance) = watch.look()? else { return Ok(None) };
    let mut index = [0; WAL_INDEX_BYTES];
    let bytes = segment.read_index(&mut index).context("read the wal-index")?;
    let index = WalIndex::decode(&index).filter(|_| bytes == WAL_INDEX_BYTES);
    let marks = duralite_locks::FIRST_READ..duralite_locks::SLOTS;
    let outside = marks.filter(|mark| segment.has_outside_readers(*mark, 1).unwrap_or(false)).count();
    Ok(Some(Reading::new(watch, Seen { glance, locks, index, outside })))
}
