//! Locks on rows, on ranges of keys, and on tables. Locking is strict two-phase: a transaction holds its locks until it
//! ends.
//!
//! Invariant 36: a transaction that reads a range locks it against every change of a key in the range, whether or not
//! the key has a row. A transaction that changes a row locks the row's key. So no transaction sees only a part of
//! another's changes. Locks are named by keys, so a deleted row stays locked. No thread waits for a lock while it holds
//! a latch.

mod inherit;
mod key;
mod mode;
mod owner;
mod part;
mod ranges;
mod waits;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHasher;

use self::inherit::Left;
pub(crate) use self::key::Key;
pub(crate) use self::mode::Mode;
pub(crate) use self::owner::Owner;
use self::owner::Wait;
use self::part::{Answer, Part};
pub(crate) use self::part::{TableId, Target};
pub(crate) use self::ranges::{KeyRange, is_empty};
use self::waits::Waits;
use crate::sync::{Deadline, Mutex, MutexGuard, thread_number};

/// The number of places in which threads leave locks for their next transactions. A thread's number selects its place.
const THREADS: usize = 64;
/// The largest number of locks that a thread leaves for its next transaction.
const MOST_LEFT: usize = 32;
/// The number of parts of the lock table. A row's hash selects the part; a range is locked in every part.
pub(crate) const PARTS: usize = 16;
/// The interval at which a waiting transaction again determines for whom it waits. This finds cycles that arise after
/// the wait has begun.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// The reason why a lock was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Deadlock,
    Timeout,
}

/// All locks of a store.
#[derive(Debug)]
pub(crate) struct Locks {
    sections: Box<[Section]>,
    waits: Waits,
    /// The places for the locks that threads inherit. Empty if locks are not inherited.
    places: Box<[Place]>,
    pub(crate) waited: AtomicU64,
    pub(crate) deadlocks: AtomicU64,
    pub(crate) timeouts: AtomicU64,
}

/// A part of the lock table. It has cache lines of its own, so that threads that use different parts do not contend for
/// a line.
#[derive(Debug)]
#[repr(align(128))]
struct Section {
    part: Mutex<Part>,
    /// The number of transactions that wait for a lock in this part.
    waiting: AtomicUsize,
}

/// The place where a thread's transactions leave locks for the next one. It has cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Place {
    /// The locks and the memory that the last transaction left; `None` while a transaction is using them.
    left: Mutex<Option<Inherited>>,
    /// The number of times that a transaction used an inherited lock of this place.
    used: AtomicU64,
}

/// The locks and the memory that a transaction leaves to the next transaction on its thread.
#[derive(Debug, Default)]
struct Inherited {
    /// The inherited locks, each with a flag that says whether the current transaction uses it.
    left: Vec<(Left, bool)>,
    /// The emptied list of the last transaction's own locks, kept to reuse its memory.
    list: Vec<(usize, Target)>,
}

/// The largest number of entries for which a list keeps memory, so that one large transaction does not hold memory
/// forever.
const MOST_LISTED: usize = 256;

/// The locks of a transaction.
#[derive(Debug)]
pub(crate) struct Held {
    owner: Arc<Owner>,
    locks: Vec<(usize, Target)>,
    /// Locks that earlier transactions have left, each with a flag that says whether this transaction uses it. They go
    /// back to the place of `thread` when the transaction ends.
    left: Vec<(Left, bool)>,
    thread: Option<usize>,
    /// The newest commit of another transaction on which this transaction depends, as the number of its log object.
    /// Until that object and all earlier ones are durable, a crash could undo what this transaction has read. So the
    /// transaction's own commit waits for them.
    depends_on: u64,
}

impl Held {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            owner: Arc::new(Owner::new(id)),
            locks: Vec::new(),
            left: Vec::new(),
            thread: None,
            depends_on: 0,
        }
    }

    /// Returns how many locks the transaction holds, not counting inherited ones. A range counts once for each part of
    /// the lock table.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.locks.len()
    }

    pub(crate) fn depends_on(&self) -> u64 {
        self.depends_on
    }
}

/// Returns the index of the part that has the locks of a row.
pub(crate) fn part_of(table: TableId, key: &[u8]) -> usize {
    let mut hasher = FxHasher::default();
    (table, key).hash(&mut hasher);
    (hasher.finish() >> 40) as usize % PARTS
}

impl Locks {
    /// Makes an empty lock table. `inherit` says whether transactions leave locks to the next transaction on their
    /// thread.
    pub(crate) fn new(inherit: bool) -> Self {
        let threads = if inherit { THREADS } else { 0 };
        let section = || Section { part: Mutex::new(Part::default()), waiting: AtomicUsize::new(0) };
        let place = || Place { left: Mutex::new(Some(Inherited::default())), used: AtomicU64::new(0) };
        Self {
            sections: (0..PARTS).map(|_| section()).collect(),
            waits: Waits::default(),
            places: (0..threads).map(|_| place()).collect(),
            waited: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
        }
    }

    /// Begins a transaction of this age. At first it holds at most the locks that the previous transaction on its
    /// thread has left.
    pub(crate) fn begin(&self, age: u64) -> Held {
        let mut held = Held::new(age);
        let Some(thread) = thread_number().checked_rem(self.places.len()) else { return held };
        if let Some(inherited) = self.places[thread].left.lock().take() {
            held.thread = Some(thread);
            held.left = inherited.left;
            held.locks = inherited.list;
        }
        held
    }

    /// Returns how often a transaction used an inherited lock.
    pub(crate) fn inherited(&self) -> u64 {
        self.places.iter().map(|place| place.used.load(Ordering::Relaxed)).sum()
    }

    fn part(&self, at: usize) -> MutexGuard<'_, Part> {
        self.sections[at].part.lock()
    }

    /// Tries to use an inherited lock on a table. Returns whether the transaction now holds the lock.
    fn inherit(&self, held: &mut Held, table: TableId, mode: Mode) -> bool {
        let owner = held.owner.id;
        let strong =
            held.left.iter_mut().find(|(left, _)| left.table == table && left.mode.and(mode) == left.mode);
        let Some((left, is_used)) = strong else { return false };
        if !*is_used {
            *is_used = left.by.begin(owner);
            if let Some(place) = held.thread.and_then(|thread| self.places.get(thread)) {
                place.used.fetch_add(u64::from(*is_used), Ordering::Relaxed);
            }
        }
        *is_used
    }

    /// Takes a lock, or strengthens a lock that the transaction holds. A range is locked in one part after another.
    ///
    /// # Errors
    /// [`Refused`]; the transaction keeps the locks that it held before.
    pub(crate) fn take(
        &self,
        held: &mut Held,
        target: &Target,
        mode: Mode,
        limit: Duration,
    ) -> Result<(), Refused> {
        match target {
            Target::Table(table) if self.inherit(held, *table, mode) => Ok(()),
            Target::Table(table) => self.take_part(part_of(*table, &[]), held, target, mode, limit),
            Target::Row(table, key) => self.take_part(part_of(*table, key), held, target, mode, limit),
            Target::Range(..) => {
                (0..PARTS).try_for_each(|part| self.take_part(part, held, target, mode, limit))
            }
        }
    }

    fn take_part(
        &self,
        at: usize,
        held: &mut Held,
        target: &Target,
        mode: Mode,
        limit: Duration,
    ) -> Result<(), Refused> {
        let mut part = self.part(at);
        let is_new = match part.request(held.owner.id, target, mode) {
            Answer::Granted { is_new } => is_new,
            Answer::Conflict(against) => {
                held.owner.begin();
                part.wait(&held.owner, target, mode);
                self.sections[at].waiting.store(part.waiting(), Ordering::SeqCst);
                // When this thread checked, an inherited lock may have been in use that is now unused. So grant the
                // queued requests that no longer conflict with any lock.
                part.let_through();
                drop(part);
                self.waited.fetch_add(1, Ordering::Relaxed);
                let waited = self.wait(at, &held.owner, against, limit);
                self.waits.over(held.owner.id);
                let is_new = waited.inspect_err(|refused| {
                    let count = if *refused == Refused::Deadlock { &self.deadlocks } else { &self.timeouts };
                    count.fetch_add(1, Ordering::Relaxed);
                })?;
                part = self.part(at);
                is_new
            }
        };
        held.depends_on = held.depends_on.max(part.early());
        drop(part);
        if is_new {
            held.locks.push((at, target.clone()));
        }
        Ok(())
    }

    /// Waits in the queue of a part until the lock is granted. Returns true if the owner had no lock on this target
    /// before, and false if it had one in a weaker mode.
    fn wait(
        &self,
        at: usize,
        owner: &Arc<Owner>,
        against: Vec<u64>,
        limit: Duration,
    ) -> Result<bool, Refused> {
        let deadline = Deadline::after(limit);
        self.waits.wait(owner, against);
        loop {
            match owner.state() {
                Wait::Granted { is_new } => return Ok(is_new),
                Wait::Waits if !deadline.is_over() => {}
                state => {
                    let mut part = self.part(at);
                    // Another thread may have granted the lock before this thread took the mutex.
                    if let Wait::Granted { is_new } = owner.state() {
                        return Ok(is_new);
                    }
                    part.leave(owner.id);
                    self.sections[at].waiting.store(part.waiting(), Ordering::SeqCst);
                    return Err(if state == Wait::GivesWay { Refused::Deadlock } else { Refused::Timeout });
                }
            }
            owner.parker().sleep(deadline.left().min(LOOK_AROUND));
            let against = self.part(at).waits_for(owner.id);
            if let Some(against) = against {
                self.waits.wait(owner, against);
            }
        }
    }

    /// Releases all locks. `early` is the number of a commit that is not durable yet, or 0. A transaction that later
    /// takes one of these locks depends on that commit.
    pub(crate) fn release(&self, held: &mut Held, early: u64) {
        held.locks.sort_unstable_by_key(|(part, _)| *part);
        let inherited = held.left.len();
        let mut locks = held.locks.drain(..).peekable();
        while let Some((at, mut target)) = locks.next() {
            let mut part = self.part(at);
            loop {
                let may_stay = held.thread.is_some() && held.left.len() < MOST_LEFT;
                let left = if may_stay { part.leave_to_next(held.owner.id, &target) } else { None };
                match left {
                    Some(left) => held.left.push((left, false)),
                    None => part.release(held.owner.id, target, early),
                }
                match locks.next_if(|(next, _)| *next == at) {
                    Some((_, next)) => target = next,
                    None => break,
                }
            }
            part.let_through();
            self.sections[at].waiting.store(part.waiting(), Ordering::SeqCst);
        }
        drop(locks);
        self.leave(held, inherited);
    }

    /// Releases the lock on a table whose creation was undone. The transaction continues, and keeps its locks on the
    /// table's rows until it ends. Until then, snapshots take these rows from the old versions that the transaction has
    /// noted.
    pub(crate) fn release_table(&self, held: &mut Held, table: u64) {
        let at = part_of(table, &[]);
        let is_it = |held: &(usize, Target)| matches!(held.1, Target::Table(found) if found == table);
        let Some(index) = held.locks.iter().position(is_it) else { return };
        let (_, target) = held.locks.swap_remove(index);
        let mut part = self.part(at);
        part.release(held.owner.id, target, 0);
        part.let_through();
        self.sections[at].waiting.store(part.waiting(), Ordering::SeqCst);
    }

    /// Leaves locks to the next transaction on the thread. The first `inherited` entries of `left` are locks that an
    /// earlier transaction left to this one. The entries after them are locks that this transaction adds.
    fn leave(&self, held: &mut Held, inherited: usize) {
        let Some(thread) = held.thread.take() else { return };
        for (left, is_used) in held.left.iter_mut().take(inherited).filter(|(_, is_used)| *is_used) {
            *is_used = false;
            left.by.end();
            let at = part_of(left.table, &[]);
            // If a transaction is already waiting for this lock, the count is not 0, and `let_through` grants its
            // request here. If a transaction begins to wait later, it finds that the lock is unused.
            if self.sections[at].waiting.load(Ordering::SeqCst) > 0 {
                self.part(at).let_through();
            }
        }
        held.left.retain(|(left, _)| !left.by.is_gone());
        held.locks.shrink_to(MOST_LISTED);
        let inherited =
            Inherited { left: std::mem::take(&mut held.left), list: std::mem::take(&mut held.locks) };
        *self.places[thread].left.lock() = Some(inherited);
    }

    #[cfg(test)]
    /// Returns whether no transaction holds a lock or waits for one.
    pub(crate) fn is_idle(&self) -> bool {
        self.sections.iter().all(|section| section.part.lock().is_idle())
    }
}
