//! Code that the roles share: it opens a connection, tries again while the database is busy, and makes one numbered
//! transaction.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rusqlite::{Connection, ErrorCode};

use super::Orders;
use crate::acks::Acks;
use crate::board::Note;
use crate::plan::WAL;
use crate::{Acknowledge, Phase, Role, ledger};

/// The URI parameters of connections that may write concurrently with others.
const CONCURRENT: [&str; 4] = ["", "", "&concurrent=on", "&concurrent=upgrade"];

/// A process, with its random generator and with what it remembers of its acknowledgements.
pub(crate) struct Session<'a> {
    pub(super) orders: &'a Orders,
    pub(super) note: Note,
    acks: Acks,
    pub(super) rng: fastrand::Rng,
    /// The id under which this process makes transactions. A forked child has an id of its own.
    id: u64,
    /// The newest transaction that this process has acknowledged.
    acknowledged: i64,
}

/// Returns whether the error may come from the run, which renames the database for a moment. SQLite then cannot open
/// the database. An open connection of stock SQLite may fail with `IOERR_FSTAT` instead: to create the `-wal` file, it
/// copies the mode of the database file, which it finds by name.
fn is_away(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(failure, _)
        if failure.code == ErrorCode::CannotOpen
            || failure.extended_code == rusqlite::ffi::SQLITE_IOERR_FSTAT)
}

/// Returns whether the process should try again. One such error comes after the death of a process that has left a
/// journal. A user who may only read gets this error until a user who may write has rolled the journal back; stock
/// SQLite does the same.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(failure, _)
        if matches!(failure.code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
            || failure.extended_code == rusqlite::ffi::SQLITE_READONLY_ROLLBACK)
}

/// Returns whether the process must roll the transaction back and try again. Either the log is full, or stock SQLite
/// makes no rollback journal because the run has renamed the database.
pub(super) fn has_no_room(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error);
    error.is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_READONLY_DBMOVED
    })
}

/// Tries again until the log has space, or until SQLite can make a rollback journal, but for at most `limit`. Readers
/// may keep a small log full for a while, and the run may rename the database for a moment. Rolls back a transaction
/// that fails for one of these reasons.
pub(super) fn when_there_is_room<T>(
    limit: Duration,
    conn: &Connection,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if has_no_room(&error) && start.elapsed() < limit => {
                if !conn.is_autocommit() {
                    conn.execute_batch("ROLLBACK").context("ROLLBACK")?;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Tries again while the database is busy, for at most `limit`. The run stops no process for that long, and no process
/// holds a lock for that long. So a failure means that this process starves.
pub(crate) fn patiently<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> rusqlite::Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) => {
                let waited = start.elapsed();
                if waited >= limit {
                    bail!("starvation: {what} was busy for {} ms: {error}", waited.as_millis());
                }
                // SQLite does not call the busy handler where waiting could cause a deadlock.
                std::thread::sleep(Duration::from_micros(200));
            }
            result => return result.with_context(|| what.to_owned()),
        }
    }
}

/// A connection that only [`close`] closes. When a process ends because it has found a loss, its connection must not
/// checkpoint the log into the database and delete the log.
pub(crate) type Kept = ManuallyDrop<Connection>;

/// Opens a connection by one of the database's names, and attaches the log. If the database has several names, this
/// name may be missing for a moment.
pub(crate) fn open(uris: &[String], name: usize, busy: Duration, parameters: &str) -> Result<Kept> {
    let uri = uris.get(name % uris.len().max(1)).context("no URI")?;
    // With this parameter SQLite does not create the database while its name is missing for a moment.
    let mode = if parameters.is_empty() && uris.len() > 1 { "&mode=rw" } else { parameters };
    let uri = format!("{uri}{mode}");
    let start = Instant::now();
    patiently(busy, "opening", || {
        loop {
            match attach(&uri, busy) {
                Err(error) if uris.len() > 1 && is_away(&error) && start.elapsed() < busy => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                result => return result,
            }
        }
    })
}

fn attach(uri: &str, busy: Duration) -> rusqlite::Result<Kept> {
    let conn = duralite_testkit::connect(uri)?;
    conn.busy_timeout(busy)?;
    conn.set_prepared_statement_cache_capacity(32);
    match ledger::total(&conn) {
        // SQLite did not find the file, and tried again read-only. By then the file had its name back.
        Ok(_) if !uri.ends_with("mode=ro") && conn.is_readonly("main")? => {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
            Err(rusqlite::Error::SqliteFailure(code, None))
        }
        Ok(_) => Ok(Kept::new(conn)),
        Err(error) => {
            // Closes the connection only if the database was busy or renamed. After any other error the connection must
            // not close (see `Kept`), so forget it.
            if !is_busy(&error) && !is_away(&error) {
                std::mem::forget(conn);
            }
            Err(error)
        }
    }
}

/// Puts a connection and its database into a journal mode.
pub(crate) fn use_mode(conn: &Connection, mode: &str, busy: Duration) -> Result<()> {
    let pragma = format!("PRAGMA journal_mode={mode}");
    let now = patiently(busy, &pragma, || conn.query_row(&pragma, [], |row| row.get::<_, String>(0)))?;
    ensure!(now == mode, "the journal mode is {now}, not {mode}");
    Ok(())
}

/// Closes a connection.
pub(crate) fn close(conn: Kept) -> Result<()> {
    ManuallyDrop::into_inner(conn).close().map_err(|(_, error)| error).context("closing")
}

impl<'a> Session<'a> {
    pub(super) fn new(orders: &'a Orders, note: Note, acks: Acks, rng: fastrand::Rng) -> Self {
        Self { orders, note, acks, rng, id: orders.id, acknowledged: 0 }
    }

    pub(super) fn patiently<T>(&self, what: &str, attempt: impl FnMut() -> rusqlite::Result<T>) -> Result<T> {
        patiently(self.orders.busy, what, attempt)
    }

    /// Opens the database on a connection with random settings.
    pub(super) fn open(&mut self) -> Result<Kept> {
        // Processes with other roles may write concurrently, but not those with the role of a writer. So the run has
        // both kinds of connections.
        let may_be_concurrent = self.orders.concurrent && self.orders.role != Role::Writer;
        let parameters = if may_be_concurrent { CONCURRENT[self.rng.usize(..CONCURRENT.len())] } else { "" };
        self.open_with(parameters)
    }

    /// Opens the database as `open` does, with more URI parameters.
    pub(super) fn open_with(&mut self, parameters: &str) -> Result<Kept> {
        self.note.phase(Phase::Opening)?;
        let first = self.rng.usize(..8);
        let conn = open(&self.orders.uris, first, self.orders.busy, parameters)?;
        let synchronous = ["FULL", "FULL", "NORMAL", "OFF"][self.rng.usize(..4)];
        let cache = [-2000, 10, 3][self.rng.usize(..3)];
        let drawn = [1000, 1000, 100, 20, 0][self.rng.usize(..5)];
        let checkpoint = self.orders.autocheckpoint.unwrap_or(drawn);
        conn.execute_batch(&format!(
            "PRAGMA synchronous={synchronous}; PRAGMA cache_size={cache};
             PRAGMA wal_autocheckpoint={checkpoint};"
        ))
        .context("pragmas")?;
        // A database remembers that it uses the write-ahead log. The kind of rollback journal is a setting of each
        // connection.
        if self.orders.journal != WAL && parameters.is_empty() {
            use_mode(&conn, &self.orders.journal, self.orders.busy)?;
        }
        self.note.phase(Phase::Ready)?;
        Ok(conn)
    }

    pub(super) fn close(&self, conn: Kept) -> Result<()> {
        self.note.phase(Phase::Closing)?;
        close(conn)
    }

    /// Checks that the database still has the transactions which this process has acknowledged.
    pub(super) fn notice_loss(&self, conn: &Connection, total: i64) -> Result<()> {
        let mine = self.acknowledged;
        ensure!(total >= mine, "lost: {total} transactions are there, and {mine} was acknowledged");
        if mine > (total - ledger::WINDOW).max(0) {
            let owner = ledger::owner(conn, mine)?;
            let own = self.id;
            ensure!(owner == own, "lost: transaction {mine}, acknowledged here, is that of process {owner}");
        }
        Ok(())
    }

    fn begin(&self, conn: &Connection) -> Result<()> {
        self.note.phase(Phase::Begin)?;
        self.patiently("BEGIN IMMEDIATE", || conn.execute_batch("BEGIN IMMEDIATE"))?;
        self.note.phase(Phase::Changing)
    }

    /// Returns the id under which this process makes transactions.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Turns this session into the session of forked child `number`.
    pub(super) fn become_child(&mut self, number: u64, seed: u64) {
        self.note.be_silent();
        self.id |= number << 32;
        self.rng = fastrand::Rng::with_seed(seed);
        self.acknowledged = 0;
    }

    /// Commits the next transaction, and acknowledges it.
    pub(super) fn commit_one(&mut self, conn: &Connection) -> Result<()> {
        self.when_there_is_room(conn, |session| {
            let n = session.start(conn)?;
            session.finish(conn, n)
        })
    }

    /// Calls the function of the same name with the session's limit.
    pub(super) fn when_there_is_room<T>(
        &mut self,
        conn: &Connection,
        mut attempt: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        when_there_is_room(self.orders.busy, conn, || attempt(self))
    }

    /// Begins the next transaction. Returns its number.
    pub(super) fn start(&mut self, conn: &Connection) -> Result<i64> {
        self.begin(conn)?;
        let total = ledger::total(conn)?;
        self.notice_loss(conn, total)?;
        let n = total + 1;
        if self.rng.u32(..16) == 0 {
            conn.execute_batch("SAVEPOINT s")?;
            ledger::junk(conn, self.rng.i64(1..20))?;
            conn.execute_batch("ROLLBACK TO s; RELEASE s")?;
        }
        ledger::change(conn, n, self.id).with_context(|| format!("transaction {n}"))?;
        Ok(n)
    }

    /// Commits the open transaction `n`, and acknowledges it.
    pub(super) fn finish(&mut self, conn: &Connection, n: i64) -> Result<()> {
        if self.orders.acknowledge == Acknowledge::BeforeCommit {
            self.acks.record(n, self.id)?;
        }
        self.note.phase(Phase::Commit)?;
        self.patiently("COMMIT", || conn.execute_batch("COMMIT"))?;
        if self.orders.acknowledge == Acknowledge::AfterCommit {
            self.acks.record(n, self.id)?;
        }
        self.acknowledged = n;
        self.note.phase(Phase::Ready)
    }

    /// Changes many rows, and rolls back.
    pub(super) fn roll_back(&mut self, conn: &Connection) -> Result<()> {
        self.when_there_is_room(conn, |session| {
            session.begin(conn)?;
            Ok(ledger::junk(conn, session.rng.i64(1..200))?)
        })?;
        self.note.phase(Phase::Housekeeping)?;
        conn.execute_batch("ROLLBACK").context("ROLLBACK")?;
        self.note.phase(Phase::Ready)
    }
}
