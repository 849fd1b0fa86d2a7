//! The words in which the sidecar, the process that copies a log into an archive, tells the log's users which part of
//! the log is in the archive. Commits use the same words to wait for the archive (invariant 70).
//!
//! **How far.** The sidecar stores a position. It stores the position once the archive holds every transaction up to
//! it, and once a later check has shown that no other primary has taken over the archive. No two transactions of a log
//! get the same position, so a commit only has to compare its own position with the stored one. A database has one
//! sidecar, so a plain store of the word is enough.
//!
//! **Sleeping.** A commit that is about to sleep makes a word of `WATCHES` odd, and then checks the position again. The
//! sidecar stores the position first, and then reads the word. If the word is odd, the sidecar makes it even and wakes
//! all commits that sleep on it. So one acknowledgement wakes a whole group, and no commit sleeps through it. The
//! position of a commit determines its word ([`watch_of`]), so an acknowledgement does not wake the many commits with
//! later positions. The sidecar may die between the two steps, so no commit sleeps longer than [`SLICE`] before it
//! checks again.
//!
//! **Whether a sidecar runs.** The word `SIDECAR` names the sidecar's process slot. The kernel tells whether the process
//! in that slot lives.

use std::time::Duration;

use duralite_medium::Segment;

/// The position up to which the archive holds every transaction.
const POSITION: u64 = 0;
/// The time at which the transaction that ends at `POSITION` was sealed, in milliseconds since 1970; 0 if unknown.
const TIME: u64 = 8;
/// The state of the sidecar: [`RUNS`] and the sidecar's process slot, [`FENCED`], or 0 if no sidecar runs.
const SIDECAR: u64 = 16;
/// The number of bytes of pages that were committed and are not in the archive, when the sidecar last counted them.
const BEHIND_BYTES: u64 = 24;
/// The time at which the oldest transaction that is not in the archive was sealed, in milliseconds since 1970; 0 if
/// there is no such transaction. The sidecar stores this word together with `BEHIND_BYTES`.
const BEHIND_SINCE: u64 = 32;
/// The first of the words on which commits sleep.
const WATCHES: u64 = 64;
const WATCH_COUNT: u64 = 8;
/// The number of neighbouring positions that share a word of `WATCHES`.
const WATCHED_TOGETHER: u64 = 64;
/// The position after the newest acknowledged commit. Commits advance it only while `SIDECAR` is not 0.
const NEWEST: u64 = 128;

/// Offset of these words in the segment.
pub const ARCHIVED_OFFSET: u64 = 512;
/// Bytes of the segment that these words occupy; initially zeros.
pub const ARCHIVED_BYTES: u64 = 192;

/// The low byte of `SIDECAR` while a sidecar runs. The other bytes are the sidecar's process slot.
const RUNS: u64 = 1;
/// The value of `SIDECAR` once another primary has taken over the archive.
const FENCED: u64 = 2;

/// How long a commit sleeps before it checks the words again, because the sidecar may have died before it woke anybody.
const SLICE: Duration = Duration::from_millis(100);

/// Returns the word on which a commit with this position sleeps.
fn watch_of(position: u64) -> u64 {
    WATCHES + position / WATCHED_TOGETHER % WATCH_COUNT * 8
}

fn watches() -> impl Iterator<Item = u64> {
    (0..WATCH_COUNT).map(|word| WATCHES + word * 8)
}

/// What is known of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sidecar {
    /// There has been no sidecar since the log's first user attached it, or the last sidecar has ended.
    None,
    /// The sidecar runs.
    Runs,
    /// The sidecar's process has died.
    Died,
    /// The sidecar has found that another primary has taken over the archive.
    Fenced,
}

impl Sidecar {
    /// Returns the name for people and programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "no sidecar",
            Self::Runs => "sidecar runs",
            Self::Died => "sidecar died",
            Self::Fenced => "fenced",
        }
    }
}

/// What the words say at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archived {
    /// The sidecar.
    pub sidecar: Sidecar,
    /// The position up to which the archive holds every transaction; 0 if no sidecar has stored a position.
    pub position: u64,
    /// When the transaction that ends at `position` was sealed, in milliseconds since 1970; 0 if unknown.
    pub time_ms: u64,
    /// The position after the newest acknowledged commit; 0 if no commit was acknowledged while there was a sidecar.
    pub newest: u64,
    /// What the archive lacked when the sidecar last determined it.
    pub behind: Behind,
}

/// The part of a log that is not in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Behind {
    /// The number of missing positions, which may be higher than the number of missing transactions.
    pub transactions: u64,
    /// The number of bytes of the pages that these transactions have written and that the log still has.
    pub bytes: u64,
    /// The time at which the oldest of these transactions was sealed, in milliseconds since 1970. Ignores transactions
    /// that are no longer in the log. 0 if there is no other transaction, or if the log does not record the time.
    pub since_ms: u64,
}

impl Behind {
    /// Returns the sum of this part and the part that comes after it.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            transactions: self.transactions + later.transactions,
            bytes: self.bytes + later.bytes,
            since_ms: if self.since_ms > 0 { self.since_ms } else { later.since_ms },
        }
    }
}

/// Why a commit that has waited is not known to be in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotArchived {
    /// Another primary has taken over the archive, so the archive will never have the commit.
    Fenced,
    /// The archive did not have the commit when the time limit ended. The sidecar was then in this state.
    Late(Sidecar),
}

/// The words of a segment, at the offset `base`.
#[derive(Clone, Copy)]
pub struct ArchivedWords<'a> {
    segment: &'a dyn Segment,
    base: u64,
}

impl<'a> ArchivedWords<'a> {
    /// Returns the words at this offset of a segment.
    #[must_use]
    pub fn new(segment: &'a dyn Segment, base: u64) -> Self {
        Self { segment, base }
    }

    fn load(&self, word: u64) -> u64 {
        self.segment.load(self.base + word)
    }

    fn store(&self, word: u64, value: u64) {
        self.segment.store(self.base + word, value);
    }

    /// Returns whether there has been a sidecar since the segment was initialised. Costs one load, or two.
    #[must_use]
    pub fn have_been_set(&self) -> bool {
        self.load(SIDECAR) != 0 || self.load(TIME) != 0
    }

    /// Returns what the words say now.
    #[must_use]
    pub fn look(&self) -> Archived {
        let (position, newest) = (self.load(POSITION), self.load(NEWEST));
        Archived {
            sidecar: self.sidecar(),
            position,
            time_ms: self.load(TIME),
            newest,
            behind: Behind {
                transactions: newest.saturating_sub(position),
                bytes: self.load(BEHIND_BYTES),
                since_ms: self.load(BEHIND_SINCE),
            },
        }
    }

    fn sidecar(&self) -> Sidecar {
        match self.load(SIDECAR) {
            0 => Sidecar::None,
            FENCED => Sidecar::Fenced,
            // If the kernel does not say whether the process lives, the sidecar counts as alive. Commits then wait for it.
            word if self.segment.is_alive((word >> 8) as usize).unwrap_or(true) => Sidecar::Runs,
            _ => Sidecar::Died,
        }
    }
}

/// For the sidecar.
impl ArchivedWords<'_> {
    /// Announces this process as the sidecar, and stores what [`ArchivedWords::set`] stores.
    pub fn announce(&self, position: u64, time_ms: u64) {
        self.store(SIDECAR, RUNS | (self.segment.process_slot() as u64) << 8);
        self.set(position, time_ms);
        // The previous sidecar may have died before it had woken everybody.
        self.wake_all();
    }

    /// Withdraws this sidecar's announcement, unless another primary has taken over the archive.
    pub fn withdraw(&self) {
        let own = RUNS | (self.segment.process_slot() as u64) << 8;
        let _ = self.segment.compare_exchange(self.base + SIDECAR, own, 0);
        self.wake_all();
    }

    /// Stores the position up to which the archive holds the log, and the time at which the transaction that ends at
    /// that position was sealed. Wakes the commits that wait.
    pub fn set(&self, position: u64, time_ms: u64) {
        let before = self.load(POSITION);
        self.store(TIME, time_ms);
        self.store(POSITION, position);
        for together in (before / WATCHED_TOGETHER..=position / WATCHED_TOGETHER).take(WATCH_COUNT as usize) {
            self.wake(watch_of(together * WATCHED_TOGETHER));
        }
    }

    /// Stores how many bytes the archive lacks, and when the oldest transaction that it lacks was sealed.
    pub fn set_behind(&self, bytes: u64, since_ms: u64) {
        self.store(BEHIND_BYTES, bytes);
        self.store(BEHIND_SINCE, since_ms);
    }

    /// Records that another primary has taken over the archive.
    pub fn set_fenced(&self) {
        self.store(SIDECAR, FENCED);
        self.wake_all();
    }

    /// Returns whether a commit may be asleep.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        watches().any(|watch| self.load(watch) & 1 == 1)
    }

    fn wake_all(&self) {
        watches().for_each(|watch| self.wake(watch));
    }

    fn wake(&self, watch: u64) {
        let word = self.base + watch;
        let seen = self.segment.load(word);
        if seen & 1 == 1 && self.segment.compare_exchange(word, seen, seen.wrapping_add(1)).is_ok() {
            self.segment.wake(word, u32::MAX >> 1);
        }
    }
}

/// For the log's users.
impl ArchivedWords<'_> {
    /// Records that the commit that ends at this position is acknowledged. Without a sidecar, costs one load.
    pub fn committed(&self, position: u64) {
        if self.load(SIDECAR) == 0 {
            return;
        }
        let mut newest = self.load(NEWEST);
        while newest < position {
            match self.segment.compare_exchange(self.base + NEWEST, newest, position) {
                Ok(_) => break,
                Err(other) => newest = other,
            }
        }
    }

    /// Waits, for at most `limit`, until the archive holds every transaction up to a position.
    ///
    /// # Errors
    /// `Fenced` or `Late`: the archive is not known to hold the transactions.
    pub fn wait(&self, position: u64, limit: Duration) -> Result<(), NotArchived> {
        let start = self.segment.clock_ns();
        loop {
            if self.load(POSITION) >= position {
                return Ok(());
            }
            let watch = watch_of(position);
            let watched = self.announce_sleep(watch);
            if self.load(POSITION) >= position {
                // The sidecar may have acknowledged the commit before this thread made the word odd. In that case no
                // other thread makes the word even soon, so make it even here.
                self.wake(watch);
                return Ok(());
            }
            let sidecar = self.sidecar();
            if sidecar == Sidecar::Fenced {
                // If the sidecar acknowledged a transaction before another primary took over the archive, the
                // transaction stays acknowledged.
                let is_archived = self.load(POSITION) >= position;
                return if is_archived { Ok(()) } else { Err(NotArchived::Fenced) };
            }
            let waited = Duration::from_nanos(self.segment.clock_ns().saturating_sub(start));
            let left = limit.saturating_sub(waited);
            if left.is_zero() {
                return Err(NotArchived::Late(sidecar));
            }
            self.segment.wait(self.base + watch, (watched & 0xffff_ffff) as u32, left.min(SLICE));
        }
    }

    /// Announces that this thread is about to sleep on a word. Returns the value of the word.
    fn announce_sleep(&self, watch: u64) -> u64 {
        loop {
            let seen = self.load(watch);
            let watched = seen | 1;
            if seen == watched || self.segment.compare_exchange(self.base + watch, seen, watched).is_ok() {
                return watched;
            }
        }
    }
}
