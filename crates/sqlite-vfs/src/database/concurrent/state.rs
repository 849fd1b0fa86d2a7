//! What a concurrent connection is and has: its wal-index, its snapshot, and what SQLite has written.

use std::cell::RefMut;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES};
use duralite_format::wal_index::{
    ATTEMPTED_WORD, BACKFILLED_WORD, FIRST_MARK_WORD, FRAMES_WORD, IndexHeader, MARK_NOT_USED, MARKS,
};
use duralite_locks::Holder;
use duralite_sqlite_ffi as ffi;

use super::lease::Lease;
use super::memory::{First, Private};
use super::owned::Owned;
use super::page_set::PageSet;
use super::shared_index::SharedIndex;
use super::snapshot::Snapshot;
use crate::attachment::Attachment;
use crate::settings::Concurrency;
use crate::sqlite::connection::OwnConnection;

/// A connection whose wal-index is its own.
pub struct Concurrent {
    pub(super) attachment: Arc<Attachment>,
    /// The first region of its wal-index.
    first: First,
    pub(super) holder: Arc<Holder>,
    pub(super) mode: Concurrency,
    pub(super) page_bytes: usize,
    state: Owned<State>,
    /// The connection that checkpoints when a commit has made the log long enough.
    pub(super) checkpointer: Owned<Option<OwnConnection<'static>>>,
    /// Whether SQLite is in a checkpoint.
    pub(super) checkpoints: AtomicBool,
    /// Whether the checkpoint has left frames in the log that SQLite must not try to write home itself.
    pub(super) is_partial: AtomicBool,
    /// Whether the checkpoint's last try failed, because another connection was in the way.
    pub(super) tries_again: AtomicBool,
}

/// Where the connection is between two transactions or in one.
#[derive(Default)]
pub(super) struct State {
    pub(super) index: Private,
    /// What the connection reads; `None` between transactions.
    pub(super) snapshot: Option<Snapshot>,
    /// What it read last.
    pub(super) last: Option<Snapshot>,
    /// Whether SQLite, which has just been shown another header, takes its read lock anew.
    pub(super) is_beginning: bool,
    /// Bits of the locks of the private wal-index that SQLite shares.
    pub(super) shared: u8,
    pub(super) write: Write,
    /// Since when a transaction has been writing that will be validated, by the clock of the log's users. `None`
    /// once it has been asked to end.
    pub(super) writes_since: Option<u64>,
    /// The state of the log that SQLite's cache agrees with; `None` where SQLite has to drop its cache.
    pub(super) cache: Option<IndexHeader>,
    /// The pages that SQLite may have in its cache (invariant 58).
    pub(super) read: PageSet,
    /// What SQLite has written to its WAL behind the frame `base`.
    pub(super) wal: Vec<u8>,
    /// How many frames of SQLite's WAL are not kept: their pages are read as of the snapshot.
    pub(super) base: u32,
    /// The last frame of SQLite's WAL that is committed.
    pub(super) committed: u32,
    /// The state of the log after this transaction's commit, while its snapshot lasts.
    pub(super) after: Option<IndexHeader>,
    /// Counts headers shown to SQLite.
    pub(super) changes: u32,
    pub(super) luck: Luck,
    pub(super) lease: Lease,
    /// The state of the log after the connection's last commit.
    pub(super) own: Option<IndexHeader>,
    /// For how many more commits others count as committing too; 0 while the connection is alone.
    pub(super) others: u8,
}

/// How many commits of its own in a row show a connection that it is alone.
pub(super) const ALONE: u8 = 64;

/// Whether to try transactions that are validated when they commit. Where others use the same pages, as at the
/// right edge of a table to which all append, a transaction had better take WRITE when it begins to write: it
/// then cannot be overtaken. After each conflict twice as many transactions do so before the next one is tried
/// without. Those do not count that write pages which others have committed since the connection's last commit:
/// there it would meet them.
#[derive(Default)]
pub(super) struct Luck {
    /// How many transactions are to take WRITE.
    left: u8,
    /// How many will after the next conflict, less one.
    next: u8,
}

/// The most transactions that take WRITE after a conflict.
const LONGEST_DETOUR: u8 = 32;

impl Luck {
    /// Whether a transaction had better take WRITE.
    pub fn is_out(&self) -> bool {
        self.left > 0
    }

    /// A transaction was overtaken.
    pub fn lost(&mut self) {
        self.left = self.next + 1;
        self.next = (2 * self.next + 1).min(LONGEST_DETOUR - 1);
    }

    /// A transaction has committed, after it was validated or under WRITE.
    pub fn won(&mut self, was_validated: bool) {
        if was_validated {
            self.next /= 2;
        } else {
            self.left = self.left.saturating_sub(1);
        }
    }
}

/// What a connection may write, and how it comes to that right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Write {
    /// Nothing.
    #[default]
    Not,
    /// It has the real WRITE lock, at the newest commit.
    Locked,
    /// It writes to its buffer, and is validated when it commits.
    Validated,
}

/// Bytes that a connection keeps between transactions for what SQLite writes, at most.
const MOST_KEPT: usize = 1 << 20;

/// Frames after which SQLite starts its WAL over. Each time it clears a region of the private wal-index, which
/// takes as long as the rest of a small transaction. It also tells `sqlite3_wal_hook` this number, at which
/// SQLite's own hook would checkpoint.
const LONGEST_WAL: u32 = 256;

impl Concurrent {
    /// A connection to this log, whose pages have this size, before it has begun anything.
    pub(super) fn new(attachment: Arc<Attachment>, holder: Arc<Holder>, mode: Concurrency) -> Self {
        let page_bytes = attachment.log().page_bytes() as usize;
        Self {
            first: First::of(Arc::clone(&attachment)),
            attachment,
            holder,
            mode,
            page_bytes,
            state: Owned::default(),
            checkpointer: Owned::default(),
            checkpoints: AtomicBool::new(false),
            is_partial: AtomicBool::new(false),
            tries_again: AtomicBool::new(false),
        }
    }

    pub(super) fn index(&self) -> SharedIndex<'_> {
        SharedIndex::with(&self.attachment, self.first.region())
    }

    pub(super) fn state(&self) -> RefMut<'_, State> {
        self.state.get()
    }

    /// `xShmMap`: the address of a private region.
    pub fn map(&self, number: usize, extend: bool) -> Option<*mut c_void> {
        self.state().index.address(number, extend)
    }

    /// Whether the connection holds a snapshot.
    pub fn is_reading(&self) -> bool {
        self.state().snapshot.is_some()
    }

    /// Where a frame begins in a WAL, counted from 1.
    pub(super) fn offset_of(&self, frame: u32) -> usize {
        WAL_HEADER_BYTES + (frame as usize - 1) * self.frame_bytes()
    }

    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.page_bytes
    }

    /// The size of the database in bytes, as of the snapshot.
    pub fn size(&self) -> Option<u64> {
        let pages = self.state().snapshot?.header.db_pages();
        (pages > 0).then(|| u64::from(pages) * self.page_bytes as u64)
    }

    /// The size of the WAL in bytes.
    pub fn wal_bytes(&self) -> usize {
        let state = self.state();
        match (state.base, state.wal.len()) {
            (0, 0) => 0,
            (base, behind) => self.offset_of(base + 1) + behind,
        }
    }
}

impl State {
    /// Shows SQLite a wal-index without frames that is as large as the database at this moment. SQLite drops
    /// its cache.
    pub fn show(&mut self, header: &IndexHeader) {
        self.changes = self.changes.wrapping_add(1);
        let salt = [random(), random()];
        let shown = header.private(self.changes, salt);
        let Some(first) = self.index.first() else { return };
        first.set_header(&shown);
        first.store(BACKFILLED_WORD, 0);
        first.store(ATTEMPTED_WORD, 0);
        first.store(FIRST_MARK_WORD, 0);
        first.store(FIRST_MARK_WORD + 1, 0);
        (2..MARKS).for_each(|mark| first.store(FIRST_MARK_WORD + mark, MARK_NOT_USED));
        self.forget_wal(0);
    }

    /// Lets the private wal-index say that everything is in the database: SQLite looks for what it has to write
    /// there itself.
    pub fn all_is_home(&self) {
        if let Some(first) = self.index.first() {
            first.store(BACKFILLED_WORD, first.load(FRAMES_WORD));
        }
    }

    /// Forgets what the frames of SQLite's WAL hold, up to this one, which is its last. The memory of a large
    /// transaction is given back.
    pub fn forget_wal(&mut self, last: u32) {
        self.wal.clear();
        self.wal.shrink_to(MOST_KEPT);
        (self.base, self.committed) = (last, last);
    }

    /// Ends the transaction: gives the snapshot back, and prepares the private wal-index for the next one.
    /// `longest` is how long SQLite's WAL may become. Returns whether the transaction has committed.
    pub fn end(&mut self, holder: &Holder, longest: u32) -> bool {
        let Some(snapshot) = self.snapshot.take() else { return false };
        snapshot.release(holder);
        self.last = Some(snapshot);
        self.is_beginning = false;
        let Some(after) = self.after.take() else {
            self.forget_wal(self.committed);
            return false;
        };
        let mut frames = 0;
        if let Some(first) = self.index.first() {
            frames = first.load(FRAMES_WORD);
            // If everything is said to be in the database, the next transaction starts the WAL over. Otherwise SQLite
            // takes the second mark and goes on behind the last frame.
            let goes_on = (1..longest.min(LONGEST_WAL)).contains(&frames);
            first.store(BACKFILLED_WORD, if goes_on { frames - 1 } else { frames });
            first.store(FIRST_MARK_WORD + 1, frames);
            // No older state of this log can be opened (`sqlite3_snapshot_open`): its frames are forgotten.
            first.store(ATTEMPTED_WORD, frames);
        }
        // SQLite has the transaction in its cache if it has published it in its own wal-index too.
        let is_known = frames == self.committed;
        self.cache = self.cache.filter(|cache| is_known && *cache == after);
        self.forget_wal(frames);
        true
    }
}

/// Fills `buf` as `xRead` does, with these bytes from `at` on. Returns the code for SQLite.
pub(super) fn fill(buf: &mut [u8], bytes: &[u8], at: usize) -> c_int {
    let part = bytes.get(at..).unwrap_or_default();
    let count = part.len().min(buf.len());
    let (filled, rest) = buf.split_at_mut(count);
    filled.copy_from_slice(&part[..count]);
    rest.fill(0);
    if rest.is_empty() { ffi::OK } else { ffi::IOERR_SHORT_READ }
}

/// A number for a salt, which tells one generation of a log from others.
pub(super) fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(0_u8) >> 32) as u32
}
