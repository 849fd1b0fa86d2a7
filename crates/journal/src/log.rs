//! One attached log, as a VFS uses it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_logfmt::LogId;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, Guarantee, Segment};

use crate::descriptor::{Descriptor, LogDirectory};
use crate::directory::{self, OpenLog, Outside, Pause};
use crate::engine::{Clock, DurabilityWaiter, Engine, Fill, Ticket};
use crate::figures::Figures;
use crate::home::{DatabaseFile, Home};
use crate::log_file::making;
use crate::pins::{PINS_OFFSET, Pins, Recycling};
use crate::rollback::RollbackJournal;
use crate::settings::OnClose;
use crate::settings::common::ON_CLOSE;
use crate::stream::WalStream;
use crate::{DatabaseIdentity, EngineOptions, ErrorKind, JournalError};

/// The log of one database, attached by this process. `file`, where a method takes one, is the database file, as
/// [`crate::engine`] says.
pub struct Log {
    kind: &'static Descriptor,
    stream: WalStream<Box<dyn Engine>>,
    segment: Arc<FileSegment>,
    pins: Pins,
    figures: Option<Arc<Figures>>,
    path: PathBuf,
    segment_path: PathBuf,
    /// Its `flock` tells other processes that the log is in use.
    file: OwnFile,
    /// Logs that had to make way for this one: from where, and to where.
    moved: Vec<(PathBuf, PathBuf)>,
    /// It was made by this process, and is not durable yet.
    is_provisional: bool,
    /// Why what was synced does not survive a power loss; `None` where nothing is known against it.
    unsynced: Option<String>,
    /// For a user who may only read it.
    outside: Option<Arc<Outside>>,
    pub(crate) on_close: OnClose,
    /// Why nothing more is acknowledged (invariant 9).
    poisoned: Option<String>,
    /// An operation is under way. One that panicked never ends: its callers catch the panic, and what it
    /// left is in doubt.
    unfinished: bool,
}

/// As long as it is there, nobody else attaches the log.
pub(crate) struct Attaching(#[expect(dead_code, reason = "closing it is what it is for")] Option<OwnFile>);

impl Log {
    /// Makes a log for a database, whose file is `file`. Durable on return, its directory entry included, unless
    /// [`Log::is_provisional`].
    ///
    /// # Errors
    /// `NoSpace`, `Io` (log directory missing or read-only), `Medium` (not DAX).
    pub fn create(
        file: &dyn DatabaseFile,
        log_dir: &LogDirectory,
        options: &EngineOptions,
        db: &DatabaseIdentity,
        page_bytes: u32,
    ) -> Result<Self, JournalError> {
        let open = directory::create(file, log_dir, options, db, page_bytes)?;
        Ok(Self { on_close: options.on_close, ..Self::over(open, file)? })
    }

    /// Attaches the log that a guarded database names, recovering it if nobody else has it. Other processes are
    /// waited for as long as `pause` has patience.
    ///
    /// # Errors
    /// `Missing`, `Foreign`, `Owner`, `Format`, `Corrupt`, `Io`; nothing is changed then. `Busy` when patience
    /// has ended.
    pub fn attach(
        file: &dyn DatabaseFile,
        log_dir: &LogDirectory,
        options: &EngineOptions,
        db: &DatabaseIdentity,
        id: LogId,
        pause: Pause<'_>,
    ) -> Result<Self, JournalError> {
        let open = directory::attach(file, log_dir, options, db, id, false, pause)?;
        Ok(Self { on_close: options.on_close, ..Self::over(open, file)? })
    }

    pub(crate) fn over(open: OpenLog, file: &dyn DatabaseFile) -> Result<Self, JournalError> {
        let (mut log, recovered) = Self::unchecked(open);
        if let Some(_others_wait) = recovered {
            log.check_recovered(file)?;
        }
        Ok(log)
    }

    /// The log as it was found, and if nobody else has it what others wait for who attach it meanwhile.
    pub(crate) fn unchecked(open: OpenLog) -> (Self, Option<Attaching>) {
        let figures = open.figures().map(Arc::new);
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
            alone,
            is_of_another_boot: _,
            attaching,
        } = open;
        let (on_close, poisoned, unfinished) = (OnClose::default(), None, false);
        let pins = Pins::new(Arc::clone(&segment) as Arc<dyn Segment>, PINS_OFFSET);
        let log = Self {
            kind,
            stream: WalStream::new(engine),
            segment,
            pins,
            figures,
            path,
            segment_path,
            file,
            moved,
            is_provisional,
            unsynced,
            outside,
            on_close,
            poisoned,
            unfinished,
        };
        (log, alone.then_some(Attaching(attaching)))
    }

    /// Looks whether SQLite will believe every frame that was recovered, which it takes in then: nothing of it is
    /// replaced any more.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check_recovered(&mut self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        if let Some(frame) = self.stream.find_checksum_mismatch(file)? {
            let what = duralite_logfmt::FormatError::Damaged { what: "a page rebuilt from the log" };
            return Err(JournalError::Corrupt { offset: u64::from(frame), what });
        }
        if self.frames() > 0 {
            self.segment.store(directory::ACKNOWLEDGED, self.newest_commit());
        }
        Ok(())
    }

    /// Identity.
    #[must_use]
    pub fn id(&self) -> LogId {
        self.stream.engine().id()
    }

    /// The log's file, as it was called when it was attached.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of the memory that the log's users share.
    #[must_use]
    pub fn segment_path(&self) -> &Path {
        &self.segment_path
    }

    /// Logs of earlier databases that had to make way for this new one: from where, and to where. They are
    /// kept.
    #[must_use]
    pub fn moved(&self) -> &[(PathBuf, PathBuf)] {
        &self.moved
    }

    /// Whether it was made just now and is not durable yet: the guard that names it has to be provisional.
    #[must_use]
    pub fn is_provisional(&self) -> bool {
        self.is_provisional
    }

    /// Makes the log durable that a provisional guard names, with its name and with room for its first transactions: by whoever
    /// is about to write the first of them. The guard can be put on for good then.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: it can be tried again. `Io`, `Medium`.
    pub fn harden(&mut self) -> Result<(), JournalError> {
        let (path, file) = (self.path.clone(), self.file.try_clone());
        let file = file.map_err(|error| JournalError::io("open the log", &path, &error))?;
        // A second sync would prove nothing after one that has failed: the log is poisoned then.
        self.guarded(|stream| {
            if !stream.engine_mut().harden()? {
                making::sync(&path, &file).map_err(|error| JournalError::io("sync", &path, &error))?;
            }
            directory::sync_names(&path)
        })?;
        self.is_provisional = false;
        Ok(())
    }

    /// What a commit survives.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        if self.unsynced.is_some() { Guarantee::ProcessCrash } else { self.stream.engine().guarantee() }
    }

    /// Why that is less than the medium could give; `None` where it is all.
    #[must_use]
    pub fn why_unsynced(&self) -> Option<&str> {
        self.unsynced.as_deref()
    }

    /// The medium, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.stream.engine().describe()
    }

    /// The engine that keeps it.
    #[must_use]
    pub fn engine(&self) -> &'static Descriptor {
        self.kind
    }

    /// What the engine has put before the database file; `None` where nothing is.
    #[must_use]
    pub fn home(&self) -> Option<Arc<dyn Home>> {
        self.stream.engine().home()
    }

    /// What keeps the database's rollback journal; `None` where SQLite keeps it in a file.
    #[must_use]
    pub fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        self.stream.engine().rollback_journal()
    }

    /// Memory shared with the other processes that use the log.
    #[must_use]
    pub fn segment(&self) -> &Arc<FileSegment> {
        &self.segment
    }

    /// Who makes sealed transactions durable; `None` where a write that seals one does.
    #[must_use]
    pub fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        self.stream.engine().durability_waiter()
    }

    /// What the transaction sealed by the last write is waited for by; `None` when it is durable.
    pub fn take_ticket(&mut self) -> Option<Ticket> {
        self.stream.take_ticket()
    }

    /// A number that differs whenever another transaction is the newest one.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.stream.engine().version()
    }

    /// Number of committed frames known since the last operation.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.stream.engine().committed()
    }

    /// Whether a transaction may have been written since it was made or cut: SQLite begins a WAL with a header.
    #[must_use]
    pub fn was_begun(&self) -> bool {
        self.stream.engine().wal_header().is_some()
    }

    /// Fills `buf` from stream offset `offset` on; returns how many bytes there were.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn read(
        &mut self,
        file: &dyn DatabaseFile,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, JournalError> {
        let read = self.guarded(|stream| stream.read(file, offset, buf));
        self.check_outside()?;
        read
    }

    /// Refuses what a user who may only read it has read of a log that others have recovered meanwhile.
    pub(crate) fn check_outside(&self) -> Result<(), JournalError> {
        let engine = self.stream.engine();
        let is_lost = |outside: &Arc<Outside>| outside.is_lost() || outside.is_overtaken(engine);
        if self.outside.as_ref().is_some_and(is_lost) {
            let what = "its log has been recovered since the transaction began; begin it again";
            return Err(JournalError::Busy { path: self.path.clone(), what });
        }
        Ok(())
    }

    /// How a user has it who may only read it; `None` for all others.
    #[must_use]
    pub fn outside(&self) -> Option<&Arc<Outside>> {
        self.outside.as_ref()
    }

    /// For a user who may only read it: takes in what other processes have become of it, and says whether it is
    /// in use by them.
    ///
    /// # Errors
    /// `Busy` while somebody attaches it; as [`Log::attach`].
    pub fn look_again(&mut self, pause: Pause<'_>) -> Result<bool, JournalError> {
        let Some(outside) = &self.outside else { return Ok(true) };
        if let Some(engine) = outside.look_again(pause)? {
            self.stream = WalStream::new(engine);
            self.poisoned = None;
        }
        Ok(outside.is_live())
    }

    /// Takes a write of SQLite's. If it completes a commit frame, the transaction is sealed on
    /// return, and durable unless there is a ticket to wait for. At offset 0 the caller has synced the database file first (invariant 6).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` and `Busy` fail this write only; anything else poisons the log.
    pub fn write(&mut self, file: &dyn DatabaseFile, offset: u64, data: &[u8]) -> Result<(), JournalError> {
        if offset == 0 {
            self.check_pins()?;
        }
        let acknowledged = self.acknowledged();
        let written = self.guarded(|stream| {
            stream.set_acknowledged(acknowledged);
            stream.write(file, offset, data)
        });
        if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            // Better that a follower loses its place than that nobody can commit.
            self.pins.press(self.stream.engine().origin().position);
        }
        written
    }

    /// The commit that was acknowledged last, in any process, as [`Log::newest_commit`] names it.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.segment.load(directory::ACKNOWLEDGED)
    }

    /// Where this process counts what it does with it; `None` for a user who may only read it.
    #[must_use]
    pub fn figures(&self) -> Option<Arc<Figures>> {
        self.figures.clone()
    }

    /// Where followers say what is to be kept for them.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Whether no follower is in the way of starting the log over, asked by the holder of the WRITE lock. If so, none
    /// will be. It is asked before SQLite decides; when a write or a cut starts the log over it is asked again.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`, `Poisoned`.
    pub fn may_start_over(&mut self) -> Result<bool, JournalError> {
        let recycling = self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            let fill = engine.fill();
            let (oldest, end) = (engine.origin().position, engine.position());
            Ok(Recycling { oldest, end, is_full: fill.used_bytes / 3 >= fill.limit_bytes / 4 })
        })?;
        let asked = self.pins.may_recycle(&recycling);
        asked.map_err(|source| JournalError::Medium { path: self.segment_path.clone(), source })
    }

    fn check_pins(&mut self) -> Result<(), JournalError> {
        if self.may_start_over()? {
            return Ok(());
        }
        let what = "the log cannot start over: somebody follows it who has not read it to its end";
        Err(JournalError::Busy { path: self.path.clone(), what })
    }

    /// Takes the time of commits from another clock than the system's.
    pub fn set_clock(&mut self, clock: Clock) {
        self.stream.engine_mut().set_clock(clock);
    }

    /// Names the newest commit, for [`Log::acknowledged`]: the low half of the generation, and the frame.
    #[must_use]
    pub fn newest_commit(&self) -> u64 {
        (self.version() >> 32) << 32 | u64::from(self.frames())
    }

    /// Size of the stream in bytes.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn size(&mut self) -> Result<u64, JournalError> {
        self.guarded(WalStream::size)
    }

    /// Cuts the stream, and with it the log's file. The caller has synced the database file first (invariant 6).
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn truncate(&mut self, file: &dyn DatabaseFile, size: u64) -> Result<(), JournalError> {
        if size == 0 {
            self.check_pins()?;
        }
        self.guarded(|stream| stream.truncate(file, size))
    }

    /// Lets the log's file shrink to so many bytes whenever it starts over.
    pub fn limit_size(&mut self, bytes: Option<u64>) {
        self.stream.limit_size(bytes);
    }

    /// Called where SQLite syncs its log. Nothing is left to do: what is committed was sealed by
    /// the write of its commit frame. (In `sync=async` it is durable only after
    /// [`Log::before_home_write`], as in the paper.)
    ///
    /// # Errors
    /// As [`Log::write`].
    pub fn sync(&mut self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        self.guarded(|stream| stream.sync(file))
    }

    /// Called when SQLite lets go of the WRITE lock: gives back the room of a transaction that was rolled back.
    pub fn end_write(&mut self) {
        if self.stream.engine().has_staged() {
            // What fails here fails again for whoever writes next.
            let _ = self.guarded(WalStream::end_write);
        }
    }

    /// Whether a write of so many bytes may make the transaction too large to be sealed like others:
    /// then everything sealed before has to be durable first, and is waited for within the write
    /// unless [`DurabilityWaiter::wait_all`] has been.
    #[must_use]
    pub fn outgrows(&self, bytes: usize) -> bool {
        self.stream.engine().outgrows(bytes)
    }

    /// Refuses to go on with a log that has been poisoned by a failed operation of this process.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn check(&self) -> Result<(), JournalError> {
        match &self.poisoned {
            Some(why) => Err(JournalError::Poisoned(why.clone())),
            None if self.unfinished => {
                Err(JournalError::Poisoned("a panic; its message says why".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// To be called before a page is written to the database file (invariant 5). It may wait for other
    /// processes: [`DurabilityWaiter::force`] does so without the log, where there is one.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn before_home_write(&mut self) -> Result<(), JournalError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            stream.engine_mut().force()
        })
    }

    /// The pages with committed frames that are within the database's size, each with the number
    /// of its newest frame; ascending.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn committed_pages(&mut self) -> Result<Vec<(u32, u32)>, JournalError> {
        let db_pages = self.db_pages()?;
        let mut pages = self.stream.engine().newest_frames();
        pages.retain(|(page_number, _)| *page_number <= db_pages);
        Ok(pages)
    }

    /// Database size in pages after the last commit in the log; 0 if there is none.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn db_pages(&mut self) -> Result<u32, JournalError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            Ok(engine.frame(engine.committed()).map_or(0, |frame| frame.db_pages))
        })
    }

    /// Page size in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.stream.engine().page_bytes()
    }

    /// The page in a committed frame.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn read_page(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page: &mut [u8],
    ) -> Result<(), JournalError> {
        self.guarded(|stream| stream.engine_mut().read_page(file, frame, page))
    }

    /// Declares that everything is in the database file and synced. Durable on return.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn retire(&mut self) -> Result<(), JournalError> {
        self.guarded(|stream| stream.engine_mut().retire())
    }

    /// Deletes the log's files, wherever the log is called by now, and what is left of them should somebody have
    /// deleted the log already. It holds nothing any more: a power loss may bring it back, to be deleted when the database is
    /// opened next.
    ///
    /// # Errors
    /// `Io`.
    pub fn unlink(&mut self) -> Result<(), JournalError> {
        let Some(path) = self.path_now()? else {
            // The name has the log's id: nothing else is called so.
            drop(std::fs::remove_file(&self.segment_path));
            return Ok(());
        };
        making::remove(&path, &directory::segment_path(&path, self.id()))
            .map_err(|error| JournalError::io("delete", &path, &error))?;
        // What it had of a region is others' by now.
        if self.rollback_journal().is_some() { directory::sync_names(&path) } else { Ok(()) }
    }

    /// Deletes the log's files once nobody uses them: its database has no name any more.
    pub fn remove_unused(path: &Path, id: LogId) {
        directory::remove_unused(path, id);
    }

    /// Where the log's file is by now; `None` when somebody has deleted it.
    ///
    /// # Errors
    /// `Io`.
    pub fn path_now(&self) -> Result<Option<PathBuf>, JournalError> {
        directory::where_now(&self.path, &self.file, self.id())
    }

    /// Whether somebody has deleted it while it is in use here.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        directory::is_deleted(&self.file)
    }

    /// How much of it is in use, as of the last operation, and whether it is to start over before long.
    #[must_use]
    pub fn fill(&self) -> (Fill, bool) {
        let engine = self.stream.engine();
        (engine.fill(), engine.is_short())
    }

    /// Whether guard and log stay when the last connection closes, for the next one to find.
    #[must_use]
    pub fn stays_at_close(&self) -> bool {
        let may_stay = self.kind.settings.iter().any(|setting| setting.name == ON_CLOSE.name);
        may_stay && self.on_close == OnClose::Keep && !self.kind.is_long_to_find(&self.file)
    }

    /// Takes settings that may change while the log is in use, from the next transaction on.
    pub fn configure(&mut self, options: &EngineOptions) {
        self.on_close = options.on_close;
        self.stream.engine_mut().configure(options);
    }

    /// Figures, by name. Those of work done are this process's since it attached.
    #[must_use]
    pub fn metrics(&self) -> Vec<(&'static str, String)> {
        self.stream.engine().metrics()
    }

    /// Runs an operation unless the log is poisoned, and poisons it on failures that leave doubt, a
    /// panic among them.
    pub(crate) fn guarded<T>(
        &mut self,
        operation: impl FnOnce(&mut WalStream<Box<dyn Engine>>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        self.check()?;
        self.unfinished = true;
        let result = operation(&mut self.stream);
        self.unfinished = false;
        result.inspect_err(|error| {
            if !matches!(error.kind(), ErrorKind::Full | ErrorKind::Busy) {
                self.poisoned = Some(error.to_string());
            }
        })
    }
}
