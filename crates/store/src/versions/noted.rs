//! What is noted, by table and key. Readers of one row and writers of another do not meet for longer than it takes to find one: a
//! thread that is stopped in the middle of looking at a row keeps nobody from any other.
//!
//! Writers find rows by hash, and leave new ones to be put in order to whoever scans: that takes much longer.

use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use crossbeam_skiplist::SkipMap;
use rustc_hash::{FxHashMap, FxHasher};

use super::chain::{Chain, Image};
use super::fate::Fate;
use super::moments::Moments;
use crate::locks::{Key, TableId};
use crate::range::Edges;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A row, by its table.
type Row = (TableId, Key);

/// A row of which something is noted.
#[derive(Debug)]
pub(crate) struct Place {
    row: Row,
    kept: Mutex<Kept>,
}

/// The versions of a row.
#[derive(Debug, Default)]
struct Kept {
    chain: Chain,
    /// It has none any more, and goes; another one takes its place.
    is_gone: bool,
}

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

/// So many places that are not in order yet are no reason to look which of them are gone.
const AT_LEAST: usize = 64;
/// Parts, by hash.
const PARTS: usize = 64;

/// Rows of one part, on lines of its own: threads that change different rows do not meet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    rows: FxHashMap<Row, Arc<Place>>,
    /// Those that are not in order yet.
    fresh: Vec<Arc<Place>>,
}

/// Everything that is noted.
pub(super) struct Noted {
    parts: Box<[Part]>,
    /// What was put in order.
    rows: SkipMap<Row, Arc<Place>>,
    /// Held by whoever puts rows in order: nobody takes for everything what another one is still about to put there.
    ordering: Mutex<()>,
    /// What it takes, and never less.
    bytes: AtomicU64,
}

impl Default for Noted {
    fn default() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Part::default()).collect(),
            rows: SkipMap::new(),
            ordering: Mutex::default(),
            bytes: AtomicU64::new(0),
        }
    }
}

impl std::fmt::Debug for Noted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Noted").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

fn row(table: TableId, key: &[u8]) -> Row {
    (table, Key::from(key))
}

impl Noted {
    /// See [`Versions::note`](super::Versions::note).
    pub(super) fn note(
        &self,
        fate: &Arc<Fate>,
        (table, key): (TableId, &[u8]),
        step: usize,
        old: Option<&[u8]>,
    ) -> Option<Arc<Place>> {
        let row = row(table, key);
        loop {
            let place = self.place(&row);
            let mut kept = place.kept.lock();
            if kept.is_gone {
                // As long as somebody is about to take it away another one cannot be there.
                drop(kept);
                self.take_away(&place);
                continue;
            }
            let (grown, shrunk) = kept.chain.note(fate, step, || Image::of(old));
            // Never less than there is: who finds 0 does not look.
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
            drop(kept);
            return (grown > 0 && shrunk == 0).then_some(place);
        }
    }

    /// Gives up what nobody needs of a row. Moments are looked at with the row locked: what is opened later does not need
    /// what had ended before.
    pub(super) fn look_at(&self, place: &Arc<Place>, moments: &Mutex<Moments<Arc<Place>>>) {
        let mut kept = place.kept.lock();
        let freed = kept.chain.prune(&mut moments.lock(), |moments, oldest| {
            moments.keep(oldest, Arc::clone(place));
        });
        self.bytes.fetch_sub(freed, Ordering::SeqCst);
        if !kept.chain.is_empty() || std::mem::replace(&mut kept.is_gone, true) {
            return;
        }
        drop(kept);
        self.take_away(place);
    }

    fn part(&self, row: &Row) -> MutexGuard<'_, Places> {
        let mut hasher = FxHasher::default();
        row.hash(&mut hasher);
        self.parts[(hasher.finish() >> 40) as usize % PARTS].0.lock()
    }

    fn find_place(&self, row: &Row) -> Option<Arc<Place>> {
        self.part(row).rows.get(row).cloned()
    }

    /// The place of a row, which is made if there is none.
    fn place(&self, row: &Row) -> Arc<Place> {
        let mut part = self.part(row);
        if let Some(place) = part.rows.get(row) {
            return Arc::clone(place);
        }
        let place = Arc::new(Place { row: row.clone(), kept: Mutex::default() });
        part.rows.insert(row.clone(), Arc::clone(&place));
        // Where nobody scans, places that are gone are not kept for that.
        if part.fresh.len() > 2 * part.rows.len() + AT_LEAST {
            let Places { rows, fresh } = &mut *part;
            fresh.retain(|place| rows.get(&place.row).is_some_and(|other| Arc::ptr_eq(other, place)));
        }
        part.fresh.push(Arc::clone(&place));
        place
    }

    /// Takes a place away that is gone, unless there is another one already.
    fn take_away(&self, place: &Arc<Place>) {
        let mut part = self.part(&place.row);
        if part.rows.get(&place.row).is_some_and(|other| Arc::ptr_eq(other, place)) {
            part.rows.remove(&place.row);
        }
        drop(part);
        if let Some(entry) = self.rows.get(&place.row)
            && Arc::ptr_eq(entry.value(), place)
        {
            entry.remove();
        }
    }

    /// Puts in order whatever was noted before this.
    fn put_in_order(&self) {
        let _ordering = self.ordering.lock();
        for part in &self.parts {
            let fresh = std::mem::take(&mut part.0.lock().fresh);
            for place in fresh {
                // Whoever says that it is gone after this finds it there.
                let kept = place.kept.lock();
                if !kept.is_gone {
                    self.rows.insert(place.row.clone(), Arc::clone(&place));
                }
            }
        }
    }

    /// Whether some version of a row is this cell.
    pub(super) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.find_place(&row(table, key)).is_some_and(|place| place.kept.lock().chain.has(cell))
    }

    /// Whether there is a version of some row of a table.
    pub(super) fn has_rows_of(&self, table: TableId) -> bool {
        self.parts.iter().any(|part| part.0.lock().rows.keys().any(|row| row.0 == table))
    }

    /// Puts something in the place of a cell in all versions of a row.
    pub(super) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        if let Some(place) = self.find_place(&row(table, key)) {
            let (grown, shrunk) = place.kept.lock().chain.replace(cell, by);
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
        }
    }

    /// What a row was for a snapshot, if that is not what its page has. The page is looked at before.
    pub(super) fn find(&self, moment: u64, table: TableId, key: &[u8]) -> Option<Image> {
        if self.bytes() == 0 {
            return None;
        }
        let place = self.find_place(&row(table, key))?;
        let kept = place.kept.lock();
        kept.chain.at(moment).cloned()
    }

    /// The rows of a range that are not what their pages have, of as many as are looked at. The pages are looked at before.
    pub(super) fn changed(
        &self,
        moment: u64,
        table: TableId,
        (from, to): Edges<'_>,
        (end, most): (End, usize),
    ) -> Changed {
        let mut changed = Changed::default();
        if self.bytes() == 0 {
            return changed;
        }
        let from = match from {
            Bound::Unbounded => Bound::Included(row(table, &[])),
            from => from.map(|key| row(table, key)),
        };
        let to = match to {
            Bound::Unbounded => Bound::Excluded(row(table + 1, &[])),
            to => to.map(|key| row(table, key)),
        };
        self.put_in_order();
        let mut all = self.rows.range((from, to));
        for _ in 0..most {
            let next = if end == End::Front { all.next() } else { all.next_back() };
            let Some(entry) = next else {
                changed.cut = None;
                break;
            };
            let (_, key) = entry.key();
            changed.cut = Some(key.clone());
            let kept = entry.value().kept.lock();
            changed.rows.extend(kept.chain.at(moment).map(|image| (key.clone(), image.clone())));
        }
        if end == End::Back {
            changed.rows.reverse();
        }
        changed
    }

    /// How many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}
