//! The words that followers of a log share with its writers: the position that each follower has pinned, and the word
//! that wakes followers.
//!
//! **Pins.** Each process slot has one word: the position that its follower has pinned plus 1, or 0. A writer starts the
//! log over under SQLite's WRITE lock. The writer first announces in `RECYCLABLE` the position up to which it would recycle
//! the log, and then reads the pins. A follower stores its pin first, and then reads the announcement. So at least one of
//! the two sees the other: either the writer keeps the log, or the follower withdraws its pin. The writer ignores the pin
//! of a dead process.
//!
//! The writer stores its decision in `DECIDED`. The decision holds until a transaction is added to the log. The VFS
//! asks for the decision before SQLite resets the wal-index, and the log starts over only later. In between, a follower
//! may have stored a pin that it is about to withdraw. The stored decision keeps the writer from changing its answer
//! because of that pin.
//!
//! **Requests.** A follower may copy the log to a slow store, and pin the position that the copy has reached. If
//! connections keep committing, such a pin never reaches the log's end, and the log grows up to its limit. So a writer
//! that wants to start the log over stores a position in `ASKED`. This asks followers to read up to that position, keep
//! in memory what they have read, and pin that position. The word is only a request: a follower that does not answer
//! keeps its pin.
//!
//! If a writer dies after its announcement, the announcement stays. Followers then cannot pin earlier positions,
//! although the log still has those transactions, until another writer starts the log over or asks again. No
//! transaction is lost.
//!
//! **Sleeping.** A follower that is about to sleep makes `WATCH` odd. A process that acknowledges a commit and finds
//! `WATCH` odd makes the word even and wakes all followers. If no follower sleeps, a commit only loads the word.

use std::sync::Arc;
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS, Segment, Words};

const RECYCLABLE: u64 = 0;
const PRESSED: u64 = 8;
/// The position, plus 1, up to which a writer has decided that the log may be recycled.
const DECIDED: u64 = 16;
/// The position, plus 1, up to which a writer has asked followers to read; 0 if no writer has asked.
const ASKED: u64 = 24;
const WATCH: u64 = 64;
const TABLE: u64 = 128;

/// Offset of these words in the segment.
pub const PINS_OFFSET: u64 = 1024;
/// Bytes of the segment that these words occupy; initially zeros.
pub const PINS_BYTES: u64 = TABLE + 8 * PROCESS_SLOTS as u64;

/// The pins of a log, as one process slot sees them.
#[derive(Clone)]
pub struct Pins {
    words: Words,
    /// Offset of this process slot's pin.
    own: u64,
}

/// The transactions that a writer would recycle by starting the log over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recycling {
    /// The position before the first transaction in the log.
    pub oldest: u64,
    /// The position after the last transaction in the log.
    pub end: u64,
    /// Whether the log is so near its limit that it may start over regardless of followers.
    pub is_full: bool,
}

/// What followers mean for an attempt to start the log over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followers {
    /// No follower has pinned a position.
    None,
    /// The log cannot start over now. Some follower has neither read to the log's end nor answered a request since the
    /// log last started over.
    Behind,
    /// The log can probably start over soon, for one of three reasons: the followers are at the log's end; the log
    /// ignores their pins; or they have answered a request since the log last started over. A follower that has
    /// answered one request is expected to answer the next while the holder of the WRITE lock waits.
    Answer,
}

impl Pins {
    /// Returns the pins at offset `base` of the segment.
    #[must_use]
    pub fn new(segment: Arc<dyn Segment>, base: u64) -> Self {
        let own = TABLE + 8 * segment.process_slot() as u64;
        Self { words: Words::new(segment, base, (PINS_BYTES / 8) as usize), own }
    }

    /// Removes this process slot's pin, or the pin of a dead process that had the slot before.
    pub fn unpin(&self) {
        self.words.store(self.own, 0);
    }

    /// Pins the log from a position on. Returns `false` if a writer may already have decided to start the log over past
    /// this position; an earlier pin then stays. A pin that is in force can always be moved forward.
    #[must_use]
    pub fn pin(&self, position: u64) -> bool {
        let held = self.words.load(self.own);
        let wanted = position.saturating_add(1);
        self.words.store(self.own, wanted);
        if held != 0 && held <= wanted || position >= self.words.load(RECYCLABLE) {
            return true;
        }
        self.words.store(self.own, held);
        false
    }

    /// Returns whether the log may start over. The holder of the WRITE lock calls this method. After it returns `true`, no
    /// follower can pin a transaction before the log's end (invariant 16).
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub fn may_recycle(&self, recycling: &Recycling) -> Result<bool, MediumError> {
        let Recycling { oldest, end, is_full } = *recycling;
        let decided = end.saturating_add(1);
        if oldest == end || self.words.load(DECIDED) == decided {
            return Ok(true);
        }
        self.words.store(RECYCLABLE, end);
        if is_full || self.words.load(PRESSED) == oldest.saturating_add(1) {
            self.words.store(DECIDED, decided);
            return Ok(true);
        }
        for process in 0..PROCESS_SLOTS as u64 {
            let pin = self.words.load(TABLE + 8 * process);
            if pin != 0 && pin <= end && self.words.segment().is_alive(process as usize)? {
                self.words.store(RECYCLABLE, oldest);
                return Ok(false);
            }
        }
        self.words.store(DECIDED, decided);
        Ok(true)
    }

    /// Returns the lowest position that a living process has pinned.
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub fn oldest(&self) -> Result<Option<u64>, MediumError> {
        let mut oldest = None;
        for process in 0..PROCESS_SLOTS as u64 {
            let pin = self.words.load(TABLE + 8 * process);
            if pin != 0
                && oldest.is_none_or(|oldest| pin - 1 < oldest)
                && self.words.segment().is_alive(process as usize)?
            {
                oldest = Some(pin - 1);
            }
        }
        Ok(oldest)
    }

    /// If a living process has pinned a position before the log's end, asks followers to read up to the end. `pinned`
    /// is the lowest position that a living process has pinned. Does not change a request that is not answered yet.
    /// Otherwise many processes could move the request faster than a follower reads.
    #[must_use]
    pub fn ask(&self, pinned: u64, recycling: &Recycling) -> Followers {
        let Recycling { oldest, end, is_full } = *recycling;
        if pinned >= end || is_full || self.words.load(PRESSED) == oldest.saturating_add(1) {
            return Followers::Answer;
        }
        let asked = self.asked();
        let is_unanswered = asked > oldest && pinned < asked;
        if !is_unanswered {
            self.words.store(ASKED, end.saturating_add(1));
        }
        let answers = asked > oldest && !is_unanswered;
        if answers { Followers::Answer } else { Followers::Behind }
    }

    /// Returns the position up to which a writer has last asked followers to read; 0 if none has.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.words.load(ASKED).saturating_sub(1)
    }

    /// Records that the log has no space for another transaction, so that it may start over regardless of followers.
    /// `oldest` is the position before the log's first transaction.
    pub fn press(&self, oldest: u64) {
        self.words.store(PRESSED, oldest.saturating_add(1));
    }

    /// Announces that this process is about to sleep. Returns the argument for [`Pins::sleep`]. Between the two calls,
    /// the caller must check again whether it still has to wait, because an earlier acknowledgement wakes nobody.
    #[must_use]
    pub fn watch(&self) -> u64 {
        loop {
            let seen = self.words.load(WATCH);
            let watched = seen | 1;
            if seen == watched || self.words.compare_exchange(WATCH, seen, watched).is_ok() {
                return watched;
            }
        }
    }

    /// Sleeps until a commit is acknowledged after [`Pins::watch`] returned `watched`, or for at most `limit`. May
    /// return early without a cause.
    pub fn sleep(&self, watched: u64, limit: Duration) {
        self.words.wait(WATCH, (watched & 0xffff_ffff) as u32, limit);
    }
}

/// Wakes the followers that sleep.
pub(crate) fn notify(segment: &dyn Segment, base: u64) {
    let word = base + WATCH;
    let seen = segment.load(word);
    if seen & 1 == 1 && segment.compare_exchange(word, seen, seen.wrapping_add(1)).is_ok() {
        segment.wake(word, u32::MAX >> 1);
    }
}
