//! Locks of rows, ranges of keys and tables, strict two-phase: held until their transaction is over.
//!
//! Invariant 36: whoever reads a range holds it against every change of a key in it, whether there is a row or not, and
//! whoever changes a row holds its key: so no two transactions see parts of each other. Locks are named by keys; a row
//! that was deleted stays locked. No lock is waited for with a latch held.

mod mode;
mod owner;
mod part;
mod waits;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustc_hash::FxHasher;

pub(crate) use self::mode::Mode;
pub(crate) use self::owner::Owner;
use self::owner::Wait;
use self::part::{Answer, Part};
pub(crate) use self::part::{KeyRange, TableId, Target, is_empty};
use self::waits::Waits;
use crate::sync::{Deadline, Mutex};

/// Parts of the lock table, by hash. A range is locked in each.
const PARTS: usize = 16;
/// Whoever waits looks this often whom for: a circle that came about otherwise is found then.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// Why a lock was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Deadlock,
    Timeout,
}

/// All locks of a store.
#[derive(Debug)]
pub(crate) struct Locks {
    parts: Box<[Mutex<Part>]>,
    waits: Waits,
    pub(crate) waited: AtomicU64,
    pub(crate) deadlocks: AtomicU64,
    pub(crate) timeouts: AtomicU64,
}

/// What a transaction holds.
#[derive(Debug)]
pub(crate) struct Held {
    owner: Arc<Owner>,
    locks: Vec<(usize, Target)>,
    /// Everything up to here has to be durable before what was read is certain.
    depends_on: u64,
}

impl Held {
    pub(crate) fn new(id: u64) -> Self {
        Self { owner: Arc::new(Owner::new(id)), locks: Vec::new(), depends_on: 0 }
    }

    pub(crate) fn depends_on(&self) -> u64 {
        self.depends_on
    }
}

fn part_of(table: TableId, key: &[u8]) -> usize {
    let mut hasher = FxHasher::default();
    (table, key).hash(&mut hasher);
    (hasher.finish() >> 40) as usize % PARTS
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::new(Part::default())).collect(),
            waits: Waits::default(),
            waited: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
        }
    }
}

impl Locks {
    /// Takes a lock, or makes one stronger; a range one part after the other.
    ///
    /// # Errors
    /// [`Refused`]: what was held before is still.
    pub(crate) fn take(
        &self,
        held: &mut Held,
        target: &Target,
        mode: Mode,
        limit: Duration,
    ) -> Result<(), Refused> {
        match target {
            Target::Table(table) => self.take_in(part_of(*table, &[]), held, target, mode, limit),
            Target::Row(table, key) => self.take_in(part_of(*table, key), held, target, mode, limit),
            Target::Range(..) => {
                (0..PARTS).try_for_each(|part| self.take_in(part, held, target, mode, limit))
            }
        }
    }

    fn take_in(
        &self,
        at: usize,
        held: &mut Held,
        target: &Target,
        mode: Mode,
        limit: Duration,
    ) -> Result<(), Refused> {
        let mut part = self.parts[at].lock();
        let is_new = match part.request(held.owner.id, target, mode) {
            Answer::Granted { is_new } => is_new,
            Answer::Conflict(against) => {
                held.owner.begin();
                part.wait(&held.owner, target, mode);
                drop(part);
                self.waited.fetch_add(1, Ordering::Relaxed);
                let waited = self.wait(at, &held.owner, against, limit);
                self.waits.over(held.owner.id);
                let is_new = waited.inspect_err(|refused| {
                    let count = if *refused == Refused::Deadlock { &self.deadlocks } else { &self.timeouts };
                    count.fetch_add(1, Ordering::Relaxed);
                })?;
                part = self.parts[at].lock();
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

    /// Waits in line in a part; whether it is a new lock.
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
                    let mut part = self.parts[at].lock();
                    // It may have been granted since.
                    if let Wait::Granted { is_new } = owner.state() {
                        return Ok(is_new);
                    }
                    part.leave(owner.id);
                    return Err(if state == Wait::GivesWay { Refused::Deadlock } else { Refused::Timeout });
                }
            }
            owner.parker().sleep(deadline.left().min(LOOK_AROUND));
            let against = self.parts[at].lock().waits_for(owner.id);
            if let Some(against) = against {
                self.waits.wait(owner, against);
            }
        }
    }

    /// Releases everything. `early` is the number of a commit that is not durable yet, or 0: whoever takes a lock
    /// after that depends on it.
    pub(crate) fn release(&self, held: &mut Held, early: u64) {
        held.locks.sort_by_key(|(part, _)| *part);
        for locks in held.locks.chunk_by(|a, b| a.0 == b.0) {
            let mut part = self.parts[locks[0].0].lock();
            for (_, target) in locks {
                part.release(held.owner.id, target, early);
            }
            part.let_through();
        }
        held.locks.clear();
    }

    #[cfg(test)]
    /// Whether nobody holds anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.iter().all(|part| part.lock().is_idle())
    }
}

#[cfg(test)]
mod tests;
