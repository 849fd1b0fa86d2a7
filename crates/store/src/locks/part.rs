//! One part of the lock table: rows and tables by name, ranges of keys, and who waits for them, in order.

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

/// A table's number.
pub(crate) type TableId = u64;

/// What is locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Table(TableId),
    Row(TableId, Key),
    /// Every key in between, whether there is a row or not; to be read only.
    Range(TableId, KeyRange),
}

/// Who holds a row or a table: mostly one.
type Holders = SmallVec<[(u64, Mode); 1]>;

#[derive(Debug, Default)]
pub(super) struct Part {
    tables: FxHashMap<TableId, Holders>,
    rows: FxHashMap<TableId, BTreeMap<Key, Holders>>,
    ranges: FxHashMap<TableId, Ranges>,
    /// Locks of tables that are left from one transaction to the next.
    left: Vec<Left>,
    waiting: Vec<Waiting>,
    /// Up to where the log has to be durable before anything found under these locks is certain.
    early: u64,
}

/// Who waits, and for what.
#[derive(Debug)]
struct Waiting {
    owner: Arc<Owner>,
    target: Target,
    mode: Mode,
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is granted; whether it is a lock that its owner did not have before.
    Granted { is_new: bool },
    /// It has to wait for these.
    Conflict(Vec<u64>),
}

impl Target {
    /// Whether two requests in these modes get into each other's way.
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

    /// Whether the owner has the lock already, in this mode or a stronger one.
    fn has(&self, owner: u64, target: &Target, mode: Mode) -> bool {
        if let Target::Range(table, range) = target {
            return self.ranges.get(table).is_some_and(|ranges| ranges.has(owner, range));
        }
        let held = self.holders(target).into_iter().flatten().find(|held| held.0 == owner);
        held.is_some_and(|(_, held)| held.and(mode) == *held)
    }

    /// Who else holds what keeps this from being granted.
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

    /// Who keeps this from being granted: holders, and those of the first `ahead` that wait. Whoever has the lock in a
    /// weaker mode, or has read a range with the row in it, goes before those; and so it goes before each that waits for
    /// something that it holds: to wait for one that waits for oneself is a deadlock.
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

    /// Whether the owner has this already, in a mode that others may wait for.
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

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Leaves an owner's intention lock of a table to the next transaction on its thread, unless somebody waits.
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

    /// Grants a request, or says whom it has to wait for.
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

    /// Waits in line.
    pub(super) fn wait(&mut self, owner: &Arc<Owner>, target: &Target, mode: Mode) {
        self.waiting.push(Waiting { owner: Arc::clone(owner), target: target.clone(), mode });
    }

    /// Whom a request in line waits for now; `None` once it is granted.
    pub(super) fn waits_for(&self, owner: u64) -> Option<Vec<u64>> {
        let at = self.waiting.iter().position(|waiting| waiting.owner.id == owner)?;
        let waiting = &self.waiting[at];
        Some(self.against(owner, &waiting.target, waiting.mode, at))
    }

    /// Gives up a place in line, and lets those through who waited for it.
    pub(super) fn leave(&mut self, owner: u64) {
        self.waiting.retain(|waiting| waiting.owner.id != owner);
        self.let_through();
    }

    /// Releases a lock; those who can have it now only get it by [`let_through`](Self::let_through).
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

    /// Grants what can be granted now to those who wait, in order, and wakes them.
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
    /// Whether nobody holds anything or waits.
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
