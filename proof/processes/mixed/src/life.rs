//! The life of one thread: it opens a connection, performs some operations with it, closes it, and opens the
//! next one.

use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use duralite_testkit::register;
use rusqlite::Connection;

use crate::bank::{self, SCHEMAS, View};
use crate::mind::Mind;
use crate::site::Paths;
use crate::slices::{Slices, now_ns};
use crate::{Acknowledge, Plan, Side, Verdict, verdict};

/// A connection that only [`Life::close`] closes. If a process has found a loss, it must end without closing
/// its connections, because that could checkpoint or delete a log.
type Kept = ManuallyDrop<Connection>;

/// The limit of every wait. It is long enough even if processes are stopped or hold locks.
const LONG: Duration = Duration::from_secs(10);
/// How many times a thread tries a commit if the database is busy.
const COMMITS: u32 = 40;
const MODES: [&str; 6] = ["wal", "wal", "wal", "delete", "truncate", "persist"];
const CHECKPOINTS: [&str; 4] = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"];

/// The way in which the thread opens a connection.
#[derive(Debug)]
struct Manner {
    read_only: bool,
    exclusive: bool,
    second: bool,
    busy: Duration,
    pragmas: String,
}

/// One thread of one process.
pub(crate) struct Life<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) side: Side,
    pub(crate) paths: &'a Paths,
    pub(crate) slices: Slices,
    pub(crate) rng: fastrand::Rng,
    pub(crate) mind: Mind,
    pub(crate) trace: File,
}

/// Whether the thread keeps the connection after an operation.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Close,
}

impl Life<'_> {
    /// Runs until the round is over.
    ///
    /// # Errors
    /// A violation: something that must not happen.
    pub(crate) fn run(&mut self) -> Result<()> {
        while !self.slices.is_over() {
            if !self.slices.welcomes(self.side) && self.rng.u32(..8) > 0 {
                self.pause_us(4000);
                continue;
            }
            self.one_connection()?;
            let longest = [100, 100, 1000, 8000][self.rng.usize(..4)];
            self.pause_us(longest);
        }
        Ok(())
    }

    fn pause_us(&mut self, longest: u64) {
        std::thread::sleep(Duration::from_micros(self.rng.u64(..longest)));
    }

    fn one_connection(&mut self) -> Result<()> {
        let manner = self.draw_manner();
        let start = Instant::now();
        let opened = self.open(&manner);
        Self::in_time("opening", start)?;
        let doing = format!("open {}", if manner.read_only { "ro" } else { "rw" });
        let Some(conn) = self.judge(&doing, &manner, opened)?.0 else {
            self.pause_us(5000);
            return Ok(());
        };
        let most = if manner.exclusive { 8 } else { 40 };
        for _ in 0..self.rng.u32(1..most) {
            if self.slices.is_over() || (!self.slices.welcomes(self.side) && self.rng.u32(..4) > 0) {
                break;
            }
            if self.one_thing(&conn, &manner)? == Next::Close {
                break;
            }
        }
        if self.rng.u32(..8) == 0 {
            // Here the thread closes the connection in the middle of a transaction.
            let begun = conn.execute_batch("BEGIN IMMEDIATE").context("BEGIN IMMEDIATE");
            let begun = begun
                .and_then(|()| if manner.read_only { Ok(()) } else { Ok(bank::reshuffle(&conn, 0, 3)?) });
            self.judge("close within", &manner, if manner.read_only { Ok(()) } else { begun })?;
        }
        let closed = ManuallyDrop::into_inner(conn).close().map_err(|(conn, error)| {
            std::mem::forget(conn);
            error
        });
        self.judge("close", &manner, closed.context("closing"))?;
        Ok(())
    }

    fn draw_manner(&mut self) -> Manner {
        let (plan, rng) = (self.plan, &mut self.rng);
        let read_only = plan.onlookers && rng.u32(..5) == 0;
        let checkpoint = [1000, 1000, 20, 3, 0][rng.usize(..5)];
        let cache = [-2000, -2000, 10, 3][rng.usize(..4)];
        let synchronous = ["FULL", "FULL", "EXTRA"][rng.usize(..3)];
        Manner {
            read_only,
            // In exclusive mode SQLite asks for EXCLUSIVE. On a file that is open read-only, the kernel
            // refuses that lock (IOERR_LOCK). So read-only connections do not use this mode.
            exclusive: plan.exclusive > 0 && !read_only && rng.u32(..plan.exclusive) == 0,
            second: plan.second && rng.u32(..3) == 0,
            busy: Duration::from_millis([0, 5, 30, 100][rng.usize(..4)]),
            pragmas: format!(
                "PRAGMA synchronous={synchronous}; PRAGMA cache_size={cache};
                 PRAGMA wal_autocheckpoint={checkpoint};"
            ),
        }
    }

    fn open(&mut self, manner: &Manner) -> Result<Kept> {
        if self.side == Side::Ours {
            register();
        }
        let mode = if manner.read_only { "&mode=ro" } else { "&mode=rw" };
        let uri = |database| self.paths.uri(self.plan, self.side, database, mode);
        let conn = Connection::open(uri(0)).context("opening")?;
        conn.busy_timeout(manner.busy)?;
        if manner.exclusive {
            // The thread sets the mode before SQLite reads the database, so that SQLite keeps the wal-index
            // in the process's own memory.
            conn.execute_batch("PRAGMA locking_mode=EXCLUSIVE").context("locking_mode")?;
        }
        if manner.second {
            conn.execute("ATTACH ? AS two", [uri(1)]).context("ATTACH")?;
        }
        conn.execute_batch(&manner.pragmas).context("pragmas")?;
        Ok(Kept::new(conn))
    }

    /// Records the result of an operation, and returns whether the thread keeps the connection. Returns an
    /// error if the result is a violation.
    fn judge<T>(&mut self, doing: &str, manner: &Manner, result: Result<T>) -> Result<(Option<T>, Next)> {
        let error = match result {
            Ok(done) => {
                self.note(doing, "ok");
                return Ok((Some(done), Next::GoOn));
            }
            Err(error) => error,
        };
        let code = error
            .downcast_ref::<rusqlite::Error>()
            .and_then(rusqlite::Error::sqlite_error)
            .map(|failure| failure.extended_code);
        self.note(doing, &format!("{} {error:#}", code.unwrap_or(-1)));
        let guarded = self.plan.engine.is_some();
        match code.map(|code| verdict(self.side, manner.read_only, guarded, code)) {
            Some(Verdict::Again) => Ok((None, Next::GoOn)),
            Some(Verdict::Reopen) => Ok((None, Next::Close)),
            Some(Verdict::Failure) | None => {
                let code = code.map_or_else(String::new, |code| format!(" (code {code})"));
                Err(anyhow!("{doing} on {} of {manner:?}: {error:#}{code}", self.side.name()))
            }
        }
    }

    fn in_time(doing: &str, start: Instant) -> Result<()> {
        let took = start.elapsed();
        ensure!(took < LONG, "hung: {doing} took {} ms", took.as_millis());
        Ok(())
    }

    fn note(&mut self, doing: &str, outcome: &str) {
        // If a write to the trace fails, that does no harm, because only people read the trace.
        let _ = writeln!(self.trace, "{}\t{}\t{doing}\t{outcome}", now_ns() / 1000, self.side.name());
    }

    /// Performs one operation, chosen at random.
    fn one_thing(&mut self, conn: &Connection, manner: &Manner) -> Result<Next> {
        let database = usize::from(manner.second && self.rng.bool());
        let both: &[usize] =
            if manner.second { [&[0][..], &[1], &[0, 1]][self.rng.usize(..3)] } else { &[0] };
        let drawn = if manner.read_only { self.rng.u32(10..17) } else { self.rng.u32(..28) };
        let start = Instant::now();
        let (doing, result) = match drawn {
            0..=9 => ("commit", self.commit(conn, both)),
            10..=14 => ("look", self.look(conn, both, false)),
            15..=16 => ("hold", self.look(conn, both, true)),
            17 => ("roll back", self.roll_back(conn, database)),
            18..=20 if self.plan.modes => ("mode", self.change_mode(conn, database)),
            // When this commit begins, another process may be in the middle of opening the WAL, and may not
            // have noticed that the mode has changed.
            21..=22 if self.plan.modes => {
                ("mode and commit", self.change_mode(conn, 0).and_then(|()| self.commit(conn, &[0])))
            }
            23..=24 => ("checkpoint", self.checkpoint(conn, database)),
            25 if self.plan.vacuum => {
                ("vacuum", conn.execute_batch(&format!("VACUUM {}", SCHEMAS[database])).context("VACUUM"))
            }
            26 if manner.exclusive => ("normal", Self::leave_exclusive(conn)),
            _ => {
                self.pause_us(8000);
                return Ok(Next::GoOn);
            }
        };
        let (done, next) = self.judge(doing, manner, result)?;
        Self::in_time(doing, start)?;
        if done.is_some() {
            return Ok(next);
        }
        if !conn.is_autocommit() {
            let rolled_back = conn.execute_batch("ROLLBACK").context("ROLLBACK");
            self.judge("roll back after", manner, rolled_back)?;
        }
        self.pause_us(1500);
        let tired = self.rng.u32(..6) == 0;
        Ok(if tired { Next::Close } else { next })
    }

    /// Commits in one of the databases, or in both at once.
    fn commit(&mut self, conn: &Connection, databases: &[usize]) -> Result<()> {
        let begin = ["BEGIN IMMEDIATE", "BEGIN IMMEDIATE", "BEGIN"][self.rng.usize(..3)];
        conn.execute_batch(begin).context("BEGIN")?;
        let mut made = Vec::new();
        for database in databases {
            let found =
                bank::newest_of(conn, *database, self.mind.writer).context("reading the own number")?;
            let seq = self.mind.next(*database, found)?;
            if self.rng.u32(..10) == 0 {
                // These changes are on more pages than a small cache can hold.
                bank::reshuffle(conn, *database, self.rng.i64(1..9)).context("reshuffling")?;
            }
            bank::change(conn, *database, self.mind.writer, seq, &mut self.rng).context("changing")?;
            made.push((*database, seq));
        }
        if self.plan.acknowledge == Acknowledge::BeforeCommit {
            self.acknowledge(&made)?;
        }
        self.end(conn)?;
        self.acknowledge(&made)
    }

    fn end(&mut self, conn: &Connection) -> Result<()> {
        for _ in 0..COMMITS {
            match conn.execute_batch("COMMIT") {
                Err(error) if error.sqlite_error().is_some_and(|error| error.extended_code & 0xff == 5) => {
                    self.pause_us(1000);
                }
                result => return result.context("COMMIT"),
            }
        }
        conn.execute_batch("COMMIT").context("COMMIT")
    }

    fn acknowledge(&mut self, made: &[(usize, i64)]) -> Result<()> {
        for (database, seq) in made {
            self.mind.acknowledge(*database, *seq)?;
        }
        Ok(())
    }

    /// Checks a snapshot of each of these databases. If `hold` is set, also checks that the snapshot does not
    /// change.
    fn look(&mut self, conn: &Connection, databases: &[usize], hold: bool) -> Result<()> {
        let floors = self.mind.floors()?;
        conn.execute_batch("BEGIN").context("BEGIN")?;
        let all = self.rng.u32(..6) == 0;
        for database in databases {
            let view = View::of(conn, *database, all).context("reading")?;
            self.mind.compare(*database, &view, &floors)?;
            if hold {
                self.pause_us(8000);
                let again = View::of(conn, *database, all).context("reading again")?;
                ensure!(
                    again == view,
                    "a snapshot of {} has changed: {view:?}, {again:?}",
                    SCHEMAS[*database]
                );
            }
        }
        conn.execute_batch("COMMIT").context("COMMIT")
    }

    fn roll_back(&mut self, conn: &Connection, database: usize) -> Result<()> {
        conn.execute_batch("BEGIN").context("BEGIN")?;
        bank::reshuffle(conn, database, self.rng.i64(1..9)).context("reshuffling")?;
        self.pause_us(1000);
        conn.execute_batch("ROLLBACK").context("ROLLBACK")
    }

    fn change_mode(&mut self, conn: &Connection, database: usize) -> Result<()> {
        let (schema, mode) = (SCHEMAS[database], MODES[self.rng.usize(..MODES.len())]);
        // Empty the cache. When a connection leaves WAL mode, SQLite itself (at least since 3.40) may
        // continue to use outdated pages in its cache.
        conn.execute_batch("PRAGMA shrink_memory").context("shrink_memory")?;
        let pragma = format!("PRAGMA {schema}.journal_mode={mode}");
        let now: String = conn.query_row(&pragma, [], |row| row.get(0)).with_context(|| pragma.clone())?;
        self.note(&format!("mode {schema}"), &format!("now {now}"));
        Ok(())
    }

    fn checkpoint(&mut self, conn: &Connection, database: usize) -> Result<()> {
        let (schema, kind) = (SCHEMAS[database], CHECKPOINTS[self.rng.usize(..CHECKPOINTS.len())]);
        let pragma = format!("PRAGMA {schema}.wal_checkpoint({kind})");
        conn.query_row(&pragma, [], |_| Ok(())).context(pragma)
    }

    fn leave_exclusive(conn: &Connection) -> Result<()> {
        conn.execute_batch("PRAGMA locking_mode=NORMAL; SELECT n FROM counter").context("locking_mode=NORMAL")
    }
}
