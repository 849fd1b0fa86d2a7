//! Rows with noted versions, by table and key. A reader and a writer of different rows contend only while they look up
//! their rows. If the system suspends a thread while that thread reads a row, only threads that use the same row are
//! delayed.
//!
//! Writers find rows by hash. Scans also need the rows in order. Putting new rows in order takes long, so writers leave
//! that to scans.

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

/// A row, by its table and key.
type Row = (TableId, Key);

/// A row with noted versions.
#[derive(Debug)]
pub(crate) struct Place {
    row: Row,
    kept: Mutex<Kept>,
}

/// The versions of a row, under the row's mutex.
#[derive(Debug, Default)]
struct Kept {
    chain: Chain,
    /// Whether the row has no versions left. This entry is then being removed, and a new version of the row gets a new
    /// entry.
    is_gone: bool,
}

/// The end from which a scan reads a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

/// Those rows of a range for which a snapshot needs old versions.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// The rows in ascending order.
    pub(crate) rows: Vec<(Key, Image)>,
    /// If `rows` covers only a part of the range: the last key of that part, in reading order. `None` if `rows` covers
    /// the whole range.
    pub(crate) cut: Option<Key>,
}

/// Writers remove outdated entries from the list `fresh` only if the list is longer than this.
const AT_LEAST: usize = 64;
/// The number of parts. A row's hash selects the part.
const PARTS: usize = 64;

/// The rows of one part. It has cache lines of its own, so that threads that change different rows do not contend for a
/// line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    rows: FxHashMap<Row, Arc<Place>>,
    /// Places that no scan has put in order yet.
    fresh: Vec<Arc<Place>>,
}

/// All rows with noted versions.
pub(super) struct Noted {
    parts: Box<[Part]>,
    /// The places that scans have put in order.
    rows: SkipMap<Row, Arc<Place>>,
    /// A scan holds this mutex while it puts rows in order. Otherwise another scan could miss rows that the first scan
    /// has taken out of `fresh` but not inserted yet.
    ordering: Mutex<()>,
    /// The number of bytes that the versions take. It may be too high for a moment, but never too low.
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
                // Another thread is removing this row's place, and a new place can be made only after that. So this
                // thread helps to remove it.
                drop(kept);
                self.take_away(&place);
                continue;
            }
            let (grown, shrunk) = kept.chain.note(fate, step, || Image::of(old));
            // Adds before it subtracts, so that the counter is never too low. A reader that finds 0 there does not look
            // for versions at all.
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
            drop(kept);
            return (grown > 0 && shrunk == 0).then_some(place);
        }
    }

    /// Drops those versions of a row that no snapshot needs. The row stays locked while this function checks which
    /// snapshots are open. A snapshot that is opened later needs no versions of transactions that have already ended.
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

    /// Returns the place of a row. Makes one if there is none.
    fn place(&self, row: &Row) -> Arc<Place> {
        let mut part = self.part(row);
        if let Some(place) = part.rows.get(row) {
            return Arc::clone(place);
        }
        let place = Arc::new(Place { row: row.clone(), kept: Mutex::default() });
        part.rows.insert(row.clone(), Arc::clone(&place));
        // Normally scans empty this list. If there are no scans, it may fill up with places of rows that no longer have
        // versions. So remove these here.
        if part.fresh.len() > 2 * part.rows.len() + AT_LEAST {
            let Places { rows, fresh } = &mut *part;
            fresh.retain(|place| rows.get(&place.row).is_some_and(|other| Arc::ptr_eq(other, place)));
        }
        part.fresh.push(Arc::clone(&place));
        place
    }

    /// Removes a place that is marked as gone, unless another place has already replaced it.
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

    /// Inserts all rows that were noted before this call into the ordered map.
    fn put_in_order(&self) {
        let _ordering = self.ordering.lock();
        for part in &self.parts {
            let fresh = std::mem::take(&mut part.0.lock().fresh);
            for place in fresh {
                // Holds the row's lock during the insertion. So a thread that marks the place as gone after that finds
                // it here, and removes it.
                let kept = place.kept.lock();
                if !kept.is_gone {
                    self.rows.insert(place.row.clone(), Arc::clone(&place));
                }
            }
        }
    }

    /// Returns whether any version of a row is this cell.
    pub(super) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.find_place(&row(table, key)).is_some_and(|place| place.kept.lock().chain.has(cell))
    }

    /// Returns whether there is a version of any row of a table.
    pub(super) fn has_rows_of(&self, table: TableId) -> bool {
        self.parts.iter().any(|part| part.0.lock().rows.keys().any(|row| row.0 == table))
    }

    /// Replaces a cell by another image in all versions of a row.
    pub(super) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        if let Some(place) = self.find_place(&row(table, key)) {
            let (grown, shrunk) = place.kept.lock().chain.replace(cell, by);
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
        }
    }

    /// Returns the content of a row for a snapshot, if the snapshot needs an old version. The caller has to read the
    /// page first.
    pub(super) fn find(&self, moment: u64, table: TableId, key: &[u8]) -> Option<Image> {
        if self.bytes() == 0 {
            return None;
        }
        let place = self.find_place(&row(table, key))?;
        let kept = place.kept.lock();
        kept.chain.at(moment).cloned()
    }

    /// Returns the rows of a range for which this snapshot needs old versions. Considers only the first `most` rows
    /// that have versions. The caller has to read the pages first.
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

    /// Returns how many bytes the versions take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}
