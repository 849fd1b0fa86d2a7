//! Reserves log space for a transaction's step before the step changes anything, so that every change can be undone.
//!
//! Invariant 38: before a transaction changes anything, the log has room for that change and for the undo of everything
//! that transactions in progress have changed. So a rollback never fails for lack of room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::log::{Log, Space};

/// While checkpoints are slow, a thread waits for log space for up to this time beyond the caller's limit.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const MIB: u128 = 1 << 20;

/// The log space that transactions have reserved, and the threads that wait for space.
#[derive(Debug)]
pub(crate) struct Admission {
    log: Arc<dyn Log>,
    bytes: AtomicU64,
    objects: AtomicU64,
    /// The number of threads that wait.
    waiting: Mutex<u64>,
    /// The number of checkpoints that have ended.
    rounds: AtomicU64,
    changed: Condvar,
}

/// Reserved space in the log: for one step, or for the undo of a transaction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
}

impl Admission {
    pub(crate) fn new(log: Arc<dyn Log>) -> Self {
        Self {
            log,
            bytes: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            waiting: Mutex::new(0),
            rounds: AtomicU64::new(0),
            changed: Condvar::new(),
        }
    }

    /// Reserves room for a step. If the log has no room, waits for a checkpoint to free some, for at most `limit` plus
    /// `LONGEST_WAIT`. `own` is the room that the step's transaction has already reserved.
    ///
    /// # Errors
    /// [`Error::Full`] if no room becomes free in time, or if the log is too small for the transaction.
    pub(crate) fn keep(&self, room: Room, own: Room, limit: Duration) -> Result<(), Error> {
        if self.try_keep(room).is_ok() {
            return Ok(());
        }
        // While the count is raised, a checkpoint sees that a thread waits for room, even if the checkpoint begins
        // between two attempts. Such a checkpoint copies the undo of old transactions to the end of the log, so that it
        // can discard more of the log.
        *self.waiting.lock() += 1;
        let kept = self.wait(room, own, limit);
        *self.waiting.lock() -= 1;
        kept
    }

    fn wait(&self, room: Room, own: Room, limit: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        let rounds = self.rounds.load(Ordering::SeqCst);
        loop {
            let Err(space) = self.try_keep(room) else { return Ok(()) };
            could_fit(room, own, space)?;
            // A slow disk alone is no reason to fail. So this thread waits up to `LONGEST_WAIT` beyond the limit, as
            // long as fewer than two checkpoints have ended since it began to wait.
            let tried = self.rounds.load(Ordering::SeqCst) >= rounds + 2;
            if begun.elapsed() >= if tried { limit } else { limit + LONGEST_WAIT } {
                return Err(Error::full(
                    "the log is full, because large transactions in progress need its space; commit them or \
                     roll them back, or raise Options::log_bytes",
                ));
            }
            let mut waiting = self.waiting.lock();
            self.changed.wait_for(&mut waiting, Duration::from_millis(5));
        }
    }

    /// Checks that an empty log could hold `room` in addition to what the transaction has already reserved (`own`).
    ///
    /// # Errors
    /// [`Error::Full`], which names a sufficient log size.
    pub(crate) fn check(&self, room: Room, own: Room) -> Result<(), Error> {
        could_fit(room, own, self.log.space())
    }

    /// Reserves room if there is enough now. Otherwise returns the log's space as the error.
    fn try_keep(&self, room: Room) -> Result<(), Space> {
        let bytes = self.bytes.fetch_add(room.bytes, Ordering::SeqCst) + room.bytes;
        let objects = self.objects.fetch_add(room.objects, Ordering::SeqCst) + room.objects;
        let space = self.log.space();
        if space.free_bytes >= bytes * 2 && space.free_objects >= objects * 2 {
            return Ok(());
        }
        self.give_back(room);
        Err(space)
    }

    /// Returns whether the keeper may write this much to the log, in addition to the steps of transactions. Enough
    /// space must remain to undo every transaction in progress.
    pub(crate) fn may_spend(&self, room: Room) -> bool {
        let space = self.log.space();
        space.free_bytes >= self.bytes.load(Ordering::SeqCst) + room.bytes
            && space.free_objects >= self.objects.load(Ordering::SeqCst) + room.objects
    }

    /// Gives back the room of a step, and reserves room for the undo of that step instead. The undo needs less room, so
    /// this function need not check the log's free space.
    pub(crate) fn exchange(&self, step: Room, undo: Room) {
        self.bytes.fetch_add(undo.bytes.wrapping_sub(step.bytes), Ordering::SeqCst);
        self.objects.fetch_add(undo.objects.wrapping_sub(step.objects), Ordering::SeqCst);
    }

    /// Reserves room for the undo of a step that has been logged. The caller still holds the step's own room, which is
    /// larger, and gives it back after this call. So this function need not check the log's free space.
    pub(crate) fn keep_for_undo(&self, room: Room) {
        self.exchange(Room::default(), room);
    }

    pub(crate) fn give_back(&self, room: Room) {
        self.bytes.fetch_sub(room.bytes, Ordering::SeqCst);
        self.objects.fetch_sub(room.objects, Ordering::SeqCst);
    }

    /// Returns whether a thread waits for room.
    pub(crate) fn is_short(&self) -> bool {
        *self.waiting.lock() > 0
    }

    /// Wakes the waiting threads, which then check again whether there is room. The engine calls this after each
    /// checkpoint.
    pub(crate) fn look_again(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// Checks that the log has room for three times what the transaction needs: once for what it writes, once for its undo,
/// and once for other transactions.
fn could_fit(room: Room, own: Room, space: Space) -> Result<(), Error> {
    let needs = Room { bytes: (own.bytes + room.bytes) * 3, objects: (own.objects + room.objects) * 3 };
    if needs.bytes <= space.all_bytes && needs.objects <= space.all_objects {
        return Ok(());
    }
    // Computes a sufficient log size for the error message. The number of objects that fit grows with the log's size.
    // The factor 3/2 allows for padding: in a log on a disk, up to a quarter of the bytes may only fill up blocks.
    let all = u128::from(space.all_bytes);
    let for_objects = all * u128::from(needs.objects) / u128::from(space.all_objects.max(1));
    let bytes = u128::from(needs.bytes).max(for_objects) * 3 / 2 + MIB;
    let log_bytes = bytes.div_ceil(MIB) * MIB;
    Err(Error::Full {
        what: format!(
            "the transaction is too large for a log of {all} bytes, of which it may take a third; set Options::log_bytes to \
             {log_bytes} or more, or split the transaction"
        ),
    })
}
