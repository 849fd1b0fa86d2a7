//! The words that followers of a log share with those who write it: up to where each follower has the log
//! kept, and how it is woken.
//!
//! **Pins.** A process slot has one word: the position that its follower has reached, and 1 more, or 0.
//! Whoever starts the log over holds SQLite's WRITE lock. It first announces in `RECYCLABLE` the position
//! up to which the log goes, and then looks at the pins; whoever pins stores its word first, and then looks
//! at what is announced. So at least one of them sees the other: the log stays, or the pin is refused. A pin of a
//! process that is dead counts for nothing.
//!
//! The answer stands for the log as it is (`DECIDED`): SQLite asks before it starts its index over, and the log follows
//! later, when a pin may just have been stored that is about to be refused.
//!
//! A process that dies after its announcement leaves it. Then pins before it are refused though the log is
//! there still, until somebody starts the log over or asks whether it can; nothing is lost by that.
//!
//! **Sleeping.** A follower that is about to sleep makes `WATCH` odd; whoever acknowledges a commit and
//! finds it odd makes it even and wakes all. Without a follower that costs a load.

use std::sync::Arc;
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS, Segment};

const RECYCLABLE: u64 = 0;
const PRESSED: u64 = 8;
/// A position up to which the log may be recycled for certain, and 1 more.
const DECIDED: u64 = 16;
const WATCH: u64 = 64;
const TABLE: u64 = 128;

/// Where they are in the memory that the users of a log share.
pub const PINS_OFFSET: u64 = 1024;
/// Bytes of it that they take; zeros at first.
pub const PINS_BYTES: u64 = TABLE + 8 * PROCESS_SLOTS as u64;

/// The pins of a log, as one process slot sees them.
#[derive(Clone)]
pub struct Pins {
    segment: Arc<dyn Segment>,
    base: u64,
}

/// What whoever starts the log over would recycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recycling {
    /// The position before the first transaction in the log.
    pub oldest: u64,
    /// That after the last one.
    pub end: u64,
    /// Whether the log is so near its limit that it starts over whoever follows it.
    pub is_full: bool,
}

impl Pins {
    /// Those at a place of the segment.
    #[must_use]
    pub fn new(segment: Arc<dyn Segment>, base: u64) -> Self {
        Self { segment, base }
    }

    fn load(&self, word: u64) -> u64 {
        self.segment.load(self.base + word)
    }

    fn store(&self, word: u64, value: u64) {
        self.segment.store(self.base + word, value);
    }

    fn own(&self) -> u64 {
        TABLE + 8 * self.segment.process_slot() as u64
    }

    /// Gives up this process slot's pin, or that of a dead process which had the slot before.
    pub fn unpin(&self) {
        self.store(self.own(), 0);
    }

    /// Has the log kept from a position on; whether it is. If not, an earlier pin still holds. One that
    /// holds may always be moved forward.
    #[must_use]
    pub fn pin(&self, position: u64) -> bool {
        let held = self.load(self.own());
        let wanted = position.saturating_add(1);
        self.store(self.own(), wanted);
        if held != 0 && held <= wanted || position >= self.load(RECYCLABLE) {
            return true;
        }
        self.store(self.own(), held);
        false
    }

    /// Whether the log may start over, asked by the holder of the WRITE lock. If so, no transaction before
    /// its end can be pinned any more.
    ///
    /// # Errors
    /// When the kernel does not tell which processes live.
    pub fn may_recycle(&self, recycling: &Recycling) -> Result<bool, MediumError> {
        let Recycling { oldest, end, is_full } = *recycling;
        let decided = end.saturating_add(1);
        if oldest == end || self.load(DECIDED) == decided {
            return Ok(true);
        }
        self.store(RECYCLABLE, end);
        if is_full || self.load(PRESSED) == oldest.saturating_add(1) {
            self.store(DECIDED, decided);
            return Ok(true);
        }
        for process in 0..PROCESS_SLOTS as u64 {
            let pin = self.load(TABLE + 8 * process);
            if pin != 0 && pin <= end && self.segment.is_alive(process as usize)? {
                self.store(RECYCLABLE, oldest);
                return Ok(false);
            }
        }
        self.store(DECIDED, decided);
        Ok(true)
    }

    /// The lowest position that a living process has pinned.
    ///
    /// # Errors
    /// When the kernel does not tell which processes live.
    pub fn oldest(&self) -> Result<Option<u64>, MediumError> {
        let mut oldest = None;
        for process in 0..PROCESS_SLOTS as u64 {
            let pin = self.load(TABLE + 8 * process);
            if pin != 0
                && oldest.is_none_or(|oldest| pin - 1 < oldest)
                && self.segment.is_alive(process as usize)?
            {
                oldest = Some(pin - 1);
            }
        }
        Ok(oldest)
    }

    /// Notes that the log, whose first transaction is after `oldest`, has no room for another one: it may start
    /// over whoever follows it.
    pub fn press(&self, oldest: u64) {
        self.store(PRESSED, oldest.saturating_add(1));
    }

    /// Announces that this process is about to sleep; returns what [`Pins::sleep`] takes. What is to be
    /// waited for is looked at in between.
    #[must_use]
    pub fn watch(&self) -> u64 {
        loop {
            let seen = self.load(WATCH);
            let watched = seen | 1;
            if seen == watched || self.segment.compare_exchange(self.base + WATCH, seen, watched).is_ok() {
                return watched;
            }
        }
    }

    /// Sleeps until a commit is acknowledged after [`Pins::watch`] returned `watched`, or for at most `limit`.
    /// May return early for no reason.
    pub fn sleep(&self, watched: u64, limit: Duration) {
        self.segment.wait(self.base + WATCH, (watched & 0xffff_ffff) as u32, limit);
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
