//! What is noted, by table and key, in order. Readers of one row and writers of another do not meet: a thread that is stopped in
//! the middle of looking at a row keeps nobody from any other.

use std::ops::Bound;
use std::sync::Arc;

use crossbeam_skiplist::SkipMap;

use super::chain::{Chain, Image};
use super::fate::Fate;
use super::moments::Moments;
use crate::locks::{Key, TableId};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

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

/// A range of keys that is looked at.
pub(crate) type Edges<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Everything that is noted.
#[derive(Default)]
pub(super) struct Noted {
    rows: SkipMap<Row, Arc<Place>>,
    /// What it takes, and never less.
    bytes: AtomicU64,
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
            let new = || Arc::new(Place { row: row.clone(), kept: Mutex::default() });
            let entry = self.rows.get_or_insert_with(row.clone(), new);
            let place = entry.value();
            let mut kept = place.kept.lock();
            if kept.is_gone {
                drop(kept);
                entry.remove();
                continue;
            }
            let (grown, shrunk) = kept.chain.note(fate, step, || Image::of(old));
            // Never less than there is: who finds 0 does not look.
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
            return (grown > 0 && shrunk == 0).then(|| Arc::clone(place));
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
        // Whoever has found that it is gone may have put another one there.
        if let Some(entry) = self.rows.get(&place.row)
            && Arc::ptr_eq(entry.value(), place)
        {
            entry.remove();
        }
    }

    /// Whether some version of a row is this cell.
    pub(super) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.rows.get(&row(table, key)).is_some_and(|entry| entry.value().kept.lock().chain.has(cell))
    }

    /// Puts something in the place of a cell in all versions of a row.
    pub(super) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        if let Some(entry) = self.rows.get(&row(table, key)) {
            let (grown, shrunk) = entry.value().kept.lock().chain.replace(cell, by);
            self.bytes.fetch_add(grown, Ordering::SeqCst);
            self.bytes.fetch_sub(shrunk, Ordering::SeqCst);
        }
    }

    /// What a row was for a snapshot, if that is not what its page has. The page is looked at before.
    pub(super) fn find(&self, moment: u64, table: TableId, key: &[u8]) -> Option<Image> {
        if self.bytes() == 0 {
            return None;
        }
        let entry = self.rows.get(&row(table, key))?;
        let kept = entry.value().kept.lock();
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
