//! Whether what others have committed since a snapshot overtakes a transaction.

use std::collections::BTreeSet;
use std::ops::Range;

use duralite_format::wal_index::IndexHeader;
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::conflict::{Conflict, overtaken};
use super::free_list::{ALLOCATION, has_pointer_maps, size_in};
use super::interior;
use super::snapshot::Snapshot;
use super::state::{Concurrent, Write};
use crate::database::Db;
use crate::errors::{During, Failure};

/// The parts of page 1 that may differ: the change counter, and the version of SQLite with the counter that it
/// is valid for (sqlite.org/fileformat2.html, section 1.3). No statement reads them.
const COUNTERS: [Range<usize>; 2] = [24..28, 92..100];

impl Concurrent {
    /// Lets the connection, which has WRITE, write: moves the snapshot to the newest commit, if nothing that SQLite
    /// knows of the database has changed (invariant 60).
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` where something has changed.
    pub(super) fn move_to_newest(&self, db: &Db) -> Result<(), Failure> {
        let mut state = self.state();
        let Some(snapshot) = state.snapshot else { return Ok(()) };
        if self.index().shows(&snapshot.header)? {
            state.write = Write::Locked;
            return Ok(());
        }
        drop(state);
        let newest = self.settled_header(db, true)?;
        self.validate(db, &snapshot, &newest, None)?;
        // What the transaction reads from here on is durable, with `read_durable`, as what it began with.
        match db.after_mark(&self.attachment) {
            ffi::OK => {}
            code => return Err(Failure::new(code, "cannot make durable what others have committed")),
        }
        let mut state = self.state();
        state.snapshot = Some(snapshot.moved_to(&newest));
        state.cache = None;
        state.write = Write::Locked;
        self.attachment.count(Counter::SnapshotsMoved);
        Ok(())
    }

    /// Checks that the commits from the snapshot to `newest` have touched no page of the read set and none of
    /// `written`, which is sorted (invariant 59). Where the transaction is about to end, with the pages that it
    /// has written, some changes of interior pages do not count (invariant 63). The caller holds WRITE.
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` where they have.
    pub(super) fn validate(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &IndexHeader,
        written: Option<&[u32]>,
    ) -> Result<(), Failure> {
        match self.conflict(db, snapshot, newest, written)? {
            None => Ok(()),
            Some(conflict) => Err(overtaken(db, &conflict)),
        }
    }

    fn conflict(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &IndexHeader,
        written: Option<&[u32]>,
    ) -> Result<Option<Conflict>, Failure> {
        let Some(frames) = snapshot.frames_until(newest) else { return Ok(Some(Conflict::Unknown)) };
        let others = self.attachment.log().frames_in(frames);
        let others = others.map_err(|error| Failure::of(&error, During::Read))?;
        let newest = snapshot.moved_to(newest);
        let before = self.page_at(db, snapshot, 1)?;
        let passes_interiors = !has_pointer_maps(&before);
        let pages: BTreeSet<u32> = others.iter().map(|(page, _)| *page).filter(|page| *page != 1).collect();
        for page in pages {
            if self.is_touched(db, snapshot, &newest, written, passes_interiors, page)? {
                return Ok(Some(Conflict::Page(page)));
            }
        }
        if others.iter().any(|(page, _)| *page == 1) {
            let after = self.page_at(db, &newest, 1)?;
            // What a transaction that ends has allocated is brought together with what others have.
            let ignored = if written.is_some() { ALLOCATION } else { 0..0 };
            if !is_same_but_for_counters(&before, &after, ignored) {
                return Ok(Some(Conflict::Page(1)));
            }
        }
        let size = size_in(&before);
        let is_smaller = |pages: u32| pages != 0 && pages < size;
        Ok(others.iter().any(|(_, pages)| is_smaller(*pages)).then_some(Conflict::Shrunk))
    }

    /// Whether the transaction depends on this page, which others have written.
    fn is_touched(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &Snapshot,
        written: Option<&[u32]>,
        passes_interiors: bool,
        page: u32,
    ) -> Result<bool, Failure> {
        if written.is_some_and(|written| written.binary_search(&page).is_ok()) {
            return Ok(true);
        }
        if written.is_none() && self.state().lease.is_of(page) {
            return Ok(true);
        }
        if !self.state().read.contains(page) {
            return Ok(false);
        }
        #[cfg(feature = "controls")]
        if super::controls::Control::Unread.is_on() {
            return Ok(false);
        }
        // SQLite goes on with what it has cached of such a page unless the transaction ends here.
        let Some(written) = written.filter(|_| passes_interiors) else { return Ok(true) };
        let (before, after) = (self.page_at(db, snapshot, page)?, self.page_at(db, newest, page)?);
        let state = self.state();
        Ok(!interior::is_same_for(&before, &after, interior::uses(&state.read, written)))
    }
}

fn is_same_but_for_counters(before: &[u8], after: &[u8], ignored: Range<usize>) -> bool {
    let [counter, version] = COUNTERS;
    let differs = |at: &usize| before.get(*at) != after.get(*at);
    let counts = |at: &usize| ![&counter, &version, &ignored].iter().any(|range| range.contains(at));
    before.len() == after.len() && !(0..before.len()).filter(counts).any(|at| differs(&at))
}

/// Counts a page 1 that is committed on top of `newest` as one more change than that.
pub(super) fn count_change(page: &mut [u8], newest: &[u8]) {
    let [counter, version] = COUNTERS;
    let Some(before) = newest.get(counter.clone()).and_then(|bytes| bytes.try_into().ok()) else { return };
    let change = u32::from_be_bytes(before).wrapping_add(1).to_be_bytes();
    for range in [counter, version.start..version.start + 4] {
        if let Some(bytes) = page.get_mut(range) {
            bytes.copy_from_slice(&change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_counters_of_page_1_may_differ() {
        let before: Vec<u8> = (0..=255).cycle().take(512).collect();
        for at in 0..512 {
            let mut after = before.clone();
            after[at] ^= 1;
            let may_differ = (24..28).contains(&at) || (92..100).contains(&at);
            assert_eq!(is_same_but_for_counters(&before, &after, 0..0), may_differ, "byte {at}");
            let may_differ = may_differ || (28..40).contains(&at);
            assert_eq!(is_same_but_for_counters(&before, &after, ALLOCATION), may_differ, "byte {at}");
        }
    }

    #[test]
    fn a_change_is_counted_on_top_of_the_newest() {
        let (mut page, mut newest) = (vec![7; 512], vec![0; 512]);
        newest[27] = 9;
        count_change(&mut page, &newest);
        assert_eq!((&page[24..28], &page[92..100]), (&[0, 0, 0, 10][..], &[0, 0, 0, 10, 7, 7, 7, 7][..]));
    }
}
