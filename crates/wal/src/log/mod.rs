//! One attached log, as a VFS uses it.

pub mod follow;
pub mod offline;
mod recover;
pub mod stream;

pub use recover::recover;
pub use stream::Sealed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_format::LogId;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, Guarantee, Segment};

use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::descriptor::{Descriptor, LogPlacement};
use crate::engine::home::{DatabaseFile, Home};
use crate::engine::rollback::RollbackJournal;
use crate::engine::settings::{ON_CLOSE, OnClose};
use crate::engine::{Clock, DurabilityWaiter, Engine, Fill};
use crate::log::stream::{WalStream, newest_commit};
use crate::metrics::Recorder;
use crate::placement::{self, OpenLog, Outside, Pause};
use crate::shared::log_file;
use crate::shared::pins::{Followers, PINS_OFFSET, Pins, Recycling};
use crate::{DatabaseIdentity, EngineOptions, ErrorKind, LogError};

/// The log of one database, attached by this process. The parameter `file` of a method is always the database file, as
/// described in [`crate::engine`].
pub struct Log {
    kind: &'static Descriptor,
    stream: WalStream<dyn Engine>,
    segment: Arc<FileSegment>,
    pins: Pins,
    recorder: Option<Arc<Recorder>>,
    path: PathBuf,
    segment_path: PathBuf,
    /// The log's file. Its `flock` tells other processes that the log is in use.
    file: OwnFile,
    /// Other logs that were renamed because this log was to get their name: the old and the new path of each. They
    /// belong to earlier databases.
    moved: Vec<(PathBuf, PathBuf)>,
    /// Whether this process made the log and has not made it durable yet.
    is_provisional: bool,
    /// The reason why a sync does not make data survive a power loss; `None` if no such reason is known.
    unsynced: Option<String>,
    /// The state of an outside reader, that is, a user who may only read the log; `None` for all other users.
    outside: Option<Arc<Outside>>,
    on_close: OnClose,
    /// The reason why this process acknowledges no more commits (invariant 9); `None` if it still acknowledges commits.
    poisoned: Option<String>,
    /// Whether an operation is running. The flag stays set if the operation panics and a caller catches the panic,
    /// because the state of the log is then in doubt.
    unfinished: bool,
}

/// The log's properties and paths.
impl Log {
    /// Makes a log for the database in `file`. The log and its directory entry are durable on return, unless
    /// [`Log::is_provisional`] returns `true`.
    ///
    /// # Errors
    /// `NoSpace`, `Io` (log directory missing or read-only), `Medium` (not DAX).
    pub fn create(
        file: &dyn DatabaseFile,
        placement: &LogPlacement,
        options: &EngineOptions,
        db: &DatabaseIdentity,
        page_bytes: u32,
    ) -> Result<Self, LogError> {
        let open = placement::create(file, placement, options, db, page_bytes)?;
        // The log is new, so there is nothing to recover.
        let (log, _) = Self::over(open, options.on_close);
        Ok(log)
    }

    /// Makes a log from an opened one that is not recovered yet. Also returns the lock that keeps other processes from
    /// attaching it.
    pub(crate) fn over(open: OpenLog, on_close: OnClose) -> (Self, Option<OwnFile>) {
        let recorder = open.recorder().map(Arc::new);
        let OpenLog {
            kind,
            engine,
            segment,
            path,
            segment_path,
            file,
            moved,
            is_provisional,
            unsynced,
            outside,
            alone: _,
            is_of_another_boot: _,
            attaching,
        } = open;
        let pins = Pins::new(Arc::clone(&segment) as Arc<dyn Segment>, PINS_OFFSET);
        let log = Self {
            kind,
            stream: WalStream::over(engine),
            segment,
            pins,
            recorder,
            path,
            segment_path,
            file,
            moved,
            is_provisional,
            unsynced,
            outside,
            on_close,
            poisoned: None,
            unfinished: false,
        };
        (log, attaching)
    }

    /// Returns the identity of the log.
    #[must_use]
    pub fn id(&self) -> LogId {
        self.stream.engine().id()
    }

    /// Returns the path of the log's file when it was attached.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the present path of the log's file; `None` if somebody has deleted it.
    ///
    /// # Errors
    /// `Io`.
    pub fn path_now(&self) -> Result<Option<PathBuf>, LogError> {
        placement::where_now(&self.path, &self.file, self.id())
    }

    /// Returns the file of the segment, the memory that the processes using the log share.
    #[must_use]
    pub fn segment_path(&self) -> &Path {
        &self.segment_path
    }

    /// Returns whether somebody has deleted the log's file while this process uses it.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        placement::is_deleted(&self.file)
    }

    /// Returns the logs that were renamed because this new log was to get their name: the old and the new path of each.
    /// They belong to earlier databases, and are kept.
    #[must_use]
    pub fn moved(&self) -> &[(PathBuf, PathBuf)] {
        &self.moved
    }

    /// Returns the engine that keeps the log.
    #[must_use]
    pub fn engine(&self) -> &'static Descriptor {
        self.kind
    }

    /// Returns a description of the medium, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.stream.engine().describe()
    }

    /// Returns the page size in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.stream.engine().page_bytes()
    }

    /// Returns the survival guarantee of a commit.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        if self.unsynced.is_some() { Guarantee::ProcessCrash } else { self.stream.engine().guarantee() }
    }

    /// Returns the reason why this log promises less durability than its medium could provide; `None` if there is none.
    #[must_use]
    pub fn why_unsynced(&self) -> Option<&str> {
        self.unsynced.as_deref()
    }

    /// Returns the metrics, each with its name. Counters count what this process has done since it attached the log.
    #[must_use]
    pub fn metrics(&self) -> Vec<(&'static str, String)> {
        self.stream.engine().metrics()
    }

    /// Returns how much of the log's usual size is in use, as of the last operation, and whether the log should start over
    /// soon.
    #[must_use]
    pub fn fill(&self) -> (Fill, bool) {
        let engine = self.stream.engine();
        (engine.room(), engine.is_short())
    }

    /// Applies the settings that may change while the log is in use. They take effect with the next transaction.
    pub fn configure(&mut self, options: &EngineOptions) {
        self.on_close = options.on_close;
        self.stream.engine_mut().configure(options);
    }

    /// Takes the time of commits from this clock instead of the system's clock.
    pub fn set_clock(&mut self, clock: Clock) {
        self.stream.engine_mut().set_clock(clock);
    }
}

/// What processes share through the log.
impl Log {
    /// Returns the segment, the memory shared with the other processes that use the log.
    #[must_use]
    pub fn segment(&self) -> &Arc<FileSegment> {
        &self.segment
    }

    /// Returns the home that the engine puts in front of the database file; `None` if the engine has no home.
    #[must_use]
    pub fn home(&self) -> Option<Arc<dyn Home>> {
        self.stream.engine().home()
    }

    /// Returns the store of the database's rollback journal; `None` if SQLite keeps the journal in a file.
    #[must_use]
    pub fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        self.stream.engine().rollback_journal()
    }

    /// Returns the waiter that makes sealed transactions durable. Returns `None` if no commit has to wait, because the
    /// write that seals a transaction makes it durable (but see [`crate::SyncMode::Async`]).
    #[must_use]
    pub fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        self.stream.engine().durability_waiter()
    }

    /// Returns the metrics block of this process, which counts its use of the log; `None` for a user who may only read the
    /// log.
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.clone()
    }

    /// Returns the state of an outside reader, that is, a user who may only read the log; `None` for all other users.
    #[must_use]
    pub fn outside(&self) -> Option<&Arc<Outside>> {
        self.outside.as_ref()
    }

    /// Attaches the log again for a user who may only read it, if other processes have used the log since this reader
    /// last checked. Returns whether other processes use the log now.
    ///
    /// # Errors
    /// `Busy` while a process attaches the log; as [`Log::attach`].
    pub fn look_again(&mut self, pause: Pause<'_>) -> Result<bool, LogError> {
        let Some(outside) = &self.outside else { return Ok(true) };
        if let Some(engine) = outside.look_again(pause)? {
            self.stream = WalStream::over(engine);
            self.poisoned = None;
        }
        Ok(outside.is_live())
    }

    /// Fails with `Busy` for a user who may only read the log, if other processes have recovered the log since this process
    /// attached it. In that case what this process has read is not valid.
    pub(crate) fn check_outside(&self) -> Result<(), LogError> {
        let engine = self.stream.engine();
        let is_lost = |outside: &Arc<Outside>| outside.is_lost() || outside.is_overtaken(engine);
        if self.outside.as_ref().is_some_and(is_lost) {
            let what = "the log has been recovered since the transaction began; begin the transaction again";
            return Err(LogError::Busy { path: self.path.clone(), what });
        }
        Ok(())
    }
}

/// SQLite's byte stream.
impl Log {
    /// Returns the size of the stream in bytes.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn size(&mut self) -> Result<u64, LogError> {
        self.guarded(WalStream::size)
    }

    /// Reads the stream from byte `offset` on into `buf`. Returns how many bytes it read.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn read(&mut self, file: &dyn DatabaseFile, offset: u64, buf: &mut [u8]) -> Result<usize, LogError> {
        let read = self.guarded(|stream| stream.read(file, offset, buf));
        self.check_outside()?;
        read
    }

    /// Reads the page in a committed frame, for a connection whose read mark keeps the frame in the log.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn read_frame(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        self.guarded(|stream| {
            let engine = stream.engine_mut();
            engine.refresh()?;
            engine.read_page(file, frame, page)
        })
    }

    /// Returns, for each of these committed frames, its database page and the size of the database in pages (0 unless the
    /// frame is a commit frame). The caller holds the WRITE lock.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`; `Unexpected` for a frame that does not exist.
    pub fn frames_in(&mut self, frames: std::ops::RangeInclusive<u32>) -> Result<Vec<(u32, u32)>, LogError> {
        self.guarded(|stream| {
            let engine = stream.engine_mut();
            engine.refresh()?;
            let frame = |number| engine.frame(number).ok_or(LogError::Unexpected("a frame number"));
            frames.map(|number| frame(number).map(|frame| (frame.page_number, frame.db_pages))).collect()
        })
    }

    /// Processes a write by SQLite. If the write completes a commit frame, seals the transaction and returns it. Before a
    /// write at offset 0 the caller must have synced the database file (invariant 6).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`, `Busy` and `Dropped` fail this write only; any other error poisons the log.
    pub fn write(
        &mut self,
        file: &dyn DatabaseFile,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        if offset == 0 {
            self.check_pins()?;
        }
        let acknowledged = self.acknowledged();
        let written = self.guarded(|stream| {
            stream.set_acknowledged(acknowledged);
            stream.write(file, offset, data)
        });
        if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            // Permit the log to start over, although a follower may lose transactions that it has not read yet.
            // Otherwise the log would have to refuse every commit.
            self.pins.press(self.stream.engine().origin().position);
        }
        written
    }

    /// Truncates the stream, and with it the log's file. The caller must already have synced the database file
    /// (invariant 6).
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn truncate(&mut self, file: &dyn DatabaseFile, size: u64) -> Result<(), LogError> {
        if size == 0 {
            self.check_pins()?;
        }
        self.guarded(|stream| stream.truncate(file, size))
    }

    /// Allows the log's file to shrink to this many bytes whenever the log starts over.
    pub fn limit_size(&mut self, bytes: Option<u64>) {
        self.stream.limit_size(bytes);
    }

    /// Frees the space of a transaction that was rolled back. The VFS calls this method when SQLite releases the WRITE
    /// lock.
    pub fn end_write(&mut self) {
        if self.stream.engine().has_staged() {
            // An error here is ignored, because it occurs again in the next writer's operation.
            let _ = self.guarded(WalStream::end_write);
        }
    }

    /// Returns whether a write of `bytes` may make the open transaction so large that it has to wait until every
    /// earlier transaction is durable. A caller may want to call [`DurabilityWaiter::wait_all`] first, so that the
    /// write itself need not wait.
    #[must_use]
    pub fn outgrows(&self, bytes: usize) -> bool {
        self.stream.engine().outgrows(bytes)
    }

    /// Returns whether the followers permit the log to start over. The holder of the WRITE lock calls this method. Once
    /// it has returned `true`, no follower can pin a position that would keep the log from starting over. The VFS calls
    /// this method before SQLite decides whether to start the log over. The write or truncation that does so checks the
    /// followers once more.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`, `Poisoned`.
    pub fn may_start_over(&mut self) -> Result<bool, LogError> {
        let recycling = self.recycling()?;
        let asked = self.pins.may_recycle(&recycling);
        asked.map_err(|source| LogError::Medium { path: self.segment_path.clone(), source })
    }

    /// Asks followers to read the log to its end, so that it may start over.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`, `Poisoned`.
    pub fn ask_followers(&mut self) -> Result<Followers, LogError> {
        let pinned = self.pins.oldest();
        let pinned = pinned.map_err(|source| LogError::Medium { path: self.segment_path.clone(), source })?;
        let Some(pinned) = pinned else { return Ok(Followers::None) };
        let recycling = self.recycling()?;
        Ok(self.pins.ask(pinned, &recycling))
    }

    /// Returns the transactions that would be recycled if the log started over now.
    fn recycling(&mut self) -> Result<Recycling, LogError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            let fill = engine.room();
            let (oldest, end) = (engine.origin().position, engine.position());
            Ok(Recycling { oldest, end, is_full: fill.used_bytes / 3 >= fill.limit_bytes / 4 })
        })
    }

    fn check_pins(&mut self) -> Result<(), LogError> {
        if self.may_start_over()? {
            return Ok(());
        }
        let what = "the log cannot start over: a follower has not read it to its end";
        Err(LogError::Busy { path: self.path.clone(), what })
    }

    /// Returns whether SQLite may have written a transaction since the log was made or truncated. If the log has no WAL
    /// header, it has not, because SQLite writes the header first.
    #[must_use]
    pub fn was_begun(&self) -> bool {
        self.stream.engine().wal_header().is_some()
    }

    /// Returns a number that changes whenever the newest transaction or the generation changes.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.stream.engine().version()
    }

    /// Returns the number of transactions sealed since the log was made, as of the last operation. This number only grows.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.stream.engine().position()
    }

    /// Returns the position before the first transaction in the log. It is 0 until the log starts over after a commit.
    #[must_use]
    pub fn first_position(&self) -> u64 {
        self.stream.engine().origin().position
    }

    /// Returns the number of committed frames, as of the last operation.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.stream.engine().committed()
    }

    /// Returns the number that stands for the newest commit, to compare it with [`Log::acknowledged`]: the low half of
    /// the generation, and the frame.
    #[must_use]
    pub fn newest_commit(&self) -> u64 {
        newest_commit(self.stream.engine())
    }
}

/// Checkpoints, and recovery.
impl Log {
    /// Checks that SQLite's recovery will accept every frame that this library has recovered. SQLite then applies all
    /// of them, so from then on no transaction may replace any of them.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check_recovered(&mut self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        if let Some(frame) = find_checksum_mismatch(self.stream.engine_mut(), file)? {
            let what = duralite_format::FormatError::Damaged { what: "a page rebuilt from the log" };
            return Err(LogError::Corrupt { offset: u64::from(frame), what });
        }
        if self.frames() > 0 {
            self.segment.store(placement::ACKNOWLEDGED, self.newest_commit());
        }
        Ok(())
    }

    /// Makes everything sealed durable. The caller calls this method before it writes a page to the database file,
    /// because the page's log records must be durable first (invariant 5). The call may wait for other processes, and
    /// keeps the log locked meanwhile. If there is a waiter, a caller can first call [`DurabilityWaiter::force`], which
    /// waits without locking the log.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn before_home_write(&mut self) -> Result<(), LogError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            stream.engine_mut().force()
        })
    }

    /// Returns the pages within the database's size that have committed frames, each with the number of its newest
    /// committed frame, in ascending order of pages. With `last`, the last frame of a transaction, this method
    /// considers only frames up to `last`.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn committed_pages(&mut self, last: Option<u32>) -> Result<Vec<(u32, u32)>, LogError> {
        let db_pages = self.db_pages()?;
        let Some(last) = last.filter(|last| *last < self.stream.engine().committed()) else {
            let mut pages = self.stream.engine().newest_frames();
            pages.retain(|(page_number, _)| *page_number <= db_pages);
            return Ok(pages);
        };
        let frames = self.frames_in(1..=last)?;
        let db_pages = frames.last().map_or(0, |(_, db_pages)| *db_pages);
        let newest: BTreeMap<u32, u32> =
            frames.iter().map(|(page_number, _)| *page_number).zip(1..).collect();
        Ok(newest.into_iter().filter(|(page_number, _)| *page_number <= db_pages).collect())
    }

    /// Returns the database size in pages after the last commit in the log; 0 without a commit.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn db_pages(&mut self) -> Result<u32, LogError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            Ok(engine.frame(engine.committed()).map_or(0, |frame| frame.db_pages))
        })
    }

    /// Reads the page in a committed frame.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn read_page(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        self.guarded(|stream| stream.engine_mut().read_page(file, frame, page))
    }
}

/// Followers.
impl Log {
    /// Returns the words in which followers pin positions of the log.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns the last commit that any process acknowledged, as a number like that of [`Log::newest_commit`].
    pub(crate) fn acknowledged(&self) -> u64 {
        self.segment.load(placement::ACKNOWLEDGED)
    }
}

/// The first commit, and the last close.
impl Log {
    /// Returns whether the log was made just now and is not durable yet. In that case the guard that names the log has
    /// to be provisional.
    #[must_use]
    pub fn is_provisional(&self) -> bool {
        self.is_provisional
    }

    /// Makes three things durable: a log that a provisional guard names, its directory entry, and space for its first
    /// transactions. The caller calls this method before the first transaction is written. Afterwards the caller can
    /// make the guard final.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: the caller may try again. `Io`, `Medium`.
    pub fn harden(&mut self) -> Result<(), LogError> {
        let (path, file) = (self.path.clone(), self.file.try_clone());
        let file = file.map_err(|error| LogError::io("open the log", &path, &error))?;
        // A failure poisons the log, because a second sync that succeeds would prove nothing.
        self.guarded(|stream| {
            if !stream.engine_mut().harden()? {
                log_file::sync(&path, &file).map_err(|error| LogError::io("sync", &path, &error))?;
            }
            placement::sync_names(&path)
        })?;
        self.is_provisional = false;
        Ok(())
    }

    /// Returns whether the guard and the log stay for the next connection when the last connection closes.
    #[must_use]
    pub fn stays_at_close(&self) -> bool {
        let may_stay = self.kind.settings.iter().any(|setting| setting.name == ON_CLOSE.name);
        may_stay && self.on_close == OnClose::Keep && !self.kind.is_long_to_find(&self.file)
    }

    /// Declares that everything committed is in the database file and synced. The declaration is durable on return.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn retire(&mut self) -> Result<(), LogError> {
        self.guarded(|stream| stream.engine_mut().retire())
    }

    /// Deletes the log's files, even if somebody has moved them. If somebody has deleted the log already, deletes the
    /// files that are left. The caller makes sure that nobody needs what the log holds. The deletion is durable only if
    /// the engine stores rollback journals. Otherwise a power loss may bring the log back, and Duralite deletes it when
    /// the database is opened next.
    ///
    /// # Errors
    /// `Io`.
    pub fn unlink(&mut self) -> Result<(), LogError> {
        let Some(path) = self.path_now()? else {
            // Deleting this path is safe, because the name contains the log's id, and no other file has it.
            drop(std::fs::remove_file(&self.segment_path));
            return Ok(());
        };
        log_file::remove(&path, &placement::segment_path(&path, self.id()))
            .map_err(|error| LogError::io("delete", &path, &error))?;
        // Make the deletion durable, because other logs may already use the space that this log had in a region.
        if self.rollback_journal().is_some() { placement::sync_names(&path) } else { Ok(()) }
    }

    /// Deletes the files of a log if its database no longer has a name and no process uses the log.
    pub fn remove_unused(path: &Path, id: LogId) {
        placement::remove_unused(path, id);
    }
}

/// Stops the use of a log after a failure (invariant 9).
impl Log {
    /// Fails if a failed operation of this process has poisoned the log.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn check(&self) -> Result<(), LogError> {
        match &self.poisoned {
            Some(why) => Err(LogError::Poisoned(why.clone())),
            None if self.unfinished => {
                Err(LogError::Poisoned("a thread panicked; the panic's message says why".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Runs an operation unless the log is poisoned. Poisons the log after a failure that leaves its state in doubt, such as a
    /// panic.
    pub(crate) fn guarded<T>(
        &mut self,
        operation: impl FnOnce(&mut WalStream<dyn Engine>) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        self.check()?;
        self.unfinished = true;
        let result = operation(&mut self.stream);
        self.unfinished = false;
        result.inspect_err(|error| {
            let is_over = matches!(error.kind(), ErrorKind::Full | ErrorKind::Busy);
            if !is_over && !matches!(error, LogError::Dropped) {
                self.poisoned = Some(error.to_string());
            }
        })
    }
}
