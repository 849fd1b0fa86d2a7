//! The loop of the sidecar, which keeps the archive of one database up to date.
//!
//! If the database has no log, the loop waits for one. If it has a log, the loop reads the header of the archive's
//! newest object. The header says up to which position of the log the archive has the commits, and the loop continues
//! from there. If the log does not follow on that position, the loop begins a new generation with a snapshot. So the
//! sidecar may die at any moment, and needs no file of its own in order to continue.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use duralite_archive::{
    Archive, ArchiveError, Begin, Claim, Claimed, Generation, Inherited, Line, Location, Object, Owner,
    Policy, Primary, Resumed, Retry, SNAPSHOTS, Step, Times, now_ms,
};
use duralite_cli::target::Target;
use duralite_format::archive::Closed;
use duralite_ltx::{Decoder, HEADER_BYTES, Header, database_checksum, lock_page};
use duralite_wal::archive::backlog::Backlog;
use duralite_wal::{ErrorKind, LogError};
use tokio::runtime::Handle;

use crate::backlog::{self, Left};
use crate::beside::{Beside, Way};
use crate::config::Database;
use crate::fetch::fetch;
use crate::group::{Mark, salts};
use crate::hold::{self, Held};
use crate::source::Source;
use crate::upload;
use crate::uploader::Uploader;

/// How often the sidecar checks whether there is a log, or whether its log has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How long the sidecar waits for a program that seems to be closing a log. That program may also have died.
const UNSETTLED: Duration = Duration::from_secs(10);
/// How long the sidecar waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long the sidecar waits after a failed snapshot before it takes another, if it can archive commits meanwhile.
const SNAPSHOT_AGAIN: Duration = Duration::from_secs(60);
/// If a commit in a snapshot stays unacknowledged for this long, the sidecar makes a commit of its own. That decides
/// whether the log keeps the unacknowledged one.
const SETTLE: Duration = Duration::from_millis(200);

/// When the sidecar ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The sidecar ends when it gets the order to stop.
    Stopped,
    /// The sidecar ends when every commit is in the archive.
    Drained,
}

/// The sidecar of one database.
pub struct Replicator {
    config: Database,
    target: Target,
    archive: Archive,
    beside: Beside,
    runtime: Handle,
    stop: Arc<AtomicBool>,
    until: Until,
}

/// The generation that the sidecar owns, and how far its archive has come.
struct Current {
    primary: Arc<Primary>,
    mark: Mark,
    /// The log to which the generation's first snapshot belongs. It is `None` once the loop has taken it in order to
    /// follow it.
    source: Option<Source>,
    /// The thread that compacts and prunes. It stops when this sidecar leaves the generation.
    upkeep: Upkeep,
}

/// Why following a log has ended.
enum Ended {
    /// The sidecar got the order to stop, or its only task was to archive everything, and that is done.
    Done,
    /// No other process uses the log, and all of its commits are archived.
    Alone,
    /// The log has dropped some commits that the archive lacks.
    Lost,
    /// Something other than commits of the log has changed the database.
    Broken,
}

impl Replicator {
    /// Prepares to replicate a database. Takes the lock that keeps out other sidecars of this database.
    ///
    /// # Errors
    /// The database does not exist, or has no archive; another sidecar runs; the URL is wrong.
    pub fn new(config: Database, runtime: Handle, stop: Arc<AtomicBool>, until: Until) -> Result<Self> {
        // Check the URL before `Beside::open` writes it to the file beside the database.
        config.archive.as_deref().map(str::parse::<Location>).transpose()?;
        let beside = Beside::open(&config.path, config.archive.as_deref())?;
        let location: Location = beside.url().parse()?;
        let archive = Archive::open(&location)?;
        let target = Target {
            path: config.path.clone(),
            log_dir: config.log_dir.clone(),
            nvram_dir: config.nvram_dir.clone(),
            json: false,
        };
        Ok(Self { config, target, archive, beside, runtime, stop, until })
    }

    /// Replicates until the condition `until` ends the sidecar.
    ///
    /// # Errors
    /// An error after which another attempt cannot help: another primary has taken the archive over, the archive
    /// refuses, or the database cannot be followed.
    pub fn run(&mut self) -> Result<()> {
        loop {
            match self.run_once() {
                Ok(()) => return Ok(()),
                Err(error) if is_final(&error) => {
                    if let Some(ArchiveError::Fenced { generation, .. }) = error.downcast_ref() {
                        report("remember the fence", self.spread_fence(*generation));
                    }
                    return Err(error);
                }
                Err(error) if self.until == Until::Drained => return Err(error),
                // The sidecar was told to stop. Its next start continues from here.
                Err(_) if self.is_stopped() => return Ok(()),
                Err(error) => {
                    report::<()>(&format!("replicate {}", self.config.path.display()), Err(error));
                    self.sleep(AFTER_FAILURE);
                }
            }
        }
    }

    /// Replicates until the condition `until` ends the sidecar, or until something fails. Keeps nothing for the next
    /// call, because the archive says where to continue.
    fn run_once(&mut self) -> Result<()> {
        let mut current = self.resume()?;
        // If the generation has just begun with a snapshot, the log agrees with the archive, so the loop does not
        // compare them.
        let mut is_compared = current.source.is_some();
        let mut unsettled = None;
        while !self.is_stopped() {
            let mut source = match current.source.take() {
                Some(source) => Some(source),
                None => Source::open(&self.target)?,
            };
            let log = source.as_ref().map(Source::id);
            match self.beside.way(&current.mark, log)? {
                Way::Logs(closed) => {
                    let in_backlog = if is_compared {
                        Ok(true)
                    } else {
                        self.backlog_has_what_is_archived(&closed, &current)
                    };
                    if self.is_damaged(&closed, &in_backlog) {
                        drop(source);
                        current = self.begin(Some(current.primary.generation()), Line::Gap)?;
                        continue;
                    }
                    let has_all = in_backlog?
                        && match source.as_mut().filter(|_| !is_compared) {
                            Some(source) => self.has_what_is_archived(source, &current)?,
                            None => true,
                        };
                    is_compared = true;
                    if !has_all {
                        let path = self.config.path.display();
                        eprintln!(
                            "duralite-archive: the log of {path} has lost commits that the archive has; another line begins"
                        );
                        drop(source);
                        current = self.begin(Some(current.primary.generation()), Line::Other)?;
                        continue;
                    }
                    unsettled = None;
                    let archived = self.archive_closed(&closed, &mut current);
                    if self.is_damaged(&closed, &archived) {
                        drop(source);
                        current = self.begin(Some(current.primary.generation()), Line::Gap)?;
                        continue;
                    }
                    archived?;
                }
                // Another process has closed or made a log meanwhile, so the loop starts again with the present log.
                Way::None(_) | Way::NotYet(_) if self.beside.log()? != log => continue,
                Way::NotYet(_) if unsettled.get_or_insert_with(Instant::now).elapsed() < UNSETTLED => {
                    self.sleep(LOOK);
                    continue;
                }
                Way::None(line) | Way::NotYet(line) => {
                    drop(source);
                    current = self.begin(Some(current.primary.generation()), line)?;
                    continue;
                }
            }
            let Some(mut source) = source else {
                if self.until == Until::Drained {
                    break;
                }
                self.check_upkeep(&current)?;
                self.sleep(LOOK);
                continue;
            };
            let before = current.mark;
            if before.log != salts(source.id()) {
                current.mark = Mark { log: salts(source.id()), position: 0, ..before };
            }
            let ended = self.follow(&mut source, &mut current)?;
            if current.mark.txid == before.txid {
                // A process that closes a log without commits leaves no record of that log in the file beside the
                // database. So the mark must not name such a log.
                current.mark = before;
            }
            let is_alone = source.follower().is_alone()?;
            drop(source);
            match ended {
                Ended::Lost => current = self.begin(Some(current.primary.generation()), Line::Gap)?,
                // Nobody else uses the log, so the sidecar has to close it.
                Ended::Done | Ended::Alone if is_alone => self.close_log()?,
                Ended::Done | Ended::Alone | Ended::Broken => {}
            }
            if self.until == Until::Drained && matches!(ended, Ended::Done) {
                break;
            }
        }
        Ok(())
    }

    /// Records that another primary has taken the archive over. From then on, every commit that waits for the archive
    /// fails.
    fn spread_fence(&self, by: Generation) -> Result<()> {
        self.beside.remember_fence(by)?;
        match Source::open(&self.target)? {
            Some(mut source) => Ok(source.follower().set_fenced()?),
            None => Ok(()),
        }
    }

    /// Returns whether the log still has the archive's last transaction, with the same contents. A power loss may undo
    /// commits that processes acknowledged before the commits were durable. After that, the log may end before the
    /// archive's last transaction, or may have another transaction at its position (invariant 72). If the log has
    /// started over after that transaction, this function returns `true`: the transaction's pages had reached the
    /// database file before that.
    fn has_what_is_archived(&self, source: &mut Source, current: &Current) -> Result<bool> {
        let Mark { log, position, .. } = current.mark;
        let Some(before) = position.checked_sub(1).filter(|_| log == salts(source.id())) else {
            return Ok(true);
        };
        let mut found = match source.follower().read_since(before) {
            Err(LogError::LostPlace { position, oldest }) => return Ok(oldest > position),
            found => found?,
        };
        if found.is_none() {
            // Since the log was opened, no process has acknowledged this transaction. A new commit decides whether the
            // log keeps it.
            Held::begin(&self.config.path, &self.config.pairs())?.settle()?;
            found = source.follower().read_since(before)?;
        }
        let Some(found) = found.filter(|found| found.position == position) else { return Ok(false) };
        let page_size = source.page_bytes();
        // If a transaction has several images of a page, the last one counts.
        let images: BTreeMap<u32, usize> =
            found.pages.iter().enumerate().map(|(index, page)| (*page, index)).collect();
        let is_equal = self.is_archived(current, (page_size, found.db_pages), &images, |index, page| {
            Ok(source.follower().read_page(&found, *index, page)?)
        });
        // If the follower no longer finds the transaction, the log has started over meanwhile.
        if is_equal.as_ref().is_err_and(is_lost) { Ok(true) } else { is_equal }
    }

    /// Returns whether a closed log had the archive's last transaction, with the same contents, according to the
    /// backlog that the log has left. A backlog that begins after that transaction counts as a yes: a sidecar had told
    /// the log's users that the archive has the transaction, and no power loss came after that. A missing backlog
    /// counts as a yes too: the archive had every transaction when the log was closed, or a sidecar has archived the
    /// backlog and deleted it.
    fn backlog_has_what_is_archived(&self, closed: &[Closed], current: &Current) -> Result<bool> {
        let Mark { log, position, .. } = current.mark;
        let Some(closed) = closed.first().filter(|closed| closed.backlog && salts(closed.log) == log) else {
            return Ok(true);
        };
        let path = self.beside.backlog(closed.log);
        if !path.try_exists()? {
            return Ok(true);
        }
        let mut backlog = Backlog::open(&path)?;
        if backlog.header().first >= position {
            return Ok(true);
        }
        let Some(left) = backlog::commit_at(&mut backlog, position)? else { return Ok(false) };
        self.is_archived(current, (left.page_size, left.db_pages), &left.pages, |image, page| {
            page.copy_from_slice(image);
            Ok(())
        })
    }

    /// Returns whether reading the backlog of one of these logs has failed because the backlog is damaged or incomplete.
    /// Such a backlog counts as missing (invariant 73): it never gets better, and the archive needs a snapshot. Reports it.
    fn is_damaged<T>(&self, closed: &[Closed], read: &Result<T>) -> bool {
        let Err(error) = read else { return false };
        let Some(LogError::Format { log: path, .. }) = error.downcast_ref() else { return false };
        let is_damaged = closed.iter().any(|closed| self.beside.backlog(closed.log) == *path);
        if is_damaged {
            eprintln!("duralite-archive: {error:#}; the archive goes on with a snapshot");
        }
        is_damaged
    }

    /// Returns whether the archive's last transaction left the database with `db_pages` pages of `page_size` bytes, and
    /// with the page images in `images`. `read` reads one of these images.
    fn is_archived<T>(
        &self,
        current: &Current,
        (page_size, db_pages): (u32, u32),
        images: &BTreeMap<u32, T>,
        mut read: impl FnMut(&T, &mut [u8]) -> Result<()>,
    ) -> Result<bool> {
        let archived = self.block(last_pages(&current.primary, current.mark.txid, images))?;
        let Some(archived) = archived else { return Ok(false) };
        if (archived.page_size, archived.db_pages) != (page_size, db_pages) {
            return Ok(false);
        }
        let mut page = vec![0; page_size as usize];
        for (number, image) in images.range(..=db_pages) {
            match archived.pages.get(number) {
                None if *number == lock_page(page_size) => {}
                None => return Ok(false),
                Some(archived) => {
                    read(image, &mut page)?;
                    if *archived != page {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Archives the commits that closed logs have left in their backlogs.
    fn archive_closed(&self, closed: &[Closed], current: &mut Current) -> Result<()> {
        for (nth, closed) in closed.iter().enumerate() {
            let archived = if nth == 0 { current.mark.position } else { 0 };
            if closed.position <= archived {
                continue;
            }
            let primary = &current.primary;
            let path = self.beside.backlog(closed.log);
            current.mark = backlog::each_group(&path, archived, current.mark, |mut file, min, mark| {
                self.runtime.block_on(upload::upload_group(primary, &mut file, min, mark))?;
                self.block(primary.acknowledge()).map(drop)
            })?;
            std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
        if !closed.is_empty() {
            self.beside.forget_before(&current.mark)?;
        }
        Ok(())
    }

    fn sleep(&self, time: Duration) {
        sleep_until(Instant::now() + time, &self.stop);
    }

    fn pace(&self) -> Pace {
        Pace { limit: self.config.limit, stop: Arc::clone(&self.stop), since: Instant::now(), bytes: 0 }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn owner(&self) -> Owner {
        let node = gethostname::gethostname().to_string_lossy().into_owned();
        Owner { token: self.beside.token(), node, retry: Retry::default() }
    }

    /// Continues the last generation that this database's primary has begun. If there is none, begins a new one.
    fn resume(&mut self) -> Result<Current> {
        let generation = match self.beside.generation() {
            Some(generation) => generation,
            // A sidecar may have claimed a generation, and died before it recorded that in the file beside the
            // database.
            None if !self.block(self.archive.records())?.is_empty() => Generation::FIRST,
            None => return self.begin(None, Line::First),
        };
        match self.block(self.archive.resume(&self.owner(), generation))? {
            Resumed::Primary(primary) => {
                self.beside.forget_fence()?;
                let mark = self.block(newest_mark(&primary))?;
                // A late upload of an earlier sidecar may have arrived after another primary had listed the archive. So
                // this sidecar trusts its own list only after a later look has found no later claim (invariant 66).
                let acknowledged = self.block(primary.acknowledge())?;
                match mark.filter(|mark| mark.txid <= acknowledged) {
                    Some(mark) => Ok(self.current(primary, mark)),
                    // The previous sidecar died before the archive had its first snapshot. This sidecar cannot take the
                    // same snapshot again.
                    None => self.begin(Some(primary.generation()), Line::Gap),
                }
            }
            Resumed::Unbegun(own) => self.begin(Some(own), Line::Gap),
            Resumed::Fenced(Claim { generation, node, .. }) => {
                let fenced = anyhow::Error::from(ArchiveError::Fenced { generation, node });
                Err(match self.beside.generation() {
                    Some(_) => fenced,
                    None => fenced.context(format!(
                        "{} holds the archive of another database; name another prefix, or take that archive over with duralite promote",
                        self.beside.url()
                    )),
                })
            }
        }
    }

    fn current(&self, primary: Primary, mark: Mark) -> Current {
        let primary = Arc::new(primary);
        Current { upkeep: Upkeep::start(&primary, &self.config, &self.runtime), primary, mark, source: None }
    }

    /// Claims a generation and begins it. If `own` is given, claims the generation right after `own`. If another
    /// primary has claimed that one, this primary is fenced. If `own` is not given, claims the first generation of an
    /// archive.
    fn begin(&mut self, own: Option<Generation>, line: Line) -> Result<Current> {
        // The snapshot comes before the claim. So a primary that cannot read the database claims nothing.
        let held = self.hold()?;
        let claimed = match own {
            Some(own) => self.block(self.archive.claim_after(&self.owner(), own, now_ms()))?,
            None => self.claim()?,
        };
        let inherited = self.block(claimed.inherited())?;
        let line = if inherited.is_none() { Line::First } else { line };
        self.begin_with(claimed, inherited.as_ref(), line, held)
    }

    /// Claims the next generation that nobody has claimed. This fences the previous primary.
    ///
    /// # Errors
    /// Those of the archive.
    pub fn claim(&self) -> Result<Claimed> {
        self.block(self.archive.claim(&self.owner(), now_ms()))
    }

    /// Begins the claimed generation, and returns it. The database must be in the state that the archive had at the end
    /// of the previous generation.
    ///
    /// # Errors
    /// Those of the archive and of reading the database.
    pub fn take_over(&mut self, claimed: Claimed, inherited: &Inherited) -> Result<Generation> {
        let held = self.hold()?;
        let begun = self.begin_with(claimed, Some(inherited), Line::Continues, held);
        let generation = begun.map(|current| current.primary.generation());
        // Close the log even after an error. Then the database is an ordinary file until a program opens it, and the
        // user can run the command again.
        let closed = self.close_log();
        let generation = generation?;
        closed?;
        Ok(generation)
    }

    /// Begins a claimed generation: creates its start record, and uploads a snapshot.
    fn begin_with(
        &mut self,
        claimed: Claimed,
        inherited: Option<&Inherited>,
        line: Line,
        (mut held, mut source, position): (Held, Source, u64),
    ) -> Result<Current> {
        let generation = claimed.generation();
        let (pages, page_size) = (held.pages(), held.page_bytes());
        let checksum = database_checksum(held.content()?, page_size, pages).context("read the database")?;
        let time_ms = now_ms();
        let begin = Begin { pages, page_size, checksum, time_ms };
        let primary = self.block(claimed.start(inherited, line, &begin))?;
        self.beside.remember(generation)?;
        let mark = Mark {
            generation: generation.number(),
            txid: primary.start().base.txid,
            log: salts(source.id()),
            position,
            time_ms,
        };
        upload_snapshot(&self.runtime, &primary, &mut held, &mark, self.pace())?;
        self.block(primary.acknowledge())?;
        // From this snapshot on, the archive must learn of every change of the database. After this announcement, a
        // program that changes the database with a rollback journal instead of this log records that it did so.
        source.follower().announce_sidecar(position, mark.sealed_ms())?;
        source.follower().pin(position)?;
        drop(held);
        Ok(Current { source: Some(source), ..self.current(primary, mark) })
    }

    /// Begins a snapshot, and finds the position in the log that belongs to it.
    fn hold(&self) -> Result<(Held, Source, u64)> {
        loop {
            let mut held = Held::begin(&self.config.path, &self.config.pairs())?;
            let mut source = Source::open(&self.target)?.context("the database has lost its log")?;
            let since = Instant::now();
            loop {
                let newest = source.follower().newest()?;
                if held.newest().is_none_or(|of_held| of_held == newest) {
                    held.release_write()?;
                    return Ok((held, source, newest));
                }
                if since.elapsed() > SETTLE {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            // A writer died before it could acknowledge its commit. The next commit decides whether that commit counts.
            drop(source);
            held.settle()?;
        }
    }

    /// Copies commits from a log into the archive.
    fn follow(&self, source: &mut Source, current: &mut Current) -> Result<Ended> {
        let ended = self.follow_until_fenced(source, current);
        if ended.as_ref().is_err_and(is_fenced) {
            source.follower().set_fenced()?;
        }
        ended
    }

    fn follow_until_fenced(&self, source: &mut Source, current: &mut Current) -> Result<Ended> {
        let mut uploader =
            Uploader::new(&self.runtime, &self.beside, &self.stop, &current.primary, source, &current.mark);
        source.follower().announce_sidecar(current.mark.position, current.mark.sealed_ms())?;
        let mut snapshot_due = Instant::now() + self.until_snapshot(&current.primary)?;
        let mut snapshot: Option<JoinHandle<Result<()>>> = None;
        loop {
            if self.is_stopped() {
                // The log may no longer have the commits that the uploader holds. So the sidecar uploads them before it
                // ends.
                while uploader.holds_anything() {
                    match uploader.upload(source, &mut current.mark, None) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) if is_fenced(&error) => return Err(error),
                        Err(error) => {
                            let path = self.config.path.display();
                            eprintln!("duralite-archive: what was read of {path} is not archived: {error:#}");
                            break;
                        }
                    }
                }
                return Ok(Ended::Done);
            }
            uploader.pin(source).or_else(|error| lost(error, ()))?;
            if let Some(done) = snapshot.take_if(|snapshot| snapshot.is_finished()) {
                let done = done.join().unwrap_or_else(|_| Err(anyhow!("the snapshot's thread panicked")));
                if done.is_err() {
                    snapshot_due = snapshot_due.min(Instant::now() + SNAPSHOT_AGAIN);
                }
                report("take a snapshot", done);
            }
            if Instant::now() >= snapshot_due && snapshot.is_none() {
                // The uploader keeps what it has read, even if the snapshot fails. If the failure is permanent, the
                // next upload fails too.
                let begun = self.snapshot_beside(source, current, &mut uploader);
                let again = if begun.is_ok() { self.config.snapshot_every } else { SNAPSHOT_AGAIN };
                snapshot_due = Instant::now() + again;
                snapshot = begun.unwrap_or_else(|error| {
                    report::<()>("take a snapshot", Err(error));
                    None
                });
            }
            match uploader.upload(source, &mut current.mark, None) {
                Ok(true) => {
                    self.pause(source, &mut uploader)?;
                    continue;
                }
                Ok(false) => self.check_upkeep(current)?,
                Err(error) if is_lost(&error) => {
                    // The snapshot's thread still uses the primary, so wait until that thread has ended.
                    snapshot.map(JoinHandle::join);
                    return Ok(Ended::Lost);
                }
                Err(error) if is_fenced(&error) => return Err(error),
                Err(error)
                    if is_temporary(&error)
                        || uploader.holds_anything() && self.until != Until::Drained && !is_final(&error) =>
                {
                    let again = if is_temporary(&error) { LOOK } else { AFTER_FAILURE };
                    report::<()>(&format!("archive {}", self.config.path.display()), Err(error));
                    let _ = uploader.show_behind(source);
                    self.sleep(again);
                    continue;
                }
                Err(error) => return Err(error),
            }
            if self.beside.is_broken(source.id())? {
                return Ok(Ended::Broken);
            }
            let behind = uploader.show_behind(source)?;
            if behind.transactions == 0 && snapshot.is_none() {
                if self.until == Until::Drained {
                    return Ok(Ended::Done);
                }
                if source.follower().is_alone()? {
                    return Ok(Ended::Alone);
                }
            }
            source.wait(current.mark.position, LOOK).or_else(|error| lost(error, false))?;
        }
    }

    /// Returns the error [`ArchiveError::Fenced`] if the upkeep thread has found that another primary has taken the
    /// archive over. Without this check, a primary that archives no commits would not notice a takeover.
    fn check_upkeep(&self, current: &Current) -> Result<()> {
        if current.upkeep.is_fenced.load(Ordering::Relaxed) {
            self.block(current.primary.acknowledge())?;
        }
        Ok(())
    }

    /// Waits for the configured interval, so that more commits come. Returns early if a commit waits for the archive.
    fn pause(&self, source: &mut Source, uploader: &mut Uploader<'_>) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < self.config.interval {
            let is_urgent = uploader.is_busy() || source.follower().is_awaited()?;
            if is_urgent || self.is_stopped() || self.until == Until::Drained {
                break;
            }
            // If this fails, or if the uploader can hold no more commits, end the pause. The next upload then empties
            // the uploader, or reports the error.
            if !uploader.answer(source, None).unwrap_or(false) {
                break;
            }
            // The upload may have woken connections, which soon commit again. So the loop checks more often at first.
            std::thread::sleep(if since.elapsed() < SOON { AWAITED_SOON } else { AWAITED });
        }
        Ok(())
    }

    /// Returns how long it is until the next snapshot is due, according to the age of the newest snapshot.
    fn until_snapshot(&self, primary: &Primary) -> Result<Duration> {
        let newest = self.block(mark_of(primary, |object| object.level == SNAPSHOTS))?;
        let age_ms = newest.map_or(0, |newest| now_ms().saturating_sub(newest.time_ms));
        Ok(self
            .config
            .snapshot_every
            .saturating_sub(Duration::from_millis(u64::try_from(age_ms).unwrap_or(0))))
    }

    /// Starts a thread that uploads a snapshot while the sidecar continues to archive commits. The archive first gets
    /// every commit up to the snapshot, so that the snapshot is the state after one of the archive's transactions.
    fn snapshot_beside(
        &self,
        source: &mut Source,
        current: &mut Current,
        uploader: &mut Uploader<'_>,
    ) -> Result<Option<JoinHandle<Result<()>>>> {
        let (mut held, of_snapshot, position) = self.hold()?;
        drop(of_snapshot);
        while current.mark.position < position {
            if !uploader.upload(source, &mut current.mark, Some(position))? {
                return Ok(None);
            }
        }
        let (runtime, primary, mark) = (self.runtime.clone(), Arc::clone(&current.primary), current.mark);
        let pace = self.pace();
        let work = move || upload_snapshot(&runtime, &primary, &mut held, &mark, pace);
        Ok(Some(std::thread::Builder::new().name("snapshot".to_owned()).spawn(work)?))
    }

    /// Closes a log that nobody else uses, so that the database is an ordinary file again.
    fn close_log(&self) -> Result<()> {
        hold::close(&self.config.path, &self.config.pairs())
    }

    fn block<T, E: Into<anyhow::Error>>(&self, future: impl Future<Output = Result<T, E>>) -> Result<T> {
        self.runtime.block_on(future).map_err(Into::into)
    }
}

/// How often the sidecar checks, during a pause, whether a commit waits for the archive. In the first [`SOON`] of the
/// pause it checks every [`AWAITED_SOON`].
const AWAITED: Duration = Duration::from_millis(1);
const AWAITED_SOON: Duration = Duration::from_micros(200);
const SOON: Duration = Duration::from_millis(5);

/// Compacts and prunes the archive, on a thread of its own.
struct Upkeep {
    stop: Arc<AtomicBool>,
    /// Whether the thread has ended because another primary has taken the archive over.
    is_fenced: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often the upkeep thread searches the archive for objects to compact.
const COMPACT_EVERY: Duration = Duration::from_secs(10);
/// How often the upkeep thread searches the archive for objects to prune.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

impl Upkeep {
    fn start(primary: &Arc<Primary>, config: &Database, runtime: &Handle) -> Self {
        let (stop, is_fenced) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (primary, runtime) = (Arc::clone(primary), runtime.clone());
        let (stopped, fenced) = (Arc::clone(&stop), Arc::clone(&is_fenced));
        let policy = Policy { keep: config.keep, ..Policy::default() };
        let work = move || {
            let (mut times, retry) = (Times::default(), Retry::default());
            let mut prune_at = Instant::now() + PRUNE_EVERY;
            let mut compact_at = Instant::now() + COMPACT_EVERY;
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
                if Instant::now() >= compact_at {
                    let compacted = runtime.block_on(primary.compact(&mut times)).map_err(Into::into);
                    if compacted.as_ref().is_err_and(self::is_fenced) {
                        fenced.store(true, Ordering::Relaxed);
                        return;
                    }
                    report("compact the archive", compacted);
                    compact_at = Instant::now() + COMPACT_EVERY;
                }
                if Instant::now() >= prune_at {
                    let pruned = runtime.block_on(primary.archive().prune(&policy, &retry, false));
                    report("prune the archive", pruned.map_err(Into::into));
                    prune_at = Instant::now() + PRUNE_EVERY;
                }
            }
        };
        // Without this thread the archive still works, but it only grows.
        let thread = std::thread::Builder::new().name("upkeep".to_owned()).spawn(work);
        let thread =
            thread.inspect_err(|error| eprintln!("duralite-archive: no upkeep of the archive: {error}")).ok();
        Self { stop, is_fenced, thread }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the mark of the newest object of a generation, which says how far the archive has come. Returns `None` if
/// the generation has no object.
async fn newest_mark(primary: &Primary) -> Result<Option<Mark>, ArchiveError> {
    mark_of(primary, |object| object.max == primary.uploaded()).await
}

/// Returns the mark of the newest object of a generation for which `is_one` returns true.
async fn mark_of(primary: &Primary, is_one: impl Fn(&Object) -> bool) -> Result<Option<Mark>, ArchiveError> {
    let replica = primary.replica();
    let objects = primary.archive().objects(&replica).await?;
    let newest = objects.iter().filter(|object| is_one(object)).max_by_key(|object| object.max);
    let Some(newest) = newest else { return Ok(None) };
    let key = replica.key(newest);
    let bytes = primary.archive().get_range(&key, 0..HEADER_BYTES as u64).await?;
    let damaged = |what: &str| ArchiveError::Damaged { key: key.to_string(), what: what.to_owned() };
    let bytes = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(|| damaged("it is shorter than a header"))?;
    Header::decode(bytes).map(|header| Some(Mark::of(&header))).map_err(|error| damaged(&error.to_string()))
}

/// Reads the smallest object that ends with transaction `txid`. Returns the size of the database after this
/// transaction, and the object's images of the pages in `pages`. Returns `None` if no object ends with this
/// transaction.
async fn last_pages<T>(primary: &Primary, txid: u64, pages: &BTreeMap<u32, T>) -> Result<Option<Left>> {
    let replica = primary.replica();
    let objects = primary.archive().objects(&replica).await?;
    let last = objects.iter().filter(|object| object.max == txid).min_by_key(|object| object.bytes);
    let Some(last) = last else { return Ok(None) };
    let step = Step { key: replica.key(last), object: *last, generation: Some(primary.generation()) };
    let mut decoder = Decoder::new(fetch(primary.archive(), &step).await?)?;
    let (page_size, db_pages) = (decoder.header().page_size, decoder.header().commit);
    let mut page = vec![0; page_size as usize];
    let mut found = BTreeMap::new();
    while let Some(number) = decoder.next_page(&mut page)? {
        if pages.contains_key(&number) {
            found.insert(number, page.clone());
        }
    }
    Ok(Some(Left { page_size, db_pages, pages: found }))
}

/// Uploads a snapshot, while another thread reads and encodes it.
fn upload_snapshot(
    runtime: &Handle,
    primary: &Primary,
    held: &mut Held,
    mark: &Mark,
    mut pace: Pace,
) -> Result<()> {
    let (sender, pieces) = upload::channel();
    std::thread::scope(|scope| {
        let encoding = scope.spawn(|| {
            let encoded = upload::encode_snapshot(held, mark, sender.clone(), |bytes| pace.read(bytes));
            if let Err(error) = &encoded {
                // Without this error, the upload would store the pieces so far as a complete snapshot.
                let failed = io::Error::other(error.to_string());
                let _ = sender.blocking_send(Err(ArchiveError::File {
                    path: "the snapshot".to_owned(),
                    source: failed,
                }));
            }
            drop(sender);
            encoded
        });
        let uploaded = runtime.block_on(primary.upload_snapshot(pieces, mark.txid, mark.time_ms));
        let encoded =
            encoding.join().unwrap_or_else(|_| Err(anyhow!("the thread that reads a snapshot panicked")));
        uploaded.map_err(anyhow::Error::from).and(encoded)
    })
}

/// Limits how many bytes per second a snapshot reads. Stops reading when the sidecar gets the order to stop.
struct Pace {
    limit: Option<u64>,
    stop: Arc<AtomicBool>,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn read(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes as u64;
        let due = match self.limit.filter(|limit| *limit > 0) {
            Some(limit) => Duration::from_secs_f64(self.bytes as f64 / limit as f64),
            None => Duration::ZERO,
        };
        sleep_until(self.since + due, &self.stop);
        if self.stop.load(Ordering::Relaxed) {
            bail!("told to stop before the snapshot was whole");
        }
        Ok(())
    }
}

/// Sleeps, but wakes up when the sidecar gets the order to stop.
fn sleep_until(end: Instant, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// Returns `instead` if the error is `LostPlace`. The caller can ignore that error, because the next read returns it
/// again.
fn lost<T>(error: LogError, instead: T) -> Result<T, LogError> {
    if error.kind() == ErrorKind::LostPlace { Ok(instead) } else { Err(error) }
}

fn is_lost(error: &anyhow::Error) -> bool {
    error.downcast_ref::<LogError>().is_some_and(|error| error.kind() == ErrorKind::LostPlace)
}

fn is_fenced(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ArchiveError::Fenced { .. } | ArchiveError::Contradicted { .. }))
}

/// Returns whether trying again cannot help.
fn is_final(error: &anyhow::Error) -> bool {
    is_fenced(error) || matches!(error.downcast_ref(), Some(ArchiveError::Unfit))
}

/// Returns whether trying again may help.
pub fn is_temporary(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(ArchiveError::is_temporary)
}

/// Reports on standard error what has failed, and that the sidecar will try it again.
fn report<T>(what: &str, result: Result<T>) {
    if let Err(error) = result {
        eprintln!("duralite-archive: {what}: {error:#}; it is tried again");
    }
}
