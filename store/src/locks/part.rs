//! One part of the lock table: locks on rows and tables by name, locks on ranges, and the queue of waiting owners.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::inherit::{Left, Use};
use super::key::Key;
use super::mode::Mode;
use super::owner::Owner;
use super::ranges::{KeyRange, Ranges, is_empty};

/// The number of a table.
pub(crate) type TableId = u64;

/// The target of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Table(TableId),
    Row(TableId, Key),
    /// Every key in the range, whether or not it has a row. A range can only be locked for reading.
    Range(TableId, KeyRange),
}

/// The holders of the lock on a row or a table. Mostly there is only one.
type Holders = SmallVec<[(u64, Mode); 1]>;

#[derive(Debug, Default)]
pub(super) struct Part {
    tables: FxHashMap<TableId, Holders>,
    rows: FxHashMap<TableId, BTreeMap<Key, Holders>>,
    ranges: FxHashMap<TableId, Ranges>,
    /// Table locks that transactions have left to the next transactions on their threads.
    left: Vec<Left>,
    waiting: Vec<Waiting>,
    /// The newest commit whose changes a transaction can read under this part's locks, as the number of its log object.
    /// Until that object and all earlier ones are durable, a crash could undo these changes. So the commit of a
    /// transaction that has read them waits for these objects.
    early: u64,
}

/// A waiting owner, and its request.
#[derive(Debug)]
struct Waiting {
    owner: Arc<Owner>,
    target: Target,
    mode: Mode,
}

/// The answer to a request for a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The lock is granted. `is_new` says whether the owner held no lock on this target before.
    Granted { is_new: bool },
    /// The owner has to wait for these owners.
    Conflict(Vec<u64>),
}

impl Target {
    /// Returns whether two requests conflict: one for `self` in `mode`, one for `other` in `other_mode`.
    fn conflicts(&self, mode: Mode, other: &Self, other_mode: Mode) -> bool {
        match (self, other) {
            (Self::Table(a), Self::Table(b)) => a == b && !mode.goes_with(other_mode),
            (Self::Row(a, key), Self::Row(b, other)) => a == b && key == other && !mode.goes_with(other_mode),
            (Self::Row(a, key), Self::Range(b, range)) => a == b && mode.changes() && range.contains(key),
            (Self::Range(a, range), Self::Row(b, key)) => {
                a == b && other_mode.changes() && range.contains(key)
            }
            _ => false,
        }
    }
}

impl Part {
    pub(super) fn early(&self) -> u64 {
        self.early
    }

    fn holders(&self, target: &Target) -> Option<&Holders> {
        match target {
            Target::Table(table) => self.tables.get(table),
            Target::Row(table, key) => self.rows.get(table)?.get(&**key),
            Target::Range(..) => None,
        }
    }

    /// Returns whether the owner already holds the lock, in this mode or a stronger one.
    fn has(&self, owner: u64, target: &Target, mode: Mode) -> bool {
        if let Target::Range(table, range) = target {
            return self.ranges.get(table).is_some_and(|ranges| ranges.has(owner, range));
        }
        let held = self.holders(target).into_iter().flatten().find(|held| held.0 == owner);
        held.is_some_and(|(_, held)| held.and(mode) == *held)
    }

    /// Returns the other owners whose locks conflict with the request.
    fn held_against(&self, owner: u64, target: &Target, mode: Mode) -> Vec<u64> {
        let mut against: Vec<u64> = Vec::new();
        let mut hold = |holders: &Holders| {
            let own = holders.iter().find(|held| held.0 == owner);
            let mode = own.map_or(mode, |own| own.1.and(mode));
            let others = holders.iter().filter(|held| held.0 != owner && !held.1.goes_with(mode));
            against.extend(others.map(|held| held.0));
        };
        match target {
            Target::Range(table, range) => {
                let rows = self.rows.get(table).filter(|_| !is_empty(range));
                for (_, holders) in rows.into_iter().flat_map(|rows| rows.range::<[u8], _>(as_range(range))) {
                    let changing = holders.iter().filter(|held| held.0 != owner && held.1.changes());
                    against.extend(changing.map(|held| held.0));
                }
            }
            _ => self.holders(target).into_iter().for_each(&mut hold),
        }
        if let Target::Table(table) = target {
            let in_the_way =
                self.left.iter().filter(|left| left.table == *table && !left.mode.goes_with(mode));
            let used = in_the_way.filter_map(|left| left.by.take_away().err());
            against.extend(used.filter(|user| *user != owner));
        }
        if let Target::Row(table, key) = target
            && mode.changes()
        {
            against.extend(self.ranges.get(table).into_iter().flat_map(|ranges| ranges.others(owner, key)));
        }
        against
    }

    /// Returns the owners for whom a request has to wait: owners of conflicting locks, and owners of conflicting
    /// requests among the first `ahead` in the queue. There are three exceptions, in which a request does not wait for
    /// a queued request:
    ///
    /// - The request asks for a stronger mode of a lock that its owner already has.
    /// - The request asks for a row in a range that its owner has locked.
    /// - The queued request itself waits for this request's owner, so both would wait forever.
    fn against(&self, owner: u64, target: &Target, mode: Mode, ahead: usize) -> Vec<u64> {
        let mut against = self.held_against(owner, target, mode);
        if ahead > 0 && !self.is_upgrade(owner, target) {
            let before = self.waiting.iter().take(ahead).filter(|other| {
                other.owner.id != owner
                    && target.conflicts(mode, &other.target, other.mode)
                    && !self.held_against(other.owner.id, &other.target, other.mode).contains(&owner)
            });
            against.extend(before.map(|other| other.owner.id));
        }
        against
    }

    /// Returns whether the owner already holds a lock on the target, or on a range that contains it. Other owners in
    /// the queue may be waiting for that lock, so the request must not queue behind them.
    fn is_upgrade(&self, owner: u64, target: &Target) -> bool {
        let holds = self.holders(target).is_some_and(|holders| holders.iter().any(|held| held.0 == owner));
        holds
            || match target {
                Target::Row(table, key) => {
                    self.ranges.get(table).is_some_and(|ranges| ranges.covers(owner, key))
                }
                Target::Table(_) | Target::Range(..) => false,
            }
    }

    /// Returns how many owners wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Leaves an owner's intention lock on a table to the next transaction on its thread. Returns `None` if the lock is
    /// of another kind, or if any owner waits in this part.
    pub(super) fn leave_to_next(&mut self, owner: u64, target: &Target) -> Option<Left> {
        let Target::Table(table) = *target else { return None };
        let holders = self.tables.get_mut(&table).filter(|_| self.waiting.is_empty())?;
        let at = holders.iter().position(|held| {
            held.0 == owner && matches!(held.1, Mode::IntentionShared | Mode::IntentionExclusive)
        })?;
        let (_, mode) = holders.swap_remove(at);
        self.left.retain(|left| !left.by.is_gone());
        let left = Left { table, mode, by: Arc::new(Use::default()) };
        self.left.push(left.clone());
        Some(left)
    }

    /// Grants a request, or returns the owners for whom it has to wait.
    pub(super) fn request(&mut self, owner: u64, target: &Target, mode: Mode) -> Answer {
        if self.has(owner, target, mode) {
            return Answer::Granted { is_new: false };
        }
        let against = self.against(owner, target, mode, self.waiting.len());
        if against.is_empty() {
            Answer::Granted { is_new: self.grant(owner, target, mode) }
        } else {
            Answer::Conflict(against)
        }
    }

    fn grant(&mut self, owner: u64, target: &Target, mode: Mode) -> bool {
        let holders = match target {
            Target::Table(table) => self.tables.entry(*table).or_default(),
            Target::Row(table, key) => self.rows.entry(*table).or_default().entry(key.clone()).or_default(),
            Target::Range(table, range) => return self.ranges.entry(*table).or_default().add(owner, range),
        };
        match holders.iter_mut().find(|held| held.0 == owner) {
            Some(held) => {
                held.1 = held.1.and(mode);
                false
            }
            None => {
                holders.push((owner, mode));
                true
            }
        }
    }

    /// Puts a request into the queue.
    pub(super) fn wait(&mut self, owner: &Arc<Owner>, target: &Target, mode: Mode) {
        self.waiting.push(Waiting { owner: Arc::clone(owner), target: target.clone(), mode });
    }

    /// Returns the owners for whom a queued request still has to wait; `None` once the request is granted.
    pub(super) fn waits_for(&self, owner: u64) -> Option<Vec<u64>> {
        let at = self.waiting.iter().position(|waiting| waiting.owner.id == owner)?;
        let waiting = &self.waiting[at];
        Some(self.against(owner, &waiting.target, waiting.mode, at))
    }

    /// Removes an owner's request from the queue, and grants requests that waited only because of it.
    pub(super) fn leave(&mut self, owner: u64) {
        self.waiting.retain(|waiting| waiting.owner.id != owner);
        self.let_through();
    }

    /// Releases a lock. Does not wake waiting owners; the caller calls [`let_through`](Self::let_through) for that.
    pub(super) fn release(&mut self, owner: u64, target: Target, early: u64) {
        let without = |holders: &mut Holders| {
            let changed = holders.iter().any(|held| held.0 == owner && held.1.changes());
            holders.retain(|held| held.0 != owner);
            (holders.is_empty(), changed)
        };
        let mut changed = false;
        match target {
            Target::Table(table) => {
                if let Some(holders) = self.tables.get_mut(&table) {
                    changed = without(holders).1;
                }
            }
            Target::Row(table, key) => {
                let Some(rows) = self.rows.get_mut(&table) else { return };
                if let Entry::Occupied(mut holders) = rows.entry(key) {
                    let (is_empty, had) = without(holders.get_mut());
                    changed = had;
                    if is_empty {
                        holders.remove();
                    }
                }
            }
            Target::Range(table, _) => {
                if let Some(ranges) = self.ranges.get_mut(&table) {
                    ranges.release(owner);
                }
            }
        }
        if changed {
            self.early = self.early.max(early);
        }
    }

    /// Grants the queued requests that can be granted now, in queue order, and wakes their owners.
    pub(super) fn let_through(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let waiting = &self.waiting[at];
            let id = waiting.owner.id;
            if self.against(id, &waiting.target, waiting.mode, at).is_empty() {
                let waiting = self.waiting.remove(at);
                let is_new = self.grant(id, &waiting.target, waiting.mode);
                waiting.owner.granted(is_new);
            } else {
                at += 1;
            }
        }
    }

    #[cfg(test)]
    /// Returns whether no owner holds a lock or waits for one.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.ranges.values().all(Ranges::is_idle)
            && self.rows.values().all(BTreeMap::is_empty)
            && self.tables.values().all(SmallVec::is_empty)
    }
}

fn as_range(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (range.0.as_ref().map(|key| &**key), range.1.as_ref().map(|key| &**key))
}
