//! Traces the writes to a block device, request by request, and finds the file or journal to which each
//! belongs. The WALDIO paper calls such a tool MOST.
//!
//! The kernel's block tracepoints tell where each request goes and who issued it. FIEMAP tells where the
//! blocks of the database and of its logs are. `debugfs` tells where the journal of ext4 is. Without
//! `debugfs`, requests to the journal are recognised by the thread that issues them.
//!
//! ```no_run
//! use duralite_iotrace::{Class, trace};
//! # use std::path::Path;
//! let database = Path::new("/mnt/x.db");
//! let (trace, ()) = trace(Path::new("/mnt"), &[database.to_path_buf()], || { /* commits */ })?;
//! let summary = trace.summary();
//! println!("{} bytes, {} flushes", summary.of(Class::Journal).bytes, summary.flushes);
//! # anyhow::Ok(())
//! ```

mod arrivals;
mod class;
mod command;
mod device;
mod draw;
mod parse;
mod ranges;
mod trace;
mod tracefs;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

pub use class::Class;
pub use draw::{Marker, draw};
pub use trace::{JournalBy, Summary, Trace, TracedFile, Volume, Write};

use arrivals::Arrivals;
use device::Device;
use parse::{Event, Mapping, parse_line, parse_mapping};
use tracefs::Session;
use watch::{Atlas, Target, directory_of};

/// The time between two scans of the files. The collector scans them repeatedly, because logs appear and
/// disappear while the body runs.
const LOOK: Duration = Duration::from_millis(20);
/// The collector spends at most about a ninth of its time on scans. To keep to that, it waits after each
/// scan, in proportion to the scan's duration.
const IDLE_PARTS: u32 = 9;

/// Traces what is written to a device while `body` runs.
///
/// `place` is the device's node, or any file or directory on the device. `watch` lists files and directories.
/// A file whose name ends in `-wal` or `-journal` or contains `-duralite` is a log, and so is every file in a
/// directory. Any other file is a database. A database need not exist yet. The tracer also watches the logs
/// beside a database.
///
/// The tracer makes the kernel write dirty data to the device before `body` runs, but not after `body`. So
/// data that `body` leaves in the page cache does not count.
///
/// # Errors
/// An error if the user is not root, if the kernel has no tracepoints, or if `place` is on no block device.
pub fn trace<R>(place: &Path, watch: &[PathBuf], body: impl FnOnce() -> R) -> Result<(Trace, R)> {
    let is_log = |path: &Path| {
        let name = path.as_os_str().to_string_lossy();
        path.is_dir()
            || ["-wal", "-journal"].iter().any(|end| name.ends_with(end))
            || name.contains("-duralite")
    };
    watch
        .iter()
        .fold(Tracer::at(place), |tracer, path| match is_log(path) {
            true => tracer.log(path),
            false => tracer.database(path),
        })
        .run(body)
}

/// The device and the files to trace.
#[derive(Debug, Clone, Default)]
pub struct Tracer {
    place: Option<PathBuf>,
    targets: Vec<Target>,
    keeps_raw: bool,
}

impl Tracer {
    /// Returns a tracer of the device that holds the first watched file. If no file is watched, the device is
    /// that of the working directory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a tracer of the device with this node, or of the device that holds this file or directory.
    #[must_use]
    pub fn at(place: &Path) -> Self {
        Self { place: Some(place.to_path_buf()), ..Self::default() }
    }

    /// Watches a database, which need not exist yet, and the logs of SQLite and Duralite beside it.
    #[must_use]
    pub fn database(mut self, path: &Path) -> Self {
        self.targets.push(Target::Database(path.to_path_buf()));
        self
    }

    /// Watches a log, or a directory of logs.
    #[must_use]
    pub fn log(mut self, path: &Path) -> Self {
        self.targets.push(Target::Log(path.to_path_buf()));
        self
    }

    /// Keeps the kernel's lines in [`Trace::raw`].
    #[must_use]
    pub fn keep_raw(mut self) -> Self {
        self.keeps_raw = true;
        self
    }

    fn device(&self) -> Result<Device> {
        // A file may not exist yet, but its directory does.
        let place_of = |target: &Target| match target {
            Target::Database(path) | Target::Log(path) if path.exists() => path.clone(),
            Target::Database(path) | Target::Log(path) => directory_of(path).to_path_buf(),
        };
        let first = self.place.clone().or_else(|| self.targets.first().map(place_of));
        let device = Device::of(&first.unwrap_or_else(|| PathBuf::from(".")))?;
        for place in self.targets.iter().map(place_of) {
            if !Device::of(&place)?.same(&device) {
                bail!("{} is on another device than the rest; trace one device at a time", place.display());
            }
        }
        Ok(device)
    }

    /// Traces while `body` runs.
    ///
    /// # Errors
    /// The errors of [`trace`]. Also an error if the files are on several devices.
    pub fn run<R>(self, body: impl FnOnce() -> R) -> Result<(Trace, R)> {
        if !rustix::process::geteuid().is_root() {
            bail!("tracing needs root: the kernel lets nobody else see what goes to a device");
        }
        let device = self.device()?;
        let journal = device.journal();
        device.settle();
        let mut atlas = Atlas::new(self.targets, device.number, device.part.0);
        atlas.look(now());
        let lines = Lines { raw: self.keeps_raw.then(String::new), ..Lines::default() };
        let collector = Collector { session: Session::start(&device)?, atlas, lines };
        let start = now();
        let ended = AtomicBool::new(false);
        let (collected, value) = thread::scope(|scope| {
            let collector = scope.spawn(|| collector.until(&ended));
            let value = {
                let _end = End(&ended);
                body()
            };
            (collector.join(), value)
        });
        let (lines, atlas, lost) = collected.map_err(|_| anyhow!("the tracing thread died"))??;
        let seconds = now() - start;
        let block = device.ext4_block().unwrap_or_default();
        let map = atlas.finish(journal.as_deref().unwrap_or_default(), &lines.mappings, block);
        let mut trace = Trace::new(lines.events, start, &map, &device, journal);
        (trace.seconds, trace.lost, trace.raw) = (seconds, lost, lines.raw);
        Ok((trace, value))
    }
}

/// Tells the collector to stop when this value is dropped. So the collector also stops if the traced code
/// panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Collects events and scans the files, in a separate thread.
struct Collector {
    session: Session,
    atlas: Atlas,
    lines: Lines,
}

/// The events and mappings that the kernel has reported. Also the kernel's lines, if the caller wants to keep
/// them.
#[derive(Default)]
struct Lines {
    events: Vec<Event>,
    mappings: Vec<Mapping>,
    raw: Option<String>,
}

impl Lines {
    fn take(&mut self, text: &str) {
        self.events.extend(text.lines().filter_map(parse_line));
        self.mappings.extend(text.lines().filter_map(parse_mapping));
        if let Some(raw) = &mut self.raw {
            raw.push_str(text);
        }
    }
}

impl Collector {
    /// Collects until `ended` is set. The number in the result is the number of lost events.
    fn until(mut self, ended: &AtomicBool) -> Result<(Lines, Atlas, u64)> {
        let arrivals = Arrivals::new(&self.atlas.directories());
        let mut next = Instant::now();
        while !ended.load(Ordering::Acquire) {
            let begun = Instant::now();
            if begun >= next {
                self.atlas.look(now());
                let text = self.session.drain().context("while tracing")?;
                self.lines.take(&text);
                next = begun + LOOK.max(begun.elapsed() * IDLE_PARTS);
            }
            if arrivals.wait(next.saturating_duration_since(Instant::now())) {
                let begun = Instant::now();
                self.atlas.glance(now());
                thread::sleep(begun.elapsed() * IDLE_PARTS);
            }
        }
        self.atlas.look(now());
        let (text, lost) = self.session.finish()?;
        self.lines.take(&text);
        Ok((self.lines, self.atlas, lost))
    }
}

/// Returns the time now, in seconds, by the clock that the trace uses.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
