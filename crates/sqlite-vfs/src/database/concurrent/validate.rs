//! Decides whether a transaction is overtaken by what others have committed since its snapshot.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use duralite_format::wal_index::IndexHeader;
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::conflict::{Conflict, overtaken};
use super::free_list::{ALLOCATION, has_pointer_maps, reserved, size_in};
use super::images::Images;
use super::interior;
use super::snapshot::Snapshot;
use super::state::{Concurrent, Write};
use crate::database::Db;
use crate::errors::{During, Failure};

/// The parts of page 1 that may differ: the change counter, SQLite's version number, and the value of the
/// change counter for which that version number is valid (sqlite.org/fileformat2.html, section 1.3). No
/// statement reads them.
const COUNTERS: [Range<usize>; 2] = [24..28, 92..100];

/// The pages that a transaction has written, in ascending order.
#[derive(Clone, Copy)]
enum Written<'a> {
    /// The transaction commits now, and these are all its pages.
    AtItsEnd(&'a [u32], &'a Freed<'a>),
    /// These are the pages that the transaction has written so far. It continues, and SQLite relies on its
    /// cache.
    SoFar(&'a [u32]),
}

/// A transaction that was not overtaken.
pub(super) struct Valid {
    /// Whether others have written page 1 since the transaction's snapshot.
    pub is_first_written: bool,
    /// The interior pages that both the transaction and others have written. Each is the newest page with the
    /// transaction's changes (invariant 63).
    pub merged: Vec<(u32, Vec<u8>)>,
}

/// How a transaction depends on a page that others have written.
enum Dependence {
    /// Not at all.
    No,
    /// The transaction has written the page too, and its changes and those of others make this page.
    Merged(Vec<u8>),
    /// The transaction is overtaken.
    Overtaken,
}

/// The pages that are free after a transaction with these images. They are computed only when a validation
/// needs them, which is rare.
struct Freed<'a> {
    images: &'a Images<'a>,
    pages: OnceCell<BTreeSet<u32>>,
}

impl Concurrent {
    /// Permits a connection that has just taken WRITE to write. Moves the connection's snapshot to the newest
    /// commit, if nothing that SQLite knows about the database has changed (invariant 60).
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` if something has changed.
    pub(super) fn move_to_newest(&self, db: &Db) -> Result<(), Failure> {
        match self.try_to_move(db, &[])? {
            None => Ok(()),
            Some(conflict) => Err(overtaken(db, &conflict)),
        }
    }

    /// Does the same as [`Self::move_to_newest`], for a transaction that has written the pages `written`, in
    /// ascending order. If a conflict prevents the move, returns the conflict.
    pub(super) fn try_to_move(&self, db: &Db, written: &[u32]) -> Result<Option<Conflict>, Failure> {
        let mut state = self.state();
        let Some(snapshot) = state.snapshot else { return Ok(None) };
        if state.has_grown {
            return Ok(Some(Conflict::Page(1)));
        }
        if self.index().shows(&snapshot.header)? {
            state.write = Write::Locked;
            return Ok(None);
        }
        drop(state);
        let newest = self.settled_header(db, true)?;
        let Some(others) = self.frames_of_others(&snapshot, &newest)? else {
            return Ok(Some(Conflict::Unknown));
        };
        let verdict = self.judge(db, &snapshot, &newest, Written::SoFar(written), &others)?;
        if let Err(conflict) = verdict {
            return Ok(Some(conflict));
        }
        // With `read_durable`, make durable what the transaction may read from here on. What it has read
        // before is durable already.
        match db.after_mark(&self.attachment) {
            ffi::OK => {}
            code => return Err(Failure::new(code, "cannot make durable what others have committed")),
        }
        let mut state = self.state();
        state.snapshot = Some(snapshot.moved_to(&newest));
        state.cache = None;
        state.write = Write::Locked;
        self.attachment.count(Counter::SnapshotsMoved);
        Ok(None)
    }

    /// Checks that the commits from the snapshot to `newest` have changed neither a page of the read set nor
    /// a page that the transaction writes (invariant 59). The transaction commits now, with these images, so
    /// some changes of interior pages do not count (invariant 63). The caller holds WRITE.
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` if these commits have changed such a page.
    pub(super) fn validate(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &IndexHeader,
        images: &Images<'_>,
    ) -> Result<Valid, Failure> {
        let Some(others) = self.frames_of_others(snapshot, newest)? else {
            return Err(overtaken(db, &Conflict::Unknown));
        };
        let written: Vec<u32> = images.pages().collect();
        let freed = Freed { images, pages: OnceCell::new() };
        let ends = Written::AtItsEnd(&written, &freed);
        let conflict = match self.judge(db, snapshot, newest, ends, &others)? {
            Ok(valid) => return Ok(valid),
            Err(conflict) => conflict,
        };
        let is_on_hot_rows = self.meets_on_hot_rows(db, snapshot, &written, &others)?;
        let mut state = self.state();
        // This transaction and another one may have taken the same free page. That will not happen again,
        // because this connection's next transaction has a lease.
        let by_chance = !is_on_hot_rows || state.lease.is_to_come();
        state.luck.lost(by_chance);
        drop(state);
        Err(overtaken(db, &conflict))
    }

    /// Returns the frames of the commits from the snapshot to `newest`. For each frame the result has its
    /// page, and the size of the database if the frame is the last one of a commit. Returns `None` if these
    /// frames are no longer known.
    fn frames_of_others(
        &self,
        snapshot: &Snapshot,
        newest: &IndexHeader,
    ) -> Result<Option<Vec<(u32, u32)>>, Failure> {
        let Some(frames) = snapshot.frames_until(newest) else { return Ok(None) };
        let others = self.attachment.log().frames_in(frames);
        Ok(Some(others.map_err(|error| Failure::of(&error, During::Read))?))
    }

    /// Returns whether others have written a page that the transaction uses, that is not an interior page of a
    /// table, and on which another transaction of this process was overtaken a moment ago.
    fn meets_on_hot_rows(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        written: &[u32],
        others: &[(u32, u32)],
    ) -> Result<bool, Failure> {
        let now = Instant::now();
        let used: BTreeSet<u32> = {
            let state = self.state();
            let uses = interior::uses(&state.read, written);
            let is_hot = |page| page != 1 && uses(page) && self.attachment.conflicts().is_hot(page, now);
            others.iter().map(|(page, _)| *page).filter(|page| is_hot(*page)).collect()
        };
        for page in used {
            if !interior::is_interior(&self.page_at(db, snapshot, page)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the conflict of the transaction with the commits from the snapshot to `newest`, whose frames
    /// are `others`, as the inner error.
    fn judge(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &IndexHeader,
        written: Written<'_>,
        others: &[(u32, u32)],
    ) -> Result<Result<Valid, Conflict>, Failure> {
        let newest = snapshot.moved_to(newest);
        let mut pages: Vec<u32> = others.iter().map(|(page, _)| *page).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut merged = Vec::new();
        for page in pages.iter().copied().filter(|page| *page != 1) {
            match self.dependence(db, snapshot, &newest, written, page)? {
                Dependence::No => {}
                Dependence::Merged(image) => merged.push((page, image)),
                Dependence::Overtaken => return Ok(Err(Conflict::Page(page))),
            }
        }
        let is_first_written = pages.first() == Some(&1);
        if is_first_written {
            let before = self.page_at(db, snapshot, 1)?;
            let after = self.page_at(db, &newest, 1)?;
            // If the transaction ends here, its allocations are merged with those of others. So ignore the
            // part of page 1 that describes allocations.
            let ignored = if matches!(written, Written::AtItsEnd(..)) { ALLOCATION } else { 0..0 };
            if !is_same_but_for_counters(&before, &after, ignored) {
                return Ok(Err(Conflict::Page(1)));
            }
        }
        let size = match snapshot.header.db_pages() {
            // The log had no commit yet.
            0 => size_in(&self.page_at(db, snapshot, 1)?),
            pages => pages,
        };
        let is_smaller = |pages: u32| pages != 0 && pages < size;
        if others.iter().any(|(_, pages)| is_smaller(*pages)) {
            return Ok(Err(Conflict::Shrunk));
        }
        Ok(Ok(Valid { is_first_written, merged }))
    }

    /// Returns how the transaction depends on this page, which others have written.
    fn dependence(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &Snapshot,
        written: Written<'_>,
        page: u32,
    ) -> Result<Dependence, Failure> {
        let (Written::AtItsEnd(pages, _) | Written::SoFar(pages)) = written;
        let is_written = pages.binary_search(&page).is_ok();
        if matches!(written, Written::SoFar(_)) && self.state().lease.is_of(page) {
            return Ok(Dependence::Overtaken);
        }
        if !is_written && !self.state().read.contains(page) {
            return Ok(Dependence::No);
        }
        #[cfg(feature = "controls")]
        if super::controls::Control::Unread.is_on() && !is_written {
            return Ok(Dependence::No);
        }
        // If the transaction does not commit now, SQLite continues with the page's image in its cache, so any
        // change of the page counts.
        let Written::AtItsEnd(written, freed) = written else { return Ok(Dependence::Overtaken) };
        let own = freed.images.get(page);
        // Most pages that both have written are leaves. Only interior pages are merged, so do not read the others.
        if own.is_some_and(|own| !interior::is_interior(own)) {
            return Ok(Dependence::Overtaken);
        }
        let (before, after) = (self.page_at(db, snapshot, page)?, self.page_at(db, newest, page)?);
        let pages = newest.header.db_pages();
        let is_same = {
            let state = self.state();
            interior::is_same_for(&before, &after, pages, interior::uses(&state.read, written))
        };
        if !is_same {
            return Ok(Dependence::Overtaken);
        }
        let first = self.page_at(db, snapshot, 1)?;
        // If the transaction frees this page, any change of the page counts. SQLite does not write a page
        // that it frees, but may have copied cells from it to a page that it writes.
        if has_pointer_maps(&first) || self.is_free_at_the_end(db, freed, page)? {
            return Ok(Dependence::Overtaken);
        }
        let Some(own) = own else { return Ok(Dependence::No) };
        // If the page was free, `before` is what an earlier tree has left there, and others may have taken the
        // page and given it back. Only a page that was part of a tree is merged.
        if reserved(&first) != 0 || self.may_have_taken(db, snapshot, &first, page)? {
            return Ok(Dependence::Overtaken);
        }
        let merged = interior::merged(&before, own, &after, pages);
        Ok(merged.map_or(Dependence::Overtaken, Dependence::Merged))
    }

    fn is_free_at_the_end(&self, db: &Db, freed: &Freed<'_>, page: u32) -> Result<bool, Failure> {
        let pages = match freed.pages.get() {
            Some(pages) => pages,
            None => {
                let pages = self.free_at_the_end(db, freed.images)?;
                freed.pages.get_or_init(|| pages)
            }
        };
        Ok(pages.contains(&page))
    }
}

fn is_same_but_for_counters(before: &[u8], after: &[u8], ignored: Range<usize>) -> bool {
    let [counter, version] = COUNTERS;
    let differs = |at: &usize| before.get(*at) != after.get(*at);
    let counts = |at: &usize| ![&counter, &version, &ignored].iter().any(|range| range.contains(at));
    before.len() == after.len() && !(0..before.len()).filter(counts).any(|at| differs(&at))
}

/// Prepares an image of page 1 for a commit on top of `newest`: sets the change counter to one more than in
/// `newest`.
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
