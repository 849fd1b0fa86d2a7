//! The state of a concurrent connection: its wal-index, its snapshot, and what SQLite has written.

use std::cell::RefMut;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES};
use duralite_format::wal_index::{
    ATTEMPTED_WORD, BACKFILLED_WORD, FIRST_MARK_WORD, FRAMES_WORD, IndexHeader, MARK_NOT_USED, MARKS, Place,
};
use duralite_locks::Holder;
use duralite_sqlite_ffi as ffi;

use super::in_log::InLog;
use super::lease::Lease;
use super::luck::Luck;
use super::memory::{First, Private};
use super::owned::Owned;
use super::page_set::PageSet;
use super::shared_index::SharedIndex;
use super::snapshot::Snapshot;
use crate::attachment::Attachment;
use crate::settings::Concurrency;

/// A connection whose wal-index is its own.
pub struct Concurrent {
    pub(super) attachment: Arc<Attachment>,
    /// The first region of the log's wal-index.
    first: First,
    pub(super) holder: Arc<Holder>,
    pub(super) mode: Concurrency,
    pub(super) page_bytes: usize,
    state: Owned<State>,
    /// Whether SQLite is in a checkpoint.
    pub(super) checkpoints: AtomicBool,
    /// Whether SQLite's current checkpoint has left frames in the log. SQLite must not try to write these
    /// frames to the database itself.
    pub(super) is_partial: AtomicBool,
    /// Whether the last attempt at a checkpoint failed because another connection prevented it.
    pub(super) tries_again: AtomicBool,
}

/// The state of a connection in a transaction, or between two transactions.
#[derive(Default)]
pub(super) struct State {
    pub(super) index: Private,
    /// The snapshot that the connection reads; `None` between transactions.
    pub(super) snapshot: Option<Snapshot>,
    /// The snapshot that the connection read last.
    pub(super) last: Option<Snapshot>,
    /// Whether this VFS has just changed the header that SQLite sees, so that SQLite gives its read lock back
    /// and takes it again.
    pub(super) is_beginning: bool,
    /// The locks of the private wal-index that SQLite holds shared, as bits.
    pub(super) shared: u8,
    pub(super) write: Write,
    /// The time, by the segment's clock, at which the open transaction began to write, if it is to be
    /// validated. `None` once this VFS has asked the application to end the transaction.
    pub(super) writes_since: Option<u64>,
    /// The state of the log to which SQLite's cache belongs; `None` if SQLite has to drop its cache.
    pub(super) cache: Option<IndexHeader>,
    /// The pages that SQLite may have in its cache (invariant 58).
    pub(super) read: PageSet,
    /// The bytes that SQLite has written to its WAL after the frame `base`, without the frames of `large`.
    pub(super) wal: Vec<u8>,
    /// The open transaction, if it is too large for memory.
    pub(super) large: Option<InLog>,
    /// The number of bytes that the open transaction may write before this VFS tries again to move it to the
    /// log.
    pub(super) large_from: usize,
    /// The number of frames of SQLite's WAL that this VFS does not keep. If SQLite reads such a frame, it
    /// gets the frame's page as of the snapshot.
    pub(super) base: u32,
    /// The last frame of SQLite's WAL that is committed.
    pub(super) committed: u32,
    /// The highest frame that may have an entry in the private wal-index.
    pub(super) highest: u32,
    /// The state of the log after this transaction's commit. `None` before the commit and after the end of
    /// the snapshot.
    pub(super) after: Option<IndexHeader>,
    /// Whether a commit has made the database larger than SQLite knows, while SQLite continues with the same
    /// snapshot.
    pub(super) has_grown: bool,
    /// Whether the connection has committed and has done nothing since. SQLite's own hook may checkpoint now.
    pub(super) has_just_committed: bool,
    /// The smallest number of frames at which SQLite's hook has asked for a checkpoint.
    pub(super) checkpoints_from: Option<u32>,
    /// The number of headers that this VFS has shown to SQLite.
    pub(super) changes: u32,
    pub(super) luck: Luck,
    pub(super) lease: Lease,
    /// The state of the log after the connection's last commit.
    pub(super) own: Option<IndexHeader>,
    /// The number of further commits after which this connection believes that no other connection commits. 0
    /// if it believes that now. A commit of another connection sets this to `ALONE`.
    pub(super) others: u8,
}

/// A connection believes that it is alone after this many of its own commits, if no other connection has
/// committed in between.
pub(super) const ALONE: u8 = 64;

/// The right of a connection to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Write {
    /// Nothing.
    #[default]
    Not,
    /// The connection has the real WRITE lock, at the newest commit.
    Locked,
    /// The transaction writes to the connection's buffer, and is validated when it commits.
    Validated,
}

/// The largest size in bytes of the buffer that a connection keeps between transactions.
const MOST_KEPT: usize = 1 << 20;

impl Concurrent {
    /// Makes the state of a connection to this log, before the connection has begun anything.
    pub(super) fn new(attachment: Arc<Attachment>, holder: Arc<Holder>, mode: Concurrency) -> Self {
        let page_bytes = attachment.log().page_bytes() as usize;
        Self {
            first: First::of(Arc::clone(&attachment)),
            attachment,
            holder,
            mode,
            page_bytes,
            state: Owned::default(),
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

    /// Returns the address of a private region (`xShmMap`).
    pub fn map(&self, number: usize, extend: bool) -> Option<*mut c_void> {
        self.state().index.address(number, extend)
    }

    /// Returns whether the connection holds a snapshot.
    pub fn is_reading(&self) -> bool {
        self.state().snapshot.is_some()
    }

    /// Returns the offset at which a frame begins in a WAL. Frames are counted from 1.
    pub(super) fn offset_of(&self, frame: u32) -> usize {
        WAL_HEADER_BYTES + (frame as usize - 1) * self.frame_bytes()
    }

    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.page_bytes
    }

    /// Returns how many bytes of `wal` belong to transactions that have committed.
    pub(super) fn committed_bytes(&self, state: &State) -> usize {
        state.committed.saturating_sub(state.base) as usize * self.frame_bytes()
    }

    /// Returns the size of the database in bytes, as of the snapshot.
    pub fn size(&self) -> Option<u64> {
        let pages = self.state().snapshot?.header.db_pages();
        (pages > 0).then(|| u64::from(pages) * self.page_bytes as u64)
    }

    /// Returns the size of the WAL in bytes.
    pub fn wal_bytes(&self) -> usize {
        let state = self.state();
        match (state.base, state.wal.len()) {
            (0, 0) => 0,
            (base, behind) => self.offset_of(base + 1) + behind,
        }
    }
}

impl State {
    /// Shows SQLite a wal-index that gives the size of the database as of `header`, and a WAL with this many
    /// frames. The index says that all frames but the last are in the database. It says the same of the last
    /// frame only if `is_home`. SQLite then drops its cache.
    pub fn show(&mut self, header: &IndexHeader, frames: u32, is_home: bool) {
        self.changes = self.changes.wrapping_add(1);
        let shown = header.private(frames, self.changes, [random(), random()]);
        self.index.address(Place::of(frames.max(1)).region as usize, true);
        if self.highest > frames {
            // Remove the entries after frame `frames` here. SQLite itself would remove them only if it found
            // one of them in the place of its next frame.
            self.index.forget_after(frames);
        }
        self.highest = frames;
        let Some(first) = self.index.first() else { return };
        first.set_header(&shown);
        first.store(ATTEMPTED_WORD, frames);
        first.store(FIRST_MARK_WORD, 0);
        (2..MARKS).for_each(|mark| first.store(FIRST_MARK_WORD + mark, MARK_NOT_USED));
        self.says_home(if is_home { frames } else { frames.saturating_sub(1) }, frames);
        self.forget_wal(frames);
    }

    /// Lets the private wal-index say that these frames are in the database, and that the readers' mark is at
    /// the frame `mark`.
    pub fn says_home(&self, frames: u32, mark: u32) {
        if let Some(first) = self.index.first() {
            first.store(BACKFILLED_WORD, frames);
            first.store(FIRST_MARK_WORD + 1, mark);
        }
    }

    /// Lets the private wal-index say that everything is in the database, so that SQLite finds nothing that
    /// it would have to write to the database itself.
    pub fn all_is_home(&self) {
        self.says_home(self.frames(), self.frames());
    }

    /// Returns how many frames SQLite's WAL has.
    pub fn frames(&self) -> u32 {
        self.index.first().map_or(0, |first| first.load(FRAMES_WORD))
    }

    /// Forgets the content of all frames of SQLite's WAL. `last` is the last of these frames. Gives back the
    /// memory of a large transaction.
    pub fn forget_wal(&mut self, last: u32) {
        self.wal.clear();
        self.wal.shrink_to(MOST_KEPT);
        (self.base, self.committed) = (last, last);
    }

    /// Notes that the transaction has committed on top of its snapshot, so that the snapshot with this commit
    /// is the newest state. `is_larger` says whether SQLite nevertheless has to drop its cache.
    pub fn has_committed(&mut self, snapshot: &Snapshot, after: IndexHeader, is_larger: bool) {
        (self.own, self.after) = (Some(after), Some(after));
        self.others = self.others.saturating_sub(1);
        self.snapshot = Some(snapshot.moved_to(&after));
        let is_cached = self.cache == Some(snapshot.header) && !is_larger;
        self.cache = is_cached.then_some(after);
    }

    /// Ends the transaction: gives the snapshot back, and prepares the private wal-index for the next one.
    pub fn end(&mut self, holder: &Holder) {
        let Some(snapshot) = self.snapshot.take() else { return };
        snapshot.release(holder);
        self.last = Some(snapshot);
        self.is_beginning = false;
        (self.large, self.large_from) = (None, 0);
        self.has_grown = false;
        let Some(after) = self.after.take() else {
            self.forget_wal(self.committed);
            return;
        };
        self.has_just_committed = true;
        let frames = self.frames();
        // SQLite takes the second mark, and continues after the last frame.
        self.says_home(frames.saturating_sub(1), frames);
        if let Some(first) = self.index.first() {
            // Keep SQLite from opening an older state of this log (`sqlite3_snapshot_open`), because the
            // frames of that state are forgotten.
            first.store(ATTEMPTED_WORD, frames);
        }
        // SQLite's cache holds the transaction only if SQLite has published the transaction in its own
        // wal-index too.
        let is_known = frames == self.committed;
        self.cache = self.cache.filter(|cache| is_known && *cache == after);
        self.forget_wal(frames);
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

/// Returns a random number for a salt. The salt tells one generation of a log from the others.
pub(super) fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(0_u8) >> 32) as u32
}
