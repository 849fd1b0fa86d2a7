//! Lets threads write concurrently, so that several validated transactions wait for one flush, and explores
//! the states that a crash may leave.
//!
//! The test cannot know in which order these transactions are published. So each thread writes to its own
//! area of the database, and the test checks each area separately. After a crash, an area must look as it did
//! after one of its transactions, and no acknowledged transaction may be missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use duralite_crashmodel::window;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::event::{Event, FileKind, Recording};
use crate::failure::Violation;
use crate::many_transactions::{AREAS, TABLES, queries_of_area, statements_in_area};
use crate::memory::{Plan, Tally};
use crate::model::{Model, states_of};
use crate::oracle;
use crate::recorder::Recorder;
use crate::setup::Setup;
use crate::sql::{self, checkpoint, is_busy, is_full, roll_back};
use crate::stage::Stage;
use crate::transactions;
use crate::workers::{self, Verdict};
use crate::workload::{Bounds, under_hook};

/// For each area, a number of transactions.
type Counts = [u32; AREAS as usize];

/// Runs and explores workloads of several threads, on every processor, until `plan.states` crash states have
/// been recovered.
///
/// # Errors
/// The outer error says why the test could not run. The inner error is a state that breaks a promise.
pub fn explore_crowd(plan: &Plan) -> Verdict<Tally> {
    let next = AtomicU64::new(plan.seed);
    let each = Plan { states: plan.states.div_ceil(workers::count()), ..*plan };
    workers::on_each(|| {
        let mut tally = Tally::default();
        while tally.states < each.states {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let setup = Setup::for_writers(plan.engine, seed, true);
            if !setup.waits {
                // With these settings, commits do not wait until they are durable. So nothing counts as
                // acknowledged before the end of the run, and the test could find no loss.
                continue;
            }
            let crowd = Crowd { stage: Stage::new(setup.beside)?, setup, seed, references: Vec::new() };
            if let Some(violation) = crowd.run(&each, &mut tally)? {
                return Ok(Err(violation));
            }
        }
        Ok(Ok(tally))
    })
}

struct Crowd {
    stage: Stage,
    setup: Setup,
    seed: u64,
    /// For each area, the digests of its content: before its first transaction, and after each of its
    /// transactions.
    references: Vec<Vec<u64>>,
}

impl Crowd {
    fn run(mut self, plan: &Plan, tally: &mut Tally) -> Result<Option<Box<Violation>>> {
        let overtaken = AtomicU32::new(0);
        let each = plan.length.steps / AREAS;
        let recording = self.record(each, &overtaken).with_context(|| {
            format!("threads of seed {} with {} on {}", self.seed, self.setup.settings, self.setup.engine)
        })?;
        self.references = (0..AREAS).map(|area| self.reference(area, each)).collect::<Result<_>>()?;
        tally.runs += 1;
        tally.overtaken += u64::from(overtaken.into_inner());
        self.explore(&recording, tally)
    }

    /// Runs a thread for each area. Each thread commits `each` transactions.
    fn record(&self, each: u32, overtaken: &AtomicU32) -> Result<Recording> {
        let recorder = Arc::new(Recorder::default());
        recorder.begin_with(&self.stage.database(), FileKind::Sectors, Vec::new());
        let ran = under_hook(&self.stage, &recorder, || {
            let first = self.stage.connect(&self.setup)?;
            sql::use_mode(&first, sql::WAL)?;
            (1..=TABLES).try_for_each(|number| self.commit(&first, number, &recorder, overtaken))?;
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..AREAS)
                    .map(|thread| {
                        let recorder = &recorder;
                        scope.spawn(move || -> Result<()> {
                            let conn = self.stage.connect(&self.setup)?;
                            conn.busy_timeout(Duration::from_secs(20))?;
                            for nth in 0..each {
                                self.commit(&conn, TABLES + 1 + thread + nth * AREAS, recorder, overtaken)?;
                            }
                            conn.close().map_err(|(_, error)| error.into())
                        })
                    })
                    .collect();
                threads.into_iter().try_for_each(|thread| {
                    thread.join().map_err(|_| anyhow!("a thread of the workload panicked"))?
                })
            })?;
            first.close().map_err(|(_, error)| anyhow::Error::from(error))
        });
        ran?;
        let mut recording = recorder.finish();
        recording.find_volatile();
        Ok(recording)
    }

    /// Commits a transaction. Runs it again whenever another transaction has overtaken it.
    fn commit(
        &self,
        conn: &Connection,
        number: u32,
        recorder: &Recorder,
        overtaken: &AtomicU32,
    ) -> Result<()> {
        let statements = statements_in_area(self.setup.page_bytes, self.seed, number).join("; ");
        recorder.note(Event::Begin { number });
        loop {
            match conn.execute_batch(&format!("BEGIN; {statements}; COMMIT")) {
                Ok(()) => break,
                Err(error) if is_busy(&error) => _ = overtaken.fetch_add(1, Ordering::Relaxed),
                Err(error) if is_full(&error) => {
                    roll_back(conn)?;
                    checkpoint(conn, "TRUNCATE")?;
                }
                Err(error) => return Err(error).with_context(|| format!("transaction {number}")),
            }
            roll_back(conn)?;
        }
        recorder.note(Event::Acknowledged { number });
        Ok(())
    }

    fn reference(&self, area: u32, each: u32) -> Result<Vec<u64>> {
        let conn = Connection::open_in_memory()?;
        let queries = queries_of_area(area);
        let own = (TABLES + 1..).filter(|number| number % AREAS == area).take(each as usize);
        let mut digests = Vec::new();
        for number in (1..=TABLES).chain(own) {
            conn.execute_batch(&statements_in_area(self.setup.page_bytes, self.seed, number).join("; "))?;
            if number >= TABLES {
                digests.push(transactions::digest_of(&conn, &queries)?);
            }
        }
        Ok(digests)
    }

    fn explore(&self, recording: &Recording, tally: &mut Tally) -> Result<Option<Box<Violation>>> {
        let mut model = Model::new(recording, &self.stage.home());
        let (mut acknowledged, mut begun): (Counts, Counts) = (Counts::default(), Counts::default());
        let (mut has_tables, mut changed) = (false, false);
        let mut random = fastrand::Rng::with_seed(self.seed);
        for (position, event) in recording.events.iter().enumerate() {
            // A run has many windows. Exploring some windows of each run finds more than exploring all
            // windows of the first run.
            if has_tables && changed && Model::is_barrier(event) && random.u8(..3) == 0 {
                let choices = model.choices();
                let limits = window::Bounds { states: 3, exhaustive_pieces: 1 };
                let (vectors, exhaustive) =
                    window::pick(&states_of(&choices), limits, self.seed ^ position as u64);
                tally.windows += 1;
                tally.exhaustive += u64::from(exhaustive);
                for chosen in vectors {
                    tally.states += 1;
                    let contents = model.crash(&choices, &chosen);
                    self.stage.set(&contents)?;
                    if let Err(what) = self.judge(acknowledged, begun, tally.states.is_multiple_of(2)) {
                        let (setup, seed) = (self.setup.clone(), self.seed);
                        let (bounds, contents) = (Bounds::default(), self.stage.relative(&contents));
                        let what = format!("threads: {what}");
                        return Ok(Some(Box::new(Violation {
                            what,
                            setup,
                            seed,
                            position,
                            bounds,
                            contents,
                            disk: None,
                        })));
                    }
                }
                changed = false;
            }
            model.apply(event);
            match event {
                Event::Begin { number } if *number > TABLES => begun[area(*number)] = count(*number),
                Event::Acknowledged { number } if *number > TABLES => {
                    acknowledged[area(*number)] = count(*number);
                }
                Event::Acknowledged { number } => has_tables |= *number == TABLES,
                Event::Begin { .. } | Event::Flush { .. } => {}
                _ => changed = true,
            }
        }
        Ok(None)
    }

    /// Recovers the database from the crash state in the stage's directories, and checks each area.
    fn judge(&self, acknowledged: Counts, begun: Counts, concurrent: bool) -> Result<(), String> {
        let setup = Setup { concurrent, ..self.setup.clone() };
        let conn = self.stage.connect(&setup).map_err(|error| format!("cannot be opened: {error}"))?;
        let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        for (area, digests) in (0..).zip(&self.references) {
            let digest = transactions::digest_of(&conn, &queries_of_area(area));
            let digest = digest.map_err(|error| format!("area {area} cannot be read: {error}"))?;
            let found = digests.iter().position(|known| *known == digest);
            let (least, most) = (acknowledged[area as usize], begun[area as usize]);
            if found.is_none_or(|found| !(least..=most).contains(&(found as u32))) {
                return Err(format!(
                    "area {area} has {found:?} transactions, {least} were acknowledged, {most} begun"
                ));
            }
        }
        oracle::assert_sound(&conn)?;
        oracle::close(conn)
    }
}

/// Returns the area of a transaction.
fn area(number: u32) -> usize {
    (number % AREAS) as usize
}

/// Returns the number of transactions in an area, if `number` is the area's last transaction.
fn count(number: u32) -> u32 {
    number / AREAS
}
