//! Follows a log from another process: reads every transaction in order, through all generations.
//!
//! A follower describes its progress by a *position*: the number of transactions that were sealed since the log was
//! made. The follower gets a transaction only when that transaction is durable and can no longer be replaced. A
//! transaction can no longer be replaced once its commit was acknowledged, or once another transaction was committed
//! after it (invariant 16). A follower may *pin* a position. The log then keeps the transactions after that position,
//! until it comes near its limit.
//!
//! A follower counts as a user of the database. So while a log is being followed, the log is not deleted, and the
//! database keeps its guard.

use std::path::Path;
use std::time::{Duration, Instant};

use duralite_format::LogId;
use duralite_format::guard::{DatabaseHeader, JournalKind};
use duralite_medium::process::ProcessId;
use duralite_medium::{Segment, SegmentUse};

use crate::engine::descriptor::LogPlacement;
use crate::engine::home::{DatabaseAt, DatabaseFile};
use crate::engine::{Engine, Transaction};
use crate::log::recover;
use crate::shared::archived::{ARCHIVED_OFFSET, ArchivedWords, Behind};
use crate::shared::pins;
use crate::{DatabaseIdentity, EngineOptions, ErrorKind, Log, LogError, placement};

/// How long a follower sleeps before it checks the log again. A follower has to check, because under Group Synch nobody
/// wakes followers when transactions become durable.
const SLICE: Duration = Duration::from_millis(20);

/// A transaction that a follower has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedTransaction {
    /// The position after the transaction.
    pub position: u64,
    /// When the transaction was sealed, in milliseconds since 1970; 0 if the log does not say.
    pub time_ms: u64,
    /// Size of the database in pages after the transaction.
    pub db_pages: u32,
    /// The pages that the transaction has written, in the order of its frames. If a page occurs more than once, only
    /// the image of its last occurrence is valid.
    pub pages: Vec<u32>,
    first_frame: u32,
    generation: u64,
}

/// Records that a commit is acknowledged (invariant 15), and wakes followers. `commit` names the commit as
/// [`Log::newest_commit`] does.
pub fn acknowledge(segment: &dyn Segment, commit: u64) {
    loop {
        let newest = segment.load(placement::ACKNOWLEDGED);
        // The word holds only the low half of the generation number, which can overflow. So compare by the sign of the
        // difference.
        let later = newest != 0 && newest.wrapping_sub(commit) < 1 << 63;
        if later || segment.compare_exchange(placement::ACKNOWLEDGED, newest, commit).is_ok() {
            break;
        }
    }
    pins::notify(segment, pins::PINS_OFFSET);
}

/// A process's reader of all transactions of a log, in order.
pub struct Follower {
    log: Log,
    database: Box<dyn DatabaseFile + Send>,
    process: ProcessId,
    /// Whether this follower is the sidecar, which copies the log into an archive.
    is_sidecar: bool,
}

impl Follower {
    /// Follows the log that a database names. Recovers the log if no other process uses it.
    ///
    /// A process that has SQLite connections to the database must not call this function. The follower opens a descriptor
    /// of the database, and closing that descriptor would release the locks of those connections. Such a process calls
    /// [`Follower::open_log`], which opens no descriptor.
    ///
    /// # Errors
    /// `NoLog` if the database names no log, `Busy` if it is not in WAL mode; otherwise as [`Follower::open_log`].
    pub fn open(
        directory: &LogPlacement,
        options: &EngineOptions,
        database: &Path,
    ) -> Result<Self, LogError> {
        let db = DatabaseIdentity::of(database)?;
        let file = Box::new(DatabaseAt::new(database));
        match recover::inspect_file(&*file)? {
            DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. } => {
                let what = "it is not in WAL mode, and commits with rollback journals cannot be followed";
                Err(LogError::Busy { path: db.path, what })
            }
            DatabaseHeader::Guarded { log_id, provisional, .. } => {
                let opened = Self::open_log(file, directory, options, &db, log_id);
                let is_gone = |error: &LogError| provisional && error.kind() == ErrorKind::NotFound;
                opened.map_err(|error| if is_gone(&error) { LogError::NoLog(db.path) } else { error })
            }
            _ => Err(LogError::NoLog(db.path)),
        }
    }

    /// Follows a log of a database. If the log stores differences, the follower rebuilds pages from the database `file`
    /// ([`crate::engine::home::NoDatabase`] is enough for engines whose pages are all in the log).
    ///
    /// # Errors
    /// `Busy` while the log is being deleted, or if this user may only read it; otherwise as [`Log::attach`].
    pub fn open_log(
        file: Box<dyn DatabaseFile + Send>,
        directory: &LogPlacement,
        options: &EngineOptions,
        db: &DatabaseIdentity,
        id: LogId,
    ) -> Result<Self, LogError> {
        let log = Log::attach(&*file, directory, options, db, id, &placement::pause())?;
        let busy = |what| LogError::Busy { path: db.path.clone(), what };
        if log.outside().is_some() {
            return Err(busy("only a user who may write its log can follow it"));
        }
        // Announce that this process uses the log. From here on no other process is the only user, and so none deletes
        // the log.
        let failed = |source| LogError::Medium { path: log.segment_path().to_path_buf(), source };
        let used = |kind| log.segment().share_use(kind).map_err(failed);
        if !used(SegmentUse::Any)? || !used(SegmentUse::Wal)? || log.path_now()?.is_none() {
            return Err(busy("another connection uses the database exclusively, or is closing it"));
        }
        Ok(Self { log, database: file, process: ProcessId::current(), is_sidecar: false })
    }

    /// Returns the identity of the log. A position has no meaning in any other log.
    #[must_use]
    pub fn id(&self) -> LogId {
        self.log.id()
    }

    /// Returns the page size in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.log.page_bytes()
    }

    /// Returns the position before the first transaction in the log. To obtain a copy of the database, a caller pins this
    /// position and copies the database file. Then the caller reads every transaction from this position on and applies the
    /// transaction to the copy.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn oldest(&mut self) -> Result<u64, LogError> {
        self.own_log()?.guarded(|stream| {
            stream.engine_mut().refresh()?;
            Ok(stream.engine().origin().position)
        })
    }

    /// Returns the position after the newest transaction that [`Follower::read_since`] can return.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn newest(&mut self) -> Result<u64, LogError> {
        let acknowledged = self.own_log()?.acknowledged();
        self.own_log()?.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            // At most the newest transaction is not final yet. Each earlier one either is final or was replaced, and a
            // follower gets no replaced transaction.
            let newest = engine.transactions().checked_sub(1).and_then(|last| engine.transaction_after(last));
            let open = newest.is_some_and(|newest| !is_final(engine, newest.last_frame, acknowledged));
            Ok(engine.position() - u64::from(open))
        })
    }

    /// Returns the first transaction after a position; `None` if there is none yet. The positions of the returned
    /// transactions may have gaps, because this method does not return a transaction that was replaced.
    ///
    /// # Errors
    /// `LostPlace` if the log no longer has the transactions after the position, so that the caller has to copy the
    /// database again; `Corrupt`, `Poisoned`.
    pub fn read_since(&mut self, position: u64) -> Result<Option<FollowedTransaction>, LogError> {
        // First load the word that names the newest acknowledged commit, and then read the log. In this order, the log
        // that is read has that commit and all earlier ones.
        let acknowledged = self.own_log()?.acknowledged();
        self.log.guarded(|stream| {
            stream.engine_mut().refresh()?;
            Ok(next(stream.engine(), position, acknowledged))
        })?
    }

    /// Reads the image of a transaction's page, as SQLite wrote it. `index` is the page's index in
    /// [`FollowedTransaction::pages`].
    ///
    /// # Errors
    /// `LostPlace` if the log has started over since the transaction was read; `Unexpected` if the transaction has no
    /// such page; `Corrupt`, `Poisoned`.
    pub fn read_page(
        &mut self,
        transaction: &FollowedTransaction,
        index: usize,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        let FollowedTransaction { position, first_frame, generation, ref pages, .. } = *transaction;
        if index >= pages.len() {
            return Err(LogError::Unexpected("a page that a transaction does not have"));
        }
        let frame = first_frame + index as u32;
        self.own_log()?;
        let Self { log, database, .. } = self;
        let oldest = log.guarded(|stream| {
            let engine = stream.engine_mut();
            if engine.origin().generation == generation {
                let read = engine.read_page(&**database, frame, page);
                if engine.is_current() {
                    return read.map(|()| None);
                }
                engine.refresh()?;
            }
            Ok(Some(engine.origin().position))
        })?;
        oldest.map_or(Ok(()), |oldest| Err(LogError::LostPlace { position, oldest }))
    }

    /// Pins a position, so that the log keeps everything after it. The new pin replaces the earlier one. A pin ends
    /// when the log reaches three quarters of its limit, when a transaction finds no space, or when the follower or its
    /// process ends. Returns `false` if the log is about to start over past that position, and keeps the earlier pin.
    /// In that case the caller should read on while the log still has the transactions, and then pin again.
    ///
    /// # Errors
    /// As [`Follower::read_since`].
    pub fn pin(&mut self, position: u64) -> Result<bool, LogError> {
        let pins = self.own_log()?.pins().clone();
        let pinned = pins.pin(position);
        // The log may have started over before the pin was stored, so check that the log still has the position.
        let oldest = self.oldest()?;
        if position < oldest {
            pins.unpin();
            return Err(LogError::LostPlace { position, oldest });
        }
        Ok(pinned)
    }

    /// Returns whether a connection that wants to start the log over has asked followers to read beyond a position. A
    /// follower answers by reading on, keeping what it reads, and pinning its new position. Without an answer the log
    /// grows up to its limit.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn is_asked_to_read(&mut self, position: u64) -> Result<bool, LogError> {
        Ok(self.own_log()?.pins().asked() > position)
    }

    /// Removes the pin, so that the log may start over.
    pub fn unpin(&mut self) {
        if let Ok(log) = self.own_log() {
            log.pins().unpin();
        }
    }

    /// Returns the log, if this process opened the follower. Fails in a child process, which cannot use what its parent
    /// shares with other processes (invariant 14).
    fn own_log(&mut self) -> Result<&mut Log, LogError> {
        if self.process.is_current() {
            return Ok(&mut self.log);
        }
        Err(LogError::Poisoned(
            "the parent process opened the follower; open another one in the child".to_owned(),
        ))
    }

    /// Waits until there is a transaction after a position, for at most `limit`. Returns whether there is one.
    ///
    /// # Errors
    /// As [`Follower::read_since`].
    pub fn wait(&mut self, position: u64, limit: Duration) -> Result<bool, LogError> {
        let start = Instant::now();
        loop {
            let watched = self.own_log()?.pins().watch();
            if self.read_since(position)?.is_some() {
                return Ok(true);
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.log.pins().sleep(watched, left.min(SLICE));
        }
    }
}

/// Methods with which the sidecar, which copies the log into an archive, tells the log's users what the archive has
/// (invariant 70). A commit with `replicated=on` waits until the sidecar says that the archive has the commit.
impl Follower {
    /// Announces this follower as the sidecar. The archive holds every transaction up to `position`, and the newest of
    /// these was sealed at `time_ms` (0 if unknown). The caller has made sure that the database has no other sidecar.
    /// If this follower is dropped, or its process dies, the log's users see that no sidecar runs.
    ///
    /// With `durability=normal` or Group Synch, a power loss may undo acknowledged commits, and the log may give their
    /// positions to other transactions. So after a start of the system the caller first compares the log's transaction
    /// at `position` with the archive's.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn announce_sidecar(&mut self, position: u64, time_ms: u64) -> Result<(), LogError> {
        self.words()?.announce(position, time_ms);
        self.is_sidecar = true;
        Ok(())
    }

    /// Acknowledges every transaction up to `position`, and wakes the commits that wait. The newest of these
    /// transactions was sealed at `time_ms` (0 if unknown). The caller has stored these transactions in the archive,
    /// and has seen afterwards that no other primary has taken over the archive.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn set_replicated(&mut self, position: u64, time_ms: u64) -> Result<(), LogError> {
        self.words()?.set(position, time_ms);
        Ok(())
    }

    /// Returns how much the archive lacks, and stores the result for [`duralite top`](crate::placement::Glance).
    /// `position` is where the sidecar is in the log. `held` is what the sidecar has read before `position` and not
    /// stored in the archive yet. The result is the sum of `held` and everything in the log after `position`.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn show_behind(&mut self, held: Behind, position: u64) -> Result<Behind, LogError> {
        let behind = held.and(self.own_log()?.behind(position)?);
        self.words()?.set_behind(behind.bytes, behind.since_ms);
        Ok(behind)
    }

    /// Tells the log's users that another primary has taken over the archive. From now on no waiting commit is
    /// acknowledged: each fails at once.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn set_fenced(&mut self) -> Result<(), LogError> {
        self.words()?.set_fenced();
        Ok(())
    }

    /// Returns whether a commit may be waiting for the archive.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn is_awaited(&mut self) -> Result<bool, LogError> {
        Ok(self.words()?.is_awaited())
    }

    /// Returns whether no other process uses the log.
    ///
    /// # Errors
    /// `Poisoned`, `Medium`.
    pub fn is_alone(&mut self) -> Result<bool, LogError> {
        let log = self.own_log()?;
        let failed = |source| LogError::Medium { path: log.segment_path().to_path_buf(), source };
        log.segment().has_other_processes().map(|others| !others).map_err(failed)
    }

    fn words(&mut self) -> Result<ArchivedWords<'_>, LogError> {
        Ok(ArchivedWords::new(&**self.own_log()?.segment(), ARCHIVED_OFFSET))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.unpin();
        if self.is_sidecar
            && let Ok(words) = self.words()
        {
            words.withdraw();
        }
    }
}

/// Returns whether a transaction is durable and will not be replaced (invariant 16). The caller loaded `acknowledged`
/// before it read the log.
fn is_final(engine: &dyn Engine, last_frame: u32, acknowledged: u64) -> bool {
    let generation = engine.origin().generation & 0xffff_ffff;
    let frames = if acknowledged >> 32 == generation { acknowledged & 0xffff_ffff } else { 0 };
    // A transaction cannot be replaced once another one was committed after it, because the later writer had it in its
    // snapshot.
    let settled = last_frame < engine.committed() || u64::from(last_frame) <= frames;
    settled && engine.is_durable(last_frame)
}

fn next(
    engine: &dyn Engine,
    position: u64,
    acknowledged: u64,
) -> Result<Option<FollowedTransaction>, LogError> {
    let origin = engine.origin();
    let lost = || LogError::LostPlace { position, oldest: origin.position };
    let within = position.checked_sub(origin.position).ok_or_else(lost)?;
    let sequence = u32::try_from(within).ok().filter(|sequence| *sequence <= engine.transactions());
    let Some(found) = engine.transaction_after(sequence.ok_or_else(lost)?) else { return Ok(None) };
    if !is_final(engine, found.last_frame, acknowledged) {
        return Ok(None);
    }
    let frames = (found.first_frame..=found.last_frame).map(|number| engine.frame(number));
    let pages: Option<Vec<u32>> = frames.map(|frame| frame.map(|frame| frame.page_number)).collect();
    Ok(Some(FollowedTransaction {
        position: origin.position.saturating_add(u64::from(found.sequence)),
        time_ms: found.time_ms,
        db_pages: found.db_pages,
        pages: pages.ok_or(LogError::Unexpected("a frame number"))?,
        first_frame: found.first_frame,
        generation: origin.generation,
    }))
}

impl Log {
    /// Returns the words that the log's users share with its sidecar.
    #[must_use]
    pub fn archived(&self) -> ArchivedWords<'_> {
        ArchivedWords::new(&**self.segment(), ARCHIVED_OFFSET)
    }

    /// Returns how much was committed after a position. Transactions that the log no longer has count only in
    /// `transactions`, and not in `bytes`.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn behind(&mut self, position: u64) -> Result<Behind, LogError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            let within = position.saturating_sub(engine.origin().position);
            let first = u32::try_from(within).ok().and_then(|sequence| engine.transaction_after(sequence));
            let transactions = engine.position().saturating_sub(position);
            let Some(first) = first else { return Ok(Behind { transactions, ..Behind::default() }) };
            let frames = (engine.committed() + 1).saturating_sub(first.first_frame);
            Ok(Behind {
                transactions,
                bytes: u64::from(frames) * u64::from(engine.page_bytes()),
                since_ms: first.time_ms,
            })
        })
    }

    /// Returns the position after the newest transaction that a reader may see, and the name of that transaction's
    /// commit if the log still has it. The reader holds a read mark, and its wal-index says that `frames` frames are
    /// committed.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`.
    pub fn published(&mut self, frames: u32) -> Result<(u64, Option<u64>), LogError> {
        self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            let engine = stream.engine();
            if frames == 0 {
                // The log has just started over, or is about to start over. In both cases the reader may see everything
                // in the log.
                return Ok((engine.position(), None));
            }
            let origin = engine.origin();
            // Find the newest published transaction. A later one may still be replaced, so no commit may wait for it.
            for sequence in (1..=engine.transactions()).rev() {
                let found = engine.transaction_after(sequence - 1);
                if let Some(found) = found
                    && found.sequence == sequence
                    && found.last_frame <= frames
                {
                    let name = origin.generation << 32 | u64::from(found.last_frame);
                    return Ok((origin.position.saturating_add(u64::from(sequence)), Some(name)));
                }
            }
            Ok((origin.position, None))
        })
    }
}

// Lists the transactions in a log that is in use, as a connection would see them at one moment. Stores nothing.

/// A transaction in a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTransaction {
    /// The transaction, with its frame numbers.
    pub transaction: Transaction,
    /// The position after the transaction, counted as a [`Follower`](crate::Follower) counts.
    pub position: u64,
    /// Size of the transaction's records in the log in bytes; `None` if the log does not store a record for each frame.
    pub bytes: Option<u64>,
    /// Whether the transaction is durable already, that is, survives what the log's guarantee names.
    pub durable: bool,
}

/// The transactions of the log's current generation that no later transaction has replaced, oldest first. The list has
/// the transactions of all processes, up to the newest that was sealed when the list was made. A checkpoint may have
/// written these transactions to the database file already, but they stay in the log until the log starts over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The transactions, oldest first.
    pub transactions: Vec<ListedTransaction>,
    /// The page of each frame.
    pages: Vec<u32>,
}

impl Listing {
    /// Returns the pages that a listed transaction has written, in the order of its frames. A page may occur more than
    /// once.
    #[must_use]
    pub fn pages_of(&self, listed: &ListedTransaction) -> &[u32] {
        let Transaction { first_frame, last_frame, .. } = listed.transaction;
        let frames = first_frame.saturating_sub(1) as usize..last_frame as usize;
        self.pages.get(frames).unwrap_or_default()
    }
}

impl Log {
    /// Lists the transactions that are in the log now. The call takes time and memory in proportion to the number of
    /// frames. The log may start over at any time after this call.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`; `Busy` for a user who may only read the log, if another process recovers the log during
    /// the call.
    pub fn list(&mut self) -> Result<Listing, LogError> {
        let listing = self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            list(stream.engine())
        });
        self.check_outside()?;
        listing
    }
}

fn list(engine: &dyn Engine) -> Result<Listing, LogError> {
    let missing = LogError::Unexpected("a frame number");
    let frames: Option<Vec<_>> = (1..=engine.committed()).map(|number| engine.frame(number)).collect();
    let frames = frames.ok_or(missing)?;
    let origin = engine.origin().position;
    let mut listing = Listing::default();
    let mut sequence = 0;
    while let Some(transaction) = engine.transaction_after(sequence) {
        sequence = transaction.sequence;
        let numbers = transaction.first_frame.saturating_sub(1) as usize..transaction.last_frame as usize;
        let of_this = frames.get(numbers).unwrap_or_default();
        listing.transactions.push(ListedTransaction {
            position: origin.saturating_add(u64::from(sequence)),
            bytes: of_this.iter().map(|frame| frame.record_bytes.map(u64::from)).sum(),
            durable: engine.is_durable(transaction.last_frame),
            transaction,
        });
    }
    listing.pages = frames.iter().map(|frame| frame.page_number).collect();
    Ok(listing)
}
