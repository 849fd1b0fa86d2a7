//! Tests a medium that loses the data of one flush of the log but reports this flush as done. Afterwards
//! Duralite must either open the database in the state after some transaction, or refuse to open it. In the
//! second case it must be possible to salvage the content.
//!
//! A log whose end is lost looks like a shorter log. So Duralite may open an image in which acknowledged
//! commits are missing, and the tally counts these images. Duralite has relied on the flush, so it may have
//! written pages of a lost transaction to the database file. Then the database may show a part of that
//! transaction, and the tally counts such images too. If no page was written to the database file, a part of
//! a transaction is a violation. The engine `ppl`, which keeps a log for each page, is an exception: a flush
//! covers parts of several page logs, and nothing says which pages a transaction has changed.

use std::fmt;
use std::fs::File;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use duralite_format::guard::{self, DatabaseHeader};
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::engine::salvage::{self, Contents as Written};
use duralite_wal::{LogError, placement};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::event::{Event, FileId, Recording, is_log};
use crate::failure::Violation;
use crate::model::{Contents, Model, sample};
use crate::setup::{Engine, Setup};
use crate::stage::Stage;
use crate::transactions::{self, Reference};
use crate::workers::Verdict;
use crate::workload::{self, Bounds, Length};

/// The test simulates crashes after these numbers of commits, counted from the dropped flush.
const COMMITS_LATER: [u32; 3] = [1, 2, 6];
/// The largest number of flushes of one run that the test drops.
const DROPPED: usize = 12;

/// The extent of a test.
#[derive(Clone, Copy, Debug)]
pub struct LyingPlan {
    /// The engine.
    pub engine: Engine,
    /// The first run's seed. The next runs use the next seeds.
    pub seed: u64,
    /// The number of images after which the test stops.
    pub images: u64,
    /// The length of a run.
    pub length: Length,
}

/// The extent and the results of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LyingTally {
    /// The number of images opened.
    pub images: u64,
    /// The number of images that opened with every acknowledged transaction.
    pub whole: u64,
    /// The number of images that opened in the state after some transaction, but without the last
    /// acknowledged transaction.
    pub ends_earlier: u64,
    /// The number of images that opened in a state that is not the state after any transaction.
    pub mixed: u64,
    /// The number of images that were refused.
    pub refused: u64,
    /// The number of refused images whose log could not be read, so that only the database file was salvaged.
    pub unreadable: u64,
    /// The number of refused images whose salvaged database is in a state that is not the state after any
    /// transaction.
    pub saved_mixed: u64,
    /// The number of whole transactions that salvage has found after the damage.
    pub later: u64,
}

impl AddAssign for LyingTally {
    fn add_assign(&mut self, other: Self) {
        self.images += other.images;
        self.whole += other.whole;
        self.ends_earlier += other.ends_earlier;
        self.mixed += other.mixed;
        self.refused += other.refused;
        self.unreadable += other.unreadable;
        self.saved_mixed += other.saved_mixed;
        self.later += other.later;
    }
}

impl fmt::Display for LyingTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, whole, ends_earlier, mixed, refused, unreadable, saved_mixed, later } = self;
        write!(
            f,
            "{images} images: {whole} whole, {ends_earlier} without their newest transactions, {mixed} with a part of one, \
             {refused} refused, all of them saved ({saved_mixed} with a part of a transaction, {unreadable} from \
             the database file alone), and {later} later transactions whole"
        )
    }
}

/// Repeats runs with a dropped flush until `plan.images` images have been tested.
///
/// # Errors
/// The outer error says why the test could not run. The inner error is an image that breaks a promise.
pub fn lie(plan: &LyingPlan) -> Verdict<LyingTally> {
    let mut tally = LyingTally::default();
    for seed in plan.seed.. {
        let setup = Setup::for_seed(plan.engine, seed);
        // With these setups, not every acknowledged commit has to be durable. So a lost commit would be no
        // violation.
        if !setup.waits || setup.threads > 1 || !setup.is_wal() {
            continue;
        }
        let stage = Stage::new(setup.beside)?;
        let run = workload::record(&stage, &setup, seed, plan.length, false)
            .with_context(|| format!("the workload of seed {seed} with {}", setup.settings))?;
        let reference = Reference::new(&setup, seed, run.begun + 1)?;
        let out = tempfile::tempdir()?;
        let rig = Rig { stage, setup, seed, reference, out: out.path().join("saved.db") };
        if let Some(violation) = rig.run(&run.recording, plan.images, &mut tally)? {
            return Ok(Err(violation));
        }
        if tally.images >= plan.images {
            break;
        }
    }
    Ok(Ok(tally))
}

struct Rig {
    stage: Stage,
    setup: Setup,
    seed: u64,
    reference: Reference,
    out: PathBuf,
}

/// What the test knows about an image.
#[derive(Clone, Copy)]
struct Image {
    bounds: Bounds,
    /// The last transaction that was acknowledged before the dropped flush.
    before: u32,
    /// Whether the image may show only a part of a transaction. This is possible if the database file was
    /// written after the dropped flush, or if the engine keeps a log for each page.
    may_be_mixed: bool,
}

impl Rig {
    fn run(
        &self,
        recording: &Recording,
        images: u64,
        tally: &mut LyingTally,
    ) -> Result<Option<Box<Violation>>> {
        let mut flushes: Vec<usize> = (0..recording.events.len())
            .filter(|position| self.is_flush_of_log(recording, &recording.events[*position]))
            .collect();
        let mut random = fastrand::Rng::with_seed(self.seed ^ 0x11e5);
        random.shuffle(&mut flushes);
        flushes.truncate(DROPPED);
        flushes.sort_unstable();
        let mut model = Model::new(recording, &self.stage.home());
        let mut bounds = Bounds::default();
        for (position, event) in recording.events.iter().enumerate() {
            if flushes.binary_search(&position).is_ok() && bounds.begun > 0 {
                let mut lied = model.clone();
                lied.drop_flush(event);
                let violation = self.go_on(recording, position, lied, bounds, (&mut random, tally))?;
                if violation.is_some() || tally.images >= images {
                    return Ok(violation);
                }
            }
            model.apply(event);
            bounds.apply(event);
        }
        Ok(None)
    }

    fn path_of<'a>(&self, recording: &'a Recording, file: FileId) -> Option<&'a Path> {
        recording.files.get(file.0 as usize).map(|file| file.path.as_path())
    }

    /// Returns whether the event is a flush of a file that is not one of SQLite's own (the database, `-wal`
    /// and `-journal`). Every other file is the log, or the region in which the log is.
    fn is_flush_of_log(&self, recording: &Recording, event: &Event) -> bool {
        let (Event::Fence { file, .. } | Event::Sync { file, .. } | Event::SyncRange { file, .. }) = event
        else {
            return false;
        };
        let database = self.stage.database();
        let database = database.to_string_lossy();
        let is_sqlites = |path: &Path| {
            let path = path.to_string_lossy();
            ["", "-wal", "-journal"].iter().any(|end| path == format!("{database}{end}"))
        };
        self.path_of(recording, *file).is_some_and(|path| !is_sqlites(path))
    }

    /// Continues the run after the dropped flush, and simulates power failures some commits later.
    fn go_on(
        &self,
        recording: &Recording,
        dropped: usize,
        mut model: Model,
        bounds: Bounds,
        (random, tally): (&mut fastrand::Rng, &mut LyingTally),
    ) -> Result<Option<Box<Violation>>> {
        let mut image =
            Image { bounds, before: bounds.acknowledged, may_be_mixed: self.setup.engine == Engine::PPL };
        let mut commits = 0;
        for (position, event) in recording.events.iter().enumerate().skip(dropped + 1) {
            model.apply(event);
            image.bounds.apply(event);
            let (Event::Write { file, .. } | Event::Store { file, .. } | Event::Truncate { file, .. }) =
                event
            else {
                if !matches!(event, Event::Acknowledged { .. }) {
                    continue;
                }
                commits += 1;
                if COMMITS_LATER.contains(&commits) {
                    let choices = model.choices();
                    for chosen in [vec![0; choices.len()], sample(&choices, random)] {
                        let contents = model.crash(&choices, &chosen);
                        if let Err(what) = self.judge(&contents, image, tally)? {
                            return Ok(Some(self.violation(what, position, image, &contents)));
                        }
                    }
                }
                if commits >= COMMITS_LATER[COMMITS_LATER.len() - 1] {
                    break;
                }
                continue;
            };
            image.may_be_mixed |= self.path_of(recording, *file) == Some(&self.stage.database());
        }
        Ok(None)
    }

    fn violation(&self, what: String, position: usize, image: Image, contents: &Contents) -> Box<Violation> {
        let (setup, seed, contents) = (self.setup.clone(), self.seed, self.stage.relative(contents));
        Box::new(Violation { what, setup, seed, position, bounds: image.bounds, contents, disk: None })
    }

    /// Opens an image, or salvages its content. The inner error says what the test found wrong.
    fn judge(&self, contents: &Contents, image: Image, tally: &mut LyingTally) -> Result<Result<(), String>> {
        tally.images += 1;
        self.stage.set(contents)?;
        match self.open() {
            Ok(Some(number)) if number > image.bounds.begun => {
                return Ok(Err(format!("transaction {number} is there, and was never begun")));
            }
            Ok(Some(number)) if number >= image.bounds.acknowledged => tally.whole += 1,
            Ok(Some(number)) if number >= image.before || image.may_be_mixed => tally.ends_earlier += 1,
            Ok(Some(number)) => {
                let before = image.before;
                return Ok(Err(format!(
                    "{before} were durable before the flush, and only {number} are there"
                )));
            }
            Ok(None) if image.may_be_mixed => tally.mixed += 1,
            Ok(None) => return Ok(Err("opens as of no transaction, and no page had gone home".into())),
            Err(refusal) => {
                tally.refused += 1;
                self.stage.set(contents)?;
                let saved = self.save(contents, image, tally);
                return Ok(saved.map_err(|what| format!("refused ({refusal}), and not saved: {what:#}")));
            }
        }
        Ok(Ok(()))
    }

    /// Opens the stage's database, and returns the number of the transaction after which it has this content;
    /// `None` if there is no such transaction.
    fn open(&self) -> Result<Option<u32>, String> {
        let before = duralite::last_refusal();
        let opened = self.stage.connect(&self.setup);
        let digest = opened.and_then(|conn| Ok((transactions::digest(&conn)?, is_sound(&conn))));
        match digest {
            Ok((digest, is_sound)) => Ok(self.reference.number_of(digest).filter(|_| is_sound)),
            Err(error) if duralite::last_refusal() != before => {
                Err(format!("{error}: {}", duralite::last_error().unwrap_or_default()))
            }
            // The database was opened, but its pages do not fit together.
            Err(error)
                if matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn save(&self, contents: &Contents, image: Image, tally: &mut LyingTally) -> Result<()> {
        let database = self.stage.database();
        let header = std::fs::read(&database)?;
        let DatabaseHeader::Guarded { log_id, .. } = guard::inspect(&header) else {
            anyhow::bail!("the database is not guarded")
        };
        let at = DatabaseAt::new(&database);
        let logs = || contents.iter().filter(|(path, content)| content.is_some() && is_log(path));
        let is_it = |path: &Path| matches!(placement::describe(path), Ok(about) if about.id == log_id);
        let Some((log, _)) = logs().find(|(path, _)| is_it(path)) else {
            // The beginning of the log is lost.
            let is_illegible =
                |path: &Path| matches!(placement::describe(path), Err(LogError::Format { .. }));
            anyhow::ensure!(logs().any(|(path, _)| is_illegible(path)), "the log is not there");
            return self.save_alone(&at, image, tally);
        };
        let mut later = 0;
        let salvaged = placement::salvage(log, &at, &mut |_| {
            later += 1;
            Ok(())
        });
        let mut salvaged = match salvaged {
            Err(LogError::Corrupt { .. } | LogError::NoRegion { .. }) => {
                return self.save_alone(&at, image, tally);
            }
            salvaged => salvaged?,
        };
        anyhow::ensure!(salvaged.damage.is_some(), "no damage was found");
        anyhow::ensure!(later == salvaged.later, "{later} later transactions, {} said", salvaged.later);
        tally.later += later;
        let (mut number, file) = (None, self.new_file()?);
        for what in [Written::BeforeDamage, Written::FileAlone] {
            salvaged.write(&at, (&file, &self.out), what)?;
            // If the rollback journal is damaged, `roll_back` rolls back only a part. That is no failure
            // here.
            if let Err(error) = salvaged.roll_back((&file, &self.out), log_id) {
                anyhow::ensure!(matches!(error, LogError::Corrupt { .. }), error);
            }
            number = self.saved()?;
            if number.is_some() || salvaged.checkpointed.is_none() {
                break;
            }
        }
        for (path, content) in contents {
            anyhow::ensure!(std::fs::read(path).ok() == *content, "{} was changed", path.display());
        }
        // For `ppl`, the salvaged database ends with the last transaction for which the salvage knows every
        // page. The salvage must list the transactions after that one as later ones.
        let is_listed = |number: u32| later >= u64::from(image.before.saturating_sub(number));
        match number {
            Some(number) if number >= image.before => Ok(()),
            Some(number) if self.setup.engine == Engine::PPL && is_listed(number) => Ok(()),
            Some(number) => {
                anyhow::bail!("{} were durable before the flush, and {number} were saved", image.before)
            }
            None if image.may_be_mixed => {
                tally.saved_mixed += 1;
                Ok(())
            }
            None => anyhow::bail!("as of no transaction, and no page had gone home"),
        }
    }

    fn new_file(&self) -> Result<File> {
        std::fs::remove_file(&self.out).ok();
        Ok(salvage::create(&self.out)?)
    }

    /// Salvages the database file alone, because nothing of the log can be read.
    fn save_alone(&self, database: &DatabaseAt, image: Image, tally: &mut LyingTally) -> Result<()> {
        salvage::write_file_alone(database, (&self.new_file()?, &self.out))?;
        tally.unreadable += 1;
        match self.saved()? {
            None if image.may_be_mixed => tally.saved_mixed += 1,
            None => anyhow::bail!("the database file alone is of no transaction"),
            Some(_) => {}
        }
        Ok(())
    }

    /// Returns the number of the transaction after which the database has the content of the salvaged file;
    /// `None` if there is no such transaction.
    fn saved(&self) -> Result<Option<u32>> {
        let uri = format!("file:{}?immutable=1", self.out.display());
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let conn = Connection::open_with_flags(uri, flags)?;
        let digest = transactions::digest(&conn).ok();
        let number = digest.and_then(|digest| self.reference.number_of(digest));
        Ok(number.filter(|_| is_sound(&conn)))
    }
}

fn is_sound(conn: &Connection) -> bool {
    let sound = conn.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    sound.is_ok_and(|said| said == "ok")
}
