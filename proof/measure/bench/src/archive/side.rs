//! The two sides of the comparison: Duralite with `duralite replicate`, and stock SQLite with `litestream replicate`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rusqlite::Connection;
use tempfile::TempDir;

use super::programs::{Programs, Running, Server, command, url};
use super::reached::objects;
use crate::concurrent;
use crate::everyday::WALDIO;
use crate::workload::status;

/// One side of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Duralite,
    Litestream,
}

impl Side {
    /// Returns the sides that the benchmark can measure.
    pub(super) fn all(programs: &Programs) -> &'static [Self] {
        const BOTH: &[Side] = &[Side::Duralite, Side::Litestream];
        if programs.litestream.is_some() { BOTH } else { &BOTH[..1] }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Duralite => "duralite replicate",
            Self::Litestream => "litestream replicate",
        }
    }
}

/// A database of one side, in a directory of its own.
pub(super) struct Database {
    side: Side,
    pub(super) path: PathBuf,
    dir: TempDir,
}

impl Database {
    pub(super) fn new(side: Side, dir: &Path) -> Result<Self> {
        let dir = tempfile::tempdir_in(dir)?;
        Ok(Self { side, path: dir.path().canonicalize()?.join("app.db"), dir })
    }

    pub(super) const fn side(&self) -> Side {
        self.side
    }

    /// Returns the database's URI. For Duralite, the URI includes `settings`.
    pub(super) fn uri(&self, settings: &str) -> String {
        let path = self.path.display();
        match self.side {
            Side::Duralite => format!("file:{path}?vfs=duralite&{WALDIO}{settings}"),
            Side::Litestream => format!("file:{path}"),
        }
    }

    /// Opens a connection in WAL mode with `synchronous=FULL`.
    pub(super) fn open(&self) -> Result<Connection> {
        self.checked(concurrent::open(&self.uri(""))?)
    }

    /// Opens a connection as [`Self::open`] does, makes an empty table, and fills the log once, so that the log
    /// hardly grows during the measurement.
    pub(super) fn prepared(&self) -> Result<Connection> {
        self.checked(concurrent::prepare(&self.uri(""))?)
    }

    fn checked(&self, conn: Connection) -> Result<Connection> {
        if self.side == Side::Duralite {
            let status = status(&conn)?;
            let state = status.get("state").map(String::as_str);
            ensure!(state == Some("active"), "the engine is {}", state.unwrap_or("not there"));
        }
        Ok(conn)
    }

    /// Starts the program that replicates the database into a prefix of the server's bucket. The program reaches the
    /// server at `address`. Waits until the archive is complete enough to restore the present state of the database.
    pub(super) fn replicate(
        &self,
        programs: &Programs,
        server: &Server,
        prefix: &str,
        address: SocketAddr,
        conn: &Connection,
    ) -> Result<Replicating> {
        let url = url(prefix, address);
        let mut command = match (self.side, &programs.litestream) {
            (Side::Litestream, Some(litestream)) => {
                let mut command = command(litestream);
                command.arg("replicate").arg(&self.path).arg(url);
                command
            }
            _ => {
                let mut command = command(&programs.sidecar);
                command.arg("replicate").arg(&self.path).arg(url).args(["--set", WALDIO]);
                command
            }
        };
        let mut program =
            Running::start(self.side.name(), &mut command, self.dir.path().join("replicate.log"))?;
        let files = server.files.join(self.replica(prefix));
        let begun = |level: &str| Ok(!objects(&files.join(level))?.is_empty());
        match self.side {
            Side::Duralite => program
                .wait_until("the archive does not begin", || Ok(is_archived(conn)? && begun("0009")?))?,
            Side::Litestream => program.wait_until("the archive does not begin", || begun("0000"))?,
        }
        Ok(Replicating { program, transactions: files.join("0000") })
    }

    /// Returns the prefix of the objects of a replica. For Litestream this is `prefix` itself. In an archive of
    /// Duralite each generation has a prefix below `prefix`; this function returns that of the first generation.
    pub(super) fn replica(&self, prefix: &str) -> String {
        match self.side {
            Side::Duralite => format!("{prefix}/g0000000000000001"),
            Side::Litestream => prefix.to_owned(),
        }
    }
}

/// Returns whether the archive of a database of Duralite has all that was committed.
pub(super) fn is_archived(conn: &Connection) -> Result<bool> {
    let status = status(conn)?;
    let is = |name: &str, value: &str| status.get(name).is_some_and(|found| found == value);
    Ok(is("archive", "sidecar runs") && is("archive_lag_transactions", "0"))
}

/// A running program that replicates a database.
pub(super) struct Replicating {
    pub(super) program: Running,
    /// The directory of the objects that have the newest commits.
    pub(super) transactions: PathBuf,
}
