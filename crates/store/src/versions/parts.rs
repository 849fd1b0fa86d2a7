//! What is noted, by table and key, in parts by hash.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::chain::{Chain, Image};
use super::fate::Fate;
use super::moments::Moments;
use crate::locks::{Key, PARTS, TableId, part_of};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Rows by table and key, of one part.
type Rows = FxHashMap<TableId, BTreeMap<Key, Chain>>;

/// A part, on lines of its own: threads that change different rows do not meet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(Mutex<Rows>);

/// From which end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

/// Rows of a range that are not what they were.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// In ascending order.
    pub(crate) rows: Vec<(Key, Image)>,
    /// The last key, as one reads, up to which these are all; `None` if that is the whole range.
    pub(crate) cut: Option<Key>,
}

/// A range of keys that is looked at.
pub(crate) type Edges<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Everything that is noted.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Box<[Part]>,
    /// What it takes, and never less.
    bytes: AtomicU64,
}

impl Default for Parts {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Part::default()).collect(), bytes: AtomicU64::new(0) }
    }
}

impl Parts {
    fn part(&self, at: usize) -> MutexGuard<'_, Rows> {
        self.parts[at].0.lock()
    }

    fn row(&self, table: TableId, key: &[u8]) -> MutexGuard<'_, Rows> {
        self.part(part_of(table, key))
    }

    /// See [`Versions::note`](super::Versions::note).
    pub(super) fn note(
        &self,
        fate: &Arc<Fate>,
        (table, key): (TableId, &[u8]),
        step: usize,
        old: Option<&[u8]>,
    ) -> bool {
        let mut rows = self.row(table, key);
        let rows = rows.entry(table).or_default();
        let chain = match rows.get_mut(key) {
            Some(chain) => chain,
            None => rows.entry(Key::from(key)).or_default(),
        };
        let (grown, shrunk) = chain.note(fate, step, || Image::of(old));
        // Never less than there is: who finds 0 does not look.
        self.bytes.fetch_add(grown, Ordering::SeqCst);
        self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
        grown > 0 && shrunk == 0
    }

    /// Gives up what nobody needs of a row. Moments are looked at with the part locked: what is opened later does not need
    /// what had ended before.
    pub(super) fn look_at(&self, table: TableId, key: &[u8], moments: &Mutex<Moments>) {
        let mut rows = self.row(table, key);
        let Some(chains) = rows.get_mut(&table) else { return };
        let Some(chain) = chains.get_mut(key) else { return };
        let keep = |moments: &mut Moments, oldest| moments.keep(oldest, (table, Key::from(key)));
        let freed = chain.prune(&mut moments.lock(), keep);
        if chain.is_empty() {
            chains.remove(key);
        }
        if chains.is_empty() {
            rows.remove(&table);
        }
        self.bytes.fetch_sub(freed, Ordering::SeqCst);
    }

    /// Whether some version of a row is this cell.
    pub(super) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        let rows = self.row(table, key);
        rows.get(&table).and_then(|rows| rows.get(key)).is_some_and(|chain| chain.has(cell))
    }

    /// Puts something in the place of a cell in all versions of a row.
    pub(super) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        let mut rows = self.row(table, key);
        if let Some(chain) = rows.get_mut(&table).and_then(|rows| rows.get_mut(key)) {
            let (grown, shrunk) = chain.replace(cell, by);
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
        }
    }

    /// What a row was for a snapshot, if that is not what its page has. The page is looked at before.
    pub(super) fn find(&self, moment: u64, table: TableId, key: &[u8]) -> Option<Image> {
        if self.bytes() == 0 {
            return None;
        }
        let rows = self.row(table, key);
        rows.get(&table)?.get(key)?.at(moment).cloned()
    }

    /// The rows of a range that are not what their pages have, of as many as are looked at in each part. The pages are
    /// looked at before.
    pub(super) fn changed(
        &self,
        moment: u64,
        table: TableId,
        range: Edges<'_>,
        (end, most): (End, usize),
    ) -> Changed {
        let mut changed = Changed::default();
        if self.bytes() == 0 || is_empty(range) {
            return changed;
        }
        for at in 0..PARTS {
            let rows = self.part(at);
            let Some(rows) = rows.get(&table) else { continue };
            let mut all = rows.range::<[u8], _>(range);
            let mut last = None;
            for _ in 0..most {
                let next = if end == End::Front { all.next() } else { all.next_back() };
                let Some((key, chain)) = next else {
                    last = None;
                    break;
                };
                changed.rows.extend(chain.at(moment).map(|image| (key.clone(), image.clone())));
                last = Some(key);
            }
            let nearest = |cut: &Key, last: &Key| if end == End::Front { last < cut } else { last > cut };
            if let Some(last) = last
                && changed.cut.as_ref().is_none_or(|cut| nearest(cut, last))
            {
                changed.cut = Some(last.clone());
            }
        }
        if let Some(cut) = &changed.cut {
            changed.rows.retain(|(key, _)| if end == End::Front { key <= cut } else { key >= cut });
        }
        changed.rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        changed
    }

    /// How many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}

/// `BTreeMap::range` panics on some of these.
fn is_empty(range: Edges<'_>) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
            from >= to
        }
        _ => false,
    }
}
