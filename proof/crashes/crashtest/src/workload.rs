//! Records runs of SQL. A run has commits of several connections, rollbacks, checkpoints of every kind,
//! readers that pin the log, logs that grow and start over, and a guard that is raised and lifted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rusqlite::Connection;

use crate::event::{Event, FileKind, Recording};
use crate::hooks::{DirectoryHook, tap_files};
use crate::many_writers::{ManyWriters, Overlaps};
use crate::recorder::Recorder;
use crate::setup::{ROLLBACK_MODES, Setup};
use crate::sql::{self, checkpoint, is_full, roll_back, use_mode};
use crate::stage::Stage;
use crate::transactions::{self, Reference};

/// The length of a run.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// The number of steps, each a transaction or another action.
    pub steps: u32,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The events of the run.
    pub recording: Recording,
    /// The number of the last transaction begun.
    pub begun: u32,
    /// The counts of transactions that conflicted with others, or were merged with them.
    pub overlaps: Overlaps,
}

/// Runs a workload on an empty stage and records it.
///
/// # Errors
/// Any error that SQLite should not have returned.
pub fn record(stage: &Stage, setup: &Setup, seed: u64, length: Length, sites: bool) -> Result<Run> {
    let recorder = Arc::new(Recorder::new(sites));
    recorder.begin_with(&stage.database(), FileKind::Sectors, Vec::new());
    let (begun, overlaps) = under_hook(stage, &recorder, || perform(stage, setup, seed, length, &recorder))?;
    let mut recording = recorder.finish();
    recording.find_volatile();
    Ok(Run { recording, begun, overlaps })
}

/// Runs a setup's workload. Returns the number of the last transaction begun, and how often transactions
/// conflicted with others or were merged with them.
///
/// # Errors
/// Any error that SQLite should not have returned.
pub fn perform(
    stage: &Stage,
    setup: &Setup,
    seed: u64,
    length: Length,
    recorder: &Recorder,
) -> Result<(u32, Overlaps)> {
    if setup.concurrent {
        let mut writers = ManyWriters::new(stage, setup, seed, recorder)?;
        writers.all_steps(length.steps)?;
        return Ok((writers.begun(), writers.overlaps()));
    }
    let begun = if setup.threads > 1 {
        crowd(stage, setup, seed, length, recorder)
    } else {
        Script::new(stage, setup, seed, recorder)?.run(length)
    };
    Ok((begun?, Overlaps::default()))
}

/// Runs `body` on a stage while the stage's files and logs are recorded.
pub fn under_hook<T>(stage: &Stage, recorder: &Arc<Recorder>, body: impl FnOnce() -> T) -> T {
    under_this_hook(stage, recorder, DirectoryHook::new(Arc::clone(recorder)), body)
}

/// Like [`under_hook`], but with a hook that the caller provides.
pub fn under_this_hook<T>(
    stage: &Stage,
    recorder: &Arc<Recorder>,
    hook: DirectoryHook,
    body: impl FnOnce() -> T,
) -> T {
    let hook = Arc::new(hook);
    let _log_dir = duralite_wal::placement::hook(&stage.log_dir(), hook.clone());
    let _names = duralite_wal::placement::hook(&stage.home(), hook);
    let _home = tap_files(&stage.home(), Arc::clone(recorder));
    body()
}

/// A workload of several connections in one thread. The seed decides what the workload does.
pub struct Script<'a> {
    stage: &'a Stage,
    setup: &'a Setup,
    seed: u64,
    recorder: &'a Recorder,
    random: fastrand::Rng,
    connections: Vec<Connection>,
    /// Whether the last connection holds a snapshot.
    pinned: bool,
    committed: u32,
    begun: u32,
}

impl<'a> Script<'a> {
    /// Opens the connections of a script, in the setup's journal mode.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn new(stage: &'a Stage, setup: &'a Setup, seed: u64, recorder: &'a Recorder) -> Result<Self> {
        let random = fastrand::Rng::with_seed(seed ^ 0x5c21);
        let connections = Vec::new();
        let mut script =
            Self { stage, setup, seed, recorder, random, connections, pinned: false, committed: 0, begun: 0 };
        script.open()?;
        Ok(script)
    }

    /// Returns the number of the last commit.
    #[must_use]
    pub fn committed(&self) -> u32 {
        self.committed
    }

    /// Returns the number of the last transaction begun.
    #[must_use]
    pub fn begun(&self) -> u32 {
        self.begun
    }

    fn open(&mut self) -> Result<()> {
        for _ in 0..3 {
            let conn = self.stage.connect(self.setup).context("cannot open")?;
            use_mode(&conn, &self.setup.journal_mode)?;
            self.connections.push(conn);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.pinned = false;
        for conn in self.connections.drain(..) {
            conn.close().map_err(|(_, error)| error).context("cannot close")?;
        }
        Ok(())
    }

    /// Runs the script.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn run(mut self, length: Length) -> Result<u32> {
        self.all_steps(length).map(|()| self.begun)
    }

    /// Takes every step, and closes the connections.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn all_steps(&mut self, length: Length) -> Result<()> {
        self.commit()?;
        for _ in 0..length.steps {
            self.step()?;
        }
        self.close()
    }

    /// Reads the whole database on each open connection. Each must see the state after some commit, or get an
    /// error.
    ///
    /// # Errors
    /// An error if a connection sees anything else.
    pub fn look_on(&self, reference: &Reference) -> Result<()> {
        for conn in &self.connections {
            let _ = roll_back(conn);
            if let Ok(digest) = transactions::digest(conn) {
                let seen = reference.number_of(digest);
                anyhow::ensure!(
                    seen.is_some_and(|number| number <= self.begun),
                    "a connection sees the state after no transaction"
                );
            }
        }
        Ok(())
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn step(&mut self) -> Result<()> {
        match self.random.u8(..24) {
            0..15 => self.commit(),
            15 => self.roll_back(),
            16..19 => self.checkpoint(),
            19 | 20 => self.pin_or_release(),
            21 => self.reopen(),
            22 if self.random.bool() => self.change_mode(),
            22 => self.vacuum(),
            _ => self.replace(),
        }
    }

    fn commit(&mut self) -> Result<()> {
        let number = self.committed + 1;
        let writers = self.connections.len() - usize::from(self.pinned);
        let conn = &self.connections[self.random.usize(..writers)];
        self.recorder.note(Event::Begin { number });
        self.begun = number;
        let text = transactions::sql(self.seed, number);
        match sql::commit(conn, &text) {
            Err(error) if is_full(&error) => {
                roll_back(conn)?;
                self.unpin()?;
                let conn = &self.connections[0];
                checkpoint(conn, "TRUNCATE")?;
                match sql::commit(conn, &text) {
                    // The transaction is larger than the log may become.
                    Err(error) if is_full(&error) => return Ok(roll_back(conn)?),
                    done => done.with_context(|| format!("transaction {number}, after a checkpoint"))?,
                }
            }
            done => done.with_context(|| format!("transaction {number}"))?,
        }
        self.committed = number;
        if self.setup.waits {
            self.recorder.note(Event::Acknowledged { number });
        }
        Ok(())
    }

    fn roll_back(&mut self) -> Result<()> {
        let number = self.committed + 1;
        let text = transactions::sql(self.seed ^ 1, number.max(2));
        let conn = &self.connections[0];
        match conn.execute_batch(&format!("BEGIN IMMEDIATE; {text}")) {
            Err(error) if !is_full(&error) => Err(error).context("a transaction to be rolled back"),
            _ => Ok(roll_back(conn)?),
        }
    }

    fn checkpoint(&mut self) -> Result<()> {
        let kind = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"][self.random.usize(..4)];
        checkpoint(&self.connections[self.random.usize(..2)], kind)
    }

    /// Begins a read transaction that stays open, or ends it. Does this only in WAL mode: otherwise a reader
    /// would keep writers out.
    fn pin_or_release(&mut self) -> Result<()> {
        if self.pinned || !self.setup.is_wal() {
            return self.unpin();
        }
        if let Some(conn) = self.connections.last() {
            conn.execute_batch("BEGIN; SELECT count(*) FROM counter")?;
            self.pinned = true;
        }
        Ok(())
    }

    fn unpin(&mut self) -> Result<()> {
        if std::mem::take(&mut self.pinned)
            && let Some(conn) = self.connections.last()
        {
            conn.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    /// Closes all connections, and opens them again. The last close lifts the guard and deletes the log.
    fn reopen(&mut self) -> Result<()> {
        self.close()?;
        self.recorder.note(Event::Acknowledged { number: self.committed });
        self.open()
    }

    fn replace(&mut self) -> Result<()> {
        let conn = self.connections.remove(0);
        conn.close().map_err(|(_, error)| error)?;
        let conn = self.stage.connect(self.setup)?;
        use_mode(&conn, &self.setup.journal_mode)?;
        self.connections.insert(0, conn);
        Ok(())
    }

    /// Changes to another journal mode and back, at `synchronous=FULL` or EXTRA. The tests do not cover
    /// rollback journals at NORMAL, where SQLite syncs the journal's header and content together. If a crash
    /// at NORMAL leaves the journal of a TRUNCATE or PERSIST transaction, even stock SQLite fails under this
    /// model with "file is not a database".
    fn change_mode(&mut self) -> Result<()> {
        self.close()?;
        self.recorder.note(Event::Acknowledged { number: self.committed });
        let conn = self.stage.connect(self.setup)?;
        let rollback = ROLLBACK_MODES[self.random.usize(..3)];
        let mode = if self.setup.is_wal() || self.random.bool() { rollback } else { sql::WAL };
        use_mode(&conn, mode)?;
        conn.close().map_err(|(_, error)| error)?;
        self.open()
    }

    fn vacuum(&mut self) -> Result<()> {
        self.unpin()?;
        match self.connections[0].execute_batch("VACUUM") {
            Err(error) if !is_full(&error) => Err(error).context("VACUUM"),
            _ => Ok(()),
        }
    }
}

/// Runs several threads that commit at the same time, so that one flush makes several transactions durable.
fn crowd(stage: &Stage, setup: &Setup, seed: u64, length: Length, recorder: &Recorder) -> Result<u32> {
    let first = stage.connect(setup)?;
    use_mode(&first, &setup.journal_mode)?;
    let commit = |conn: &Connection| -> Result<()> {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let number = match conn.query_row("SELECT total FROM counter", [], |row| row.get::<_, u32>(0)) {
            Ok(total) => total + 1,
            Err(_) => 1,
        };
        conn.execute_batch(&transactions::sql(seed, number))?;
        recorder.note(Event::Begin { number });
        conn.execute_batch("COMMIT").with_context(|| format!("transaction {number}"))?;
        if setup.waits {
            recorder.note(Event::Acknowledged { number });
        }
        Ok(())
    };
    commit(&first)?;
    let each = length.steps / setup.threads;
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..setup.threads)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let conn = stage.connect(setup)?;
                    conn.busy_timeout(Duration::from_secs(20))?;
                    for _ in 0..each {
                        match commit(&conn) {
                            Err(error) if error.downcast_ref().is_some_and(is_full) => {
                                roll_back(&conn)?;
                                checkpoint(&conn, "TRUNCATE")?;
                            }
                            other => other?,
                        }
                    }
                    conn.close().map_err(|(_, error)| error)?;
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    for result in results {
        result.map_err(|_| anyhow!("a thread of the workload panicked"))??;
    }
    let total = first.query_row("SELECT total FROM counter", [], |row| row.get(0))?;
    first.close().map_err(|(_, error)| error)?;
    Ok(total)
}

/// The last transaction begun before a given event of the recording, and the last one acknowledged before
/// that event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// The state must contain all transactions up to this one.
    pub acknowledged: u32,
    /// The state may contain no transaction after this one.
    pub begun: u32,
}

impl Bounds {
    /// Applies the next event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Begin { number } => self.begun = self.begun.max(*number),
            Event::Acknowledged { number } => self.acknowledged = self.acknowledged.max(*number),
            _ => {}
        }
    }
}
