//! Finding what a database's processes share, again and again: logs come and go.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use duralite_journal::directory::{self, LOCKS_OFFSET, Watch};
use duralite_journal::{DatabaseIdentity, offline};
use duralite_locks::observe;
use duralite_logfmt::guard::DatabaseHeader;
use duralite_logfmt::wal_index::{WAL_INDEX_BYTES, WalIndex};
use duralite_medium::Segment as _;

use super::reading::{Reading, Seen};
use crate::locate;
use crate::target::Target;

/// What there was at one look.
pub(crate) enum State {
    /// Processes use the database through Duralite.
    InUse(Box<Reading>),
    /// Nobody does. What a program may go by, and why in words.
    Idle {
        /// `not in use`, `plain SQLite`, `log missing` or `not readable`.
        state: &'static str,
        why: String,
    },
}

/// A database, and the memory that its processes share, if there are any.
pub(crate) struct Source {
    target: Target,
    watch: Option<Watch>,
}

impl Source {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, watch: None }
    }

    /// The database, as it was given.
    pub(crate) fn database(&self) -> &Path {
        &self.target.path
    }

    /// Looks once more, after it has gone well: whatever is wrong now may be right again at the next look.
    pub(crate) fn look_on(&mut self) -> State {
        self.look().unwrap_or_else(|error| State::Idle { state: "not readable", why: format!("{error:#}") })
    }

    /// Looks.
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
        let why = "nobody has it open; its newest commits are in its log".to_owned();
        Ok(State::Idle { state: "not in use", why })
    }

    /// The database file, and what its header says.
    fn header(&self) -> Result<(PathBuf, DatabaseHeader)> {
        let path = &self.target.path;
        let database = if locate::is_log(path) { directory::describe(path)?.database } else { path.clone() };
        let header = offline::inspect(&database)?;
        Ok((database, header))
    }
}

/// What is to be said of a database without a log.
fn plain(database: &Path, header: DatabaseHeader) -> Result<State> {
    let idle = |state, why: &str| Ok(State::Idle { state, why: why.to_owned() });
    match header {
        DatabaseHeader::Plain { wal: true, .. } => {
            idle("plain SQLite", "no program uses it through Duralite just now")
        }
        DatabaseHeader::Plain { wal: false, .. } => {
            idle("plain SQLite", "it is not in WAL mode: `duralite enable` puts it there")
        }
        DatabaseHeader::Empty => idle("plain SQLite", "it is an empty file so far"),
        other => bail!("{} is {}", database.display(), locate::describe(other)),
    }
}

/// What there is now; `None` when nobody uses the log by this memory any more.
fn read(watch: &Watch) -> Result<Option<Reading>> {
    let segment = watch.segment();
    // Before the figures: a process that comes in between is in neither list, and not in one of them only.
    let locks = observe(segment, LOCKS_OFFSET);
    let Some(glance) = watch.look()? else { return Ok(None) };
    let mut index = [0; WAL_INDEX_BYTES];
    let bytes = segment.read_index(&mut index).context("read the wal-index")?;
    let index = WalIndex::decode(&index).filter(|_| bytes == WAL_INDEX_BYTES);
    let marks = duralite_locks::FIRST_READ..duralite_locks::SLOTS;
    let outside = marks.filter(|mark| segment.has_outside_readers(*mark, 1).unwrap_or(false)).count();
    Ok(Some(Reading::new(watch, Seen { glance, locks, index, outside })))
}
