//! Tests snapshots of the store under the schedule explorer. A map under a lock stands for the pages, and each row has
//! a mutex as its lock.
//!
//! Transfers between two rows keep the sum of all rows. Each snapshot must show that sum, and it must show the same
//! rows when its reader reads again. Meanwhile transactions roll back, snapshots open and close, and any thread may
//! purge old versions.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use duralite_schedules::rounds;
use duralite_store::format::Undo;

use crate::noting;
use crate::range::Edges;
use crate::steps::{Step, Undoable};
use crate::sync::{Mutex, MutexGuard};
use crate::versions::{End, Image, Seen, Versions};

const TABLE: u64 = 1;
const ROWS: [u8; 3] = [1, 2, 3];
const SUM: u8 = 60;

/// A store with three rows in one page.
struct World {
    versions: Versions,
    page: Mutex<BTreeMap<u8, u8>>,
    locks: [Mutex<()>; 3],
    active: Mutex<Vec<Arc<Undoable>>>,
    breaks: Option<Break>,
}

/// A rule that a test breaks on purpose, to check that the test notices it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Break {
    /// A transaction changes the page before it notes (saves) the row's old version.
    NotesLate,
    /// When a snapshot opens, nobody notes the old versions of the rows that running transactions have already changed.
    NotesNothing,
    /// A transaction notes the old version under a lock, and releases the lock too early: its step is not in its undo
    /// list yet.
    LetsGo,
    /// One of the transactions releases its row locks before it ends. The other transactions do not.
    EndsLate,
    /// A reader looks up the noted version first, and reads the page after that. The right order is the reverse.
    LooksAtPageLast,
}

impl World {
    fn new(limit: u64, breaks: Option<Break>) -> Self {
        Self {
            versions: Versions::new(limit),
            page: Mutex::new(ROWS.map(|row| (row, SUM / 3)).into()),
            locks: [Mutex::default(), Mutex::default(), Mutex::default()],
            active: Mutex::default(),
            breaks,
        }
    }

    fn has(&self, broken: Break) -> bool {
        self.breaks == Some(broken)
    }

    /// Sets or removes a row, as one step of a transaction. The transaction has locked the row.
    fn set(&self, undoable: &Undoable, row: u8, value: Option<u8>) {
        let key = [row];
        let mut page = self.page.lock();
        let old = page.get(&row).copied();
        let cell = old.map(|old| [old]);
        let image = cell.as_ref().map(|cell| &cell[..]);
        let note = || noting::before_change(&self.versions, undoable, (TABLE, &key), image);
        let mut noting = (!self.has(Break::NotesLate)).then(note);
        if self.has(Break::LetsGo) {
            noting = None;
        }
        match value {
            Some(value) => drop(page.insert(row, value)),
            None => drop(page.remove(&row)),
        }
        drop(page);
        if self.has(Break::NotesLate) {
            noting = Some(note());
        }
        let mut undo = Vec::new();
        Undo::Row { root: TABLE, key: &key, old: image }.encode(&mut undo);
        undoable.list.lock().steps.push(Step { lsn: 1, undo });
        drop(noting);
        self.versions.keep_to_limit();
    }

    /// Undoes all steps after the first `until` ones.
    fn undo_to(&self, undoable: &Undoable, until: usize) {
        loop {
            let _noting = undoable.noting.lock();
            let Some((step, _)) = noting::take_last(&self.versions, undoable, until) else { return };
            let Ok(Undo::Row { key, old, .. }) = Undo::decode(&step.undo) else { panic!("no row") };
            let mut page = self.page.lock();
            match old {
                Some(old) => drop(page.insert(key[0], old[0])),
                None => drop(page.remove(&key[0])),
            }
        }
    }

    fn end(&self, undoable: &Arc<Undoable>, held: Vec<MutexGuard<'_, ()>>, is_late: bool) {
        let mut held = Some(held);
        if is_late {
            held = None;
            // Yield often enough for another transaction to run.
            (0..300).for_each(|_| shuttle::thread::yield_now());
        }
        let noted = noting::end(&self.versions, undoable);
        drop(held);
        noted.iter().for_each(|row| self.versions.look_at(row));
        self.active.lock().retain(|other| !Arc::ptr_eq(other, undoable));
    }

    /// Moves an amount from one row to another, deletes the second row and inserts it again, and commits or rolls back.
    fn transfer(&self, (from, to): (u8, u8), commits: bool) {
        let undoable = Arc::<Undoable>::default();
        let (first, second) = (from.min(to), from.max(to));
        let held =
            vec![self.locks[usize::from(first) - 1].lock(), self.locks[usize::from(second) - 1].lock()];
        let (a, b) = {
            let page = self.page.lock();
            (page[&from], page[&to])
        };
        self.active.lock().push(Arc::clone(&undoable));
        self.set(&undoable, from, Some(a - 1));
        self.set(&undoable, to, None);
        self.undo_to(&undoable, 1);
        self.set(&undoable, to, None);
        self.set(&undoable, to, Some(b + 1));
        if !commits {
            self.undo_to(&undoable, 0);
        }
        self.end(&undoable, held, self.has(Break::EndsLate) && (from, to) == (1, 2));
    }

    fn open(&self) -> Arc<Seen> {
        if !self.versions.begin_to_open() && !self.has(Break::NotesNothing) {
            let active: Vec<_> = self.active.lock().iter().cloned().collect();
            active.iter().for_each(|undoable| noting::note_all(&self.versions, undoable));
        }
        self.versions.open()
    }

    /// Returns the value of a row; `None` if the store has ended the snapshot because it was too old.
    fn get(&self, seen: &Seen, row: u8) -> Option<u8> {
        let find = || self.versions.find(seen, TABLE, &[row]);
        let early = self.has(Break::LooksAtPageLast).then(find);
        let page = self.page.lock().get(&row).copied();
        let image = early.unwrap_or_else(find);
        if seen.has_ended() {
            return None;
        }
        Some(value(image).unwrap_or(page).unwrap_or_else(|| panic!("row {row} is missing")))
    }

    /// Reads all rows, beginning at either end, and returns them in order.
    fn scan(&self, seen: &Seen, end: End) -> Option<Vec<(u8, u8)>> {
        let page = self.page.lock().clone();
        let everything: Edges<'_> = (Bound::Unbounded, Bound::Unbounded);
        let changed = self.versions.changed(seen, TABLE, everything, end, 10);
        assert!(changed.cut.is_none());
        let mut rows = page;
        for (key, image) in changed.rows {
            match value(Some(image)).flatten() {
                Some(value) => rows.insert(key[0], value),
                None => rows.remove(&key[0]),
            };
        }
        (!seen.has_ended()).then(|| rows.into_iter().collect())
    }

    /// Opens a snapshot, reads everything row by row and in scans, and closes the snapshot. Returns whether the store
    /// kept the snapshot that long.
    fn look(&self) -> bool {
        let seen = self.open();
        let by_row =
            || ROWS.iter().map(|row| Some((*row, self.get(&seen, *row)?))).collect::<Option<Vec<_>>>();
        let seen_by = [by_row(), self.scan(&seen, End::Front), by_row(), self.scan(&seen, End::Back)];
        self.versions.close(&seen);
        let Some(first) = seen_by[0].clone() else { return false };
        assert_eq!(first.iter().map(|(_, value)| value).sum::<u8>(), SUM, "{first:?}");
        for again in seen_by.iter().flatten() {
            assert_eq!(*again, first);
        }
        seen_by.iter().all(Option::is_some)
    }
}

/// Returns the row's value in a version.
fn value(image: Option<Image>) -> Option<Option<u8>> {
    match image? {
        Image::Absent => Some(None),
        Image::Cell(cell) => Some(Some(cell[0])),
        other => panic!("{other:?}"),
    }
}

/// Runs two threads that transfer amounts and two threads that read, in many schedules.
fn explore(limit: u64, breaks: Option<Break>, lasts: bool, rounds: usize) {
    shuttle::check_random(
        move || {
            let world = Arc::new(World::new(limit, breaks));
            let spawn = |work: fn(&World, bool)| {
                let world = Arc::clone(&world);
                shuttle::thread::spawn(move || work(&world, lasts))
            };
            let threads = [
                spawn(|world, _| {
                    world.transfer((1, 2), true);
                    world.transfer((2, 3), false);
                }),
                spawn(|world, _| {
                    world.transfer((3, 1), true);
                    world.transfer((2, 1), true);
                }),
                spawn(|world, lasts| {
                    for _ in 0..2 {
                        assert!(world.look() || !lasts, "ended");
                    }
                }),
                spawn(|world, lasts| assert!(world.look() || !lasts, "ended")),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // The loop purges all versions.
            while world.versions.bytes() > 0 && !lasts {
                let before = world.versions.bytes();
                world.versions.keep_to_limit();
                assert!(world.versions.bytes() < before, "{before} bytes stay for ever");
            }
            assert_eq!((world.versions.bytes(), world.versions.open_snapshots()), (0, 0));
        },
        rounds,
    );
}

#[test]
fn inv56_snapshots_show_one_moment_in_every_order() {
    explore(u64::MAX, None, true, rounds(20_000));
}

/// Under this limit, the store has room only for the versions of one or two rows.
#[test]
fn inv57_snapshots_that_are_ended_show_nothing_wrong() {
    explore(600, None, false, rounds(10_000));
}

/// Breaks a rule, and returns whether the explorer notices that.
fn is_noticed(broken: Break) -> bool {
    let explored = std::panic::catch_unwind(|| explore(u64::MAX, Some(broken), true, 3000));
    explored.is_err()
}

#[test]
fn inv55_a_transaction_that_ends_late_is_noticed() {
    assert!(is_noticed(Break::EndsLate));
}

#[test]
fn inv56_notes_that_come_late_or_not_at_all_are_noticed() {
    assert!(is_noticed(Break::NotesLate));
    assert!(is_noticed(Break::NotesNothing));
    assert!(is_noticed(Break::LetsGo));
}

#[test]
fn inv56_a_reader_that_looks_at_the_page_last_is_noticed() {
    assert!(is_noticed(Break::LooksAtPageLast));
}
