//! Cuts the power of a real file system. The workload runs on a disk that logs its writes and syncs. The rig
//! mounts the images that a power cut could leave, recovers the database in them and judges it.
//!
//! The log of `waldio` is on that disk. The log of `nvwal` is in recorded memory, so for each crash the rig
//! chooses one state of the disk and one state of the memory. A mapped database is in both places: its name
//! and its length are on the disk, and its content is in recorded memory, as on a file system with direct
//! access. The emulated mapping also writes this content to the disk. In each image, the rig overwrites it
//! with the content of the recorded memory.

use std::fmt;
use std::fs::File;
use std::ops::AddAssign;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use duralite_crashmodel::disk::{DiskEvent, DiskModel, Pages, Piece};
use duralite_logdisk::{FileSystemKind, ImageMounter, LogDisk, Sink, Volume};

use crate::event::{Event, FileKind};
use crate::failure::Violation;
use crate::hooks::DirectoryHook;
use crate::many_transactions::TABLES;
use crate::model::{Contents, Model, sample};
use crate::oracle::{self, Depth};
use crate::recorder::Recorder;
use crate::setup::{Engine, Setup};
use crate::stage::Stage;
use crate::transactions::Reference;
use crate::workers::{self, Verdict};
use crate::workload::{Bounds, Length, perform, under_this_hook};

const DISK_BYTES: u64 = 16 << 20;
/// The number of images that the rig builds for each power cut. The images differ in the unsynced writes that
/// they have.
const IMAGES_PER_SYNC: u32 = 6;
/// If connections write concurrently, the rig cuts the power at only one out of this many moments.
const SPREAD: u8 = 4;
/// The test commits another transaction after the recovery of every image whose number is a multiple of this.
const USE_ON_EVERY: u64 = 8;

/// The extent of a test.
#[derive(Clone, Debug)]
pub struct PowerPlan {
    /// The engine.
    pub engine: Engine,
    /// The file system.
    pub file_system: FileSystemKind,
    /// More mount options for the run. With `nobarrier`, for example, the test must find lost commits.
    pub mount_options: String,
    /// The first run's seed.
    pub seed: u64,
    /// The test stops after it has recovered this many images.
    pub images: u64,
    /// The length of a run.
    pub length: Length,
    /// Whether connections write concurrently.
    pub concurrent: bool,
}

/// The extent and the results of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerTally {
    /// The number of runs recorded.
    pub runs: u64,
    /// The number of simulated power cuts, each before a sync of the disk, a fence or an acknowledgement.
    pub syncs: u64,
    /// The number of images mounted and recovered.
    pub images: u64,
    /// The number of images with torn blocks that the file system itself would not mount. `images` does not
    /// count them.
    pub refused: u64,
}

impl AddAssign for PowerTally {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.syncs += other.syncs;
        self.images += other.images;
        self.refused += other.refused;
    }
}

impl fmt::Display for PowerTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, syncs, images, refused } = self;
        write!(f, "{images} images at {syncs} moments in {runs} runs; {refused} more, torn, were not mounted")
    }
}

/// Returns why this machine cannot test power cuts; `None` if it can.
#[must_use]
pub fn missing_rig(file_system: FileSystemKind) -> Option<String> {
    duralite_logdisk::missing_rig(file_system)
}

/// Adds the disk's requests to the recording.
struct Requests(Arc<Recorder>);

impl Sink for Requests {
    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.note_request(DiskEvent::Write { at, bytes: bytes.into() });
    }

    fn sync(&self) {
        self.0.note_request(DiskEvent::Sync);
    }
}

/// Runs workloads on every processor and cuts their power, until `plan.images` images have been recovered.
///
/// # Errors
/// The outer error says why the test could not run. The inner error is an image that the oracle rejects.
pub fn cut(plan: &PowerPlan) -> Verdict<PowerTally> {
    cut_counting(plan, &AtomicU64::new(0))
}

/// Cuts the power as [`cut`] does. When the images of a run have been recovered, adds their number to
/// `images`.
///
/// # Errors
/// The errors of [`cut`].
pub fn cut_counting(plan: &PowerPlan, images: &AtomicU64) -> Verdict<PowerTally> {
    let next = AtomicU64::new(plan.seed);
    let each = PowerPlan { images: plan.images.div_ceil(workers::count()), ..plan.clone() };
    workers::on_each(|| cut_runs(&each, &next, images))
}

fn cut_runs(plan: &PowerPlan, next: &AtomicU64, images: &AtomicU64) -> Verdict<PowerTally> {
    let mut tally = PowerTally::default();
    let mut mounter = ImageMounter::new(plan.file_system, "");
    while tally.images < plan.images {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let setup = Setup::for_writers(plan.engine, seed, plan.concurrent);
        let run = Cut::record(plan, setup, seed).with_context(|| format!("the workload of seed {seed}"))?;
        tally.runs += 1;
        let before = tally.images;
        if let Some(violation) = run.explore(plan, &mut mounter, &mut tally)? {
            return Ok(Err(violation));
        }
        images.fetch_add(tally.images - before, Ordering::Relaxed);
    }
    Ok(Ok(tally))
}

/// A recorded run.
struct Cut {
    setup: Setup,
    seed: u64,
    recording: crate::event::Recording,
    reference: Reference,
    /// The path of the database in the run.
    database: PathBuf,
    /// The stage for memory that is on no disk: logs, and the content of a mapped database.
    memory: Stage,
}

impl Cut {
    fn record(plan: &PowerPlan, setup: Setup, seed: u64) -> Result<Self> {
        let recorder = Arc::new(Recorder::default());
        let disk = LogDisk::new(DISK_BYTES, Arc::new(Requests(Arc::clone(&recorder))))?;
        let volume = Volume::make(disk.file(), plan.file_system, &[], &plan.mount_options)?;
        let memory = Stage::new(false)?;
        let in_memory = setup.engine.is_in_memory();
        let stage = stage_on(volume.path(), in_memory.then_some(&memory))?;
        let file = File::create(stage.database())?;
        file.sync_all()?;
        let work = || Ok::<_, anyhow::Error>(perform(&stage, &setup, seed, plan.length, &recorder)?.0);
        let begun = if setup.engine.maps_home() {
            recorder.begin_with(&stage.database(), FileKind::Sectors, Vec::new());
            let hook = DirectoryHook::new(Arc::clone(&recorder)).on_disk(Arc::new(file));
            under_this_hook(&stage, &recorder, hook, work)?
        } else {
            drop(file);
            let _hook = in_memory.then(|| {
                let hook = Arc::new(DirectoryHook::new(Arc::clone(&recorder)));
                duralite_wal::placement::hook(&stage.log_dir(), hook)
            });
            work()?
        };
        let database = stage.database();
        volume.unmount()?;
        let recording = recorder.finish();
        let reference = Reference::new(&setup, seed, begun + 2)?;
        Ok(Self { setup, seed, recording, reference, database, memory })
    }

    /// Returns what a crash leaves in memory, with the paths to which the rig then writes it.
    fn left_in_memory(&self, model: &Model, random: &mut fastrand::Rng) -> Contents {
        let choices = model.choices();
        let left = model.crash(&choices, &sample(&choices, random));
        let home = self.database.parent();
        let placed = left.into_iter().filter_map(|(path, content)| match path {
            path if path == self.database => Some((self.memory.database(), content)),
            path if path.parent() == home => None,
            path => Some((path, content)),
        });
        placed.collect()
    }

    fn explore(
        &self,
        plan: &PowerPlan,
        mounter: &mut ImageMounter,
        tally: &mut PowerTally,
    ) -> Result<Option<Box<Violation>>> {
        let mut disk = DiskModel::new(Pages::new(DISK_BYTES));
        let mut memory = Model::over_disk(&self.recording, &self.database);
        let mut bounds = Bounds::default();
        let mut random = fastrand::Rng::with_seed(self.seed ^ 0xd15c);
        for (position, event) in self.recording.events.iter().enumerate() {
            let cuts_here = match event {
                Event::Disk(DiskEvent::Sync) => disk.pending() > 0,
                // Cut also before some fences and acknowledgements, to notice if something that had to be
                // durable was not flushed.
                Event::Fence { .. } | Event::Acknowledged { .. } => random.u8(..4) == 0,
                _ => false,
            };
            // Transactions overlap only after the workload has made the tables. So cut only after that, at
            // moments that are spread over the rest of the run.
            let mut is_for_many = || bounds.begun > TABLES && random.u8(..SPREAD) == 0;
            if cuts_here && bounds.begun > 0 && (!plan.concurrent || is_for_many()) {
                tally.syncs += 1;
                for nth in 0..IMAGES_PER_SYNC {
                    let (image, torn) = image_of(&disk, nth, &mut random);
                    let left = self.left_in_memory(&memory, &mut random);
                    tally.images += 1;
                    let depth =
                        if tally.images.is_multiple_of(USE_ON_EVERY) { Depth::UseOn } else { Depth::Recover };
                    self.memory.set(&left)?;
                    let Self { memory, setup, reference, .. } = self;
                    let judged = recover(mounter, &image, memory, setup, reference, bounds, depth)?;
                    let what = match judged {
                        Judged::Sound => None,
                        // A power cut may tear the file system's superblock, which is larger than a sector.
                        // The file system checks it before it reads the journal, and may refuse the mount.
                        Judged::Refused if torn => {
                            tally.images -= 1;
                            tally.refused += 1;
                            None
                        }
                        Judged::Refused => Some(REFUSED.to_owned()),
                        Judged::Broken(what) => Some(what),
                    };
                    if let Some(what) = what {
                        let (setup, seed) = (self.setup.clone(), self.seed);
                        let contents = self.memory.relative(&left);
                        let disk = Some((plan.file_system, image));
                        let violation = Violation { what, setup, seed, position, bounds, contents, disk };
                        return Ok(Some(Box::new(violation)));
                    }
                    if tally.images >= plan.images {
                        return Ok(None);
                    }
                }
            }
            match event {
                Event::Disk(request) => disk.apply(request),
                other => memory.apply(other),
            }
            bounds.apply(event);
        }
        Ok(None)
    }
}

/// Mounts an image, and recovers the database from it and from memory.
///
/// # Errors
/// An error that says why the test could not run.
pub fn recover(
    mounter: &mut ImageMounter,
    image: &Pages,
    memory: &Stage,
    setup: &Setup,
    reference: &Reference,
    bounds: Bounds,
    depth: Depth,
) -> Result<Judged> {
    let in_memory = setup.engine.is_in_memory();
    let judged = mounter.with_image(image, |path| -> Result<Judged> {
        let stage = stage_on(path, in_memory.then_some(memory))?;
        if setup.engine.maps_home() {
            put_memory(&memory.database(), &stage.database())?;
        }
        let judged = oracle::check(&stage, setup, reference, bounds, depth);
        Ok(judged.map_or_else(Judged::Broken, |_| Judged::Sound))
    });
    match judged {
        Ok(judged) => judged,
        Err(duralite_logdisk::Error::Mount { .. }) => Ok(Judged::Refused),
        Err(error) => Err(error.into()),
    }
}

/// Copies the surviving content of the database's memory into the file, up to the file's length on this file
/// system.
fn put_memory(left: &Path, database: &Path) -> Result<()> {
    let left = std::fs::read(left)?;
    let Ok(file) = File::options().write(true).open(database) else { return Ok(()) };
    let length = file.metadata()?.len().min(left.len() as u64);
    file.write_all_at(&left[..length as usize], 0)?;
    Ok(())
}

/// The message for an image that is [`Judged::Refused`].
pub const REFUSED: &str = "the file system cannot be mounted";

/// The verdict on an image.
pub enum Judged {
    /// Recovery succeeds on the image.
    Sound,
    /// The file system would not mount the image.
    Refused,
    /// The oracle rejects the image. The text says why.
    Broken(String),
}

fn stage_on(volume: &Path, memory: Option<&Stage>) -> Result<Stage> {
    let home = volume.canonicalize()?.join("home");
    std::fs::create_dir_all(&home)?;
    let log_dir = memory.map_or_else(|| home.clone(), Stage::log_dir);
    Ok(Stage::of(home, log_dir))
}

/// Returns an image that a power cut may leave: nothing unsynced, everything, the oldest writes, all writes
/// but one, random sectors, or random pages. Also returns whether blocks of the file system may be torn.
fn image_of(disk: &DiskModel, nth: u32, random: &mut fastrand::Rng) -> (Pages, bool) {
    let image = match nth {
        4 => disk.image_by_chance(Piece::Sector, random),
        nth => disk.image_of_pages(nth, random),
    };
    (image, nth == 4)
}
