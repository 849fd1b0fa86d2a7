//! Reads and writes the wal-index that all connections share. This VFS follows SQLite's protocol
//! (sqlite.org/walformat.html), so connections that SQLite serves directly can take part.

use std::sync::atomic::{Ordering, fence};

use duralite_format::wal_index::{
    ATTEMPTED_WORD, BACKFILLED_WORD, FIRST_MARK_WORD, HASH_OFFSET, HASH_SLOTS, IndexHeader, MARK_NOT_USED,
    MARKS, Place, first_slot,
};
use duralite_sqlite_ffi as ffi;

use super::memory::{Region, shared};
use crate::attachment::Attachment;
use crate::errors::Failure;

/// The wal-index of a log.
#[derive(Clone, Copy)]
pub struct SharedIndex<'a> {
    pub attachment: &'a Attachment,
    /// The first region, which every step of a transaction needs several times.
    first: Option<Region<'a>>,
}

impl<'a> SharedIndex<'a> {
    pub fn of(attachment: &'a Attachment) -> Self {
        // Ignore an error here, because every call that needs the region meets the error again.
        Self::with(attachment, shared(attachment, 0, true).ok().flatten())
    }

    /// Does the same as [`Self::of`], if the caller already has the first region.
    pub fn with(attachment: &'a Attachment, first: Option<Region<'a>>) -> Self {
        Self { attachment, first }
    }

    fn region(self, number: u32) -> Result<Region<'a>, Failure> {
        if number == 0 { self.first() } else { self.mapped(number) }
    }

    fn mapped(self, number: u32) -> Result<Region<'a>, Failure> {
        let region = shared(self.attachment, number, false).map_err(|error| failed(&error.to_string()))?;
        region.ok_or_else(|| failed("a region is missing"))
    }

    fn first(self) -> Result<Region<'a>, Failure> {
        self.first.map_or_else(|| self.mapped(0), Ok)
    }

    /// Makes all regions of the wal-index that are needed for the frames from `before` + 1 to `last`. After
    /// this call, adding these frames cannot fail.
    pub fn make_room(self, before: u32, last: u32) -> Result<(), Failure> {
        self.first()?;
        for region in Place::of(before.max(1)).region.max(1)..=Place::of(last).region {
            match shared(self.attachment, region, true) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(failed("a region cannot be made")),
                Err(duralite_medium::MediumError::NoSpace) => {
                    return Err(Failure::new(ffi::FULL, "there is no room for the wal-index"));
                }
                Err(error) => return Err(failed(&error.to_string())),
            }
        }
        Ok(())
    }

    /// Returns the header. Returns `None` while a connection writes the header, if a connection died while it
    /// wrote the header, or before the first connection has made the wal-index.
    pub fn header(self) -> Result<Option<IndexHeader>, Failure> {
        if let Some(first) = self.first {
            return Ok(first.header());
        }
        let region = shared(self.attachment, 0, true).map_err(|error| failed(&error.to_string()))?;
        Ok(region.and_then(Region::header))
    }

    /// Returns whether the header is still `header`. The caller has just taken a mark.
    pub fn is_still(self, header: &IndexHeader) -> Result<bool, Failure> {
        fence(Ordering::SeqCst);
        self.shows(header)
    }

    /// Returns whether the header is `header`.
    pub fn shows(self, header: &IndexHeader) -> Result<bool, Failure> {
        Ok(self.first()?.is_header(header))
    }

    /// Returns how many frames a checkpoint has written to the database.
    pub fn backfilled(self) -> Result<u32, Failure> {
        Ok(self.first()?.load(BACKFILLED_WORD))
    }

    /// Records that a checkpoint is about to write this many frames to the database. The caller has
    /// CHECKPOINT.
    pub fn set_attempted(self, frames: u32) -> Result<(), Failure> {
        self.first()?.store(ATTEMPTED_WORD, frames);
        Ok(())
    }

    /// Records that a checkpoint has written this many frames to the database. The caller has CHECKPOINT.
    pub fn set_backfilled(self, frames: u32) -> Result<(), Failure> {
        self.first()?.store(BACKFILLED_WORD, frames);
        Ok(())
    }

    pub fn mark(self, mark: usize) -> Result<u32, Failure> {
        Ok(self.first()?.load(FIRST_MARK_WORD + mark))
    }

    /// Sets a mark. The caller holds the mark's lock exclusively.
    pub fn set_mark(self, mark: usize, frame: u32) -> Result<(), Failure> {
        self.first()?.store(FIRST_MARK_WORD + mark, frame);
        Ok(())
    }

    /// Returns the newest of the frames from `from` to `last` that hold this page.
    pub fn find(self, page: u32, from: u32, last: u32) -> Result<Option<u32>, Failure> {
        if last == 0 || from > last {
            return Ok(None);
        }
        for number in (Place::of(from).region..=Place::of(last).region).rev() {
            let found = find_in(self.region(number)?, Place::of_region(number), page, from, last)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Removes leftover entries after the last of the `committed` frames, if any of them is in the place of a
    /// frame up to `last`. Writers that died or were rolled back have left these entries. [`Self::make_room`]
    /// has already made the regions.
    pub fn forget_left(self, committed: u32, last: u32) -> Result<(), Failure> {
        if committed > 0 {
            let place = Place::of(committed);
            forget_left(self.region(place.region)?, place, committed, last);
        }
        Ok(())
    }

    /// Adds the frame that follows the last one in the wal-index. [`Self::forget_left`] has already removed
    /// any leftover entry in the frame's place, and [`Self::make_room`] has already made the region of the
    /// frame.
    pub fn append(self, frame: u32, page: u32) -> Result<(), Failure> {
        let place = Place::of(frame);
        add(self.region(place.region)?, place, frame, page)
    }

    /// Makes the wal-index say that the log has frames with these pages, and no others.
    pub fn fill(self, pages: &[u32]) -> Result<(), Failure> {
        let last = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        for number in 0..=Place::of(last.max(1)).region {
            let place = Place::of_region(number);
            let pages = pages.get(place.before as usize..).unwrap_or_default();
            fill(self.region(number)?, place, pages, || {});
        }
        Ok(())
    }

    /// Shows every connection the commits up to this header.
    pub fn publish(self, header: &IndexHeader) -> Result<(), Failure> {
        self.first()?.set_header(header);
        Ok(())
    }

    /// Records that no frame of the log has been written to the database. Recovery calls this before it
    /// publishes a new header. The caller has all locks for recovery.
    pub fn begin(self, frames: u32) -> Result<(), Failure> {
        let first = self.first()?;
        first.store(BACKFILLED_WORD, 0);
        first.store(ATTEMPTED_WORD, frames);
        first.store(FIRST_MARK_WORD, 0);
        Ok(())
    }

    /// Starts the log over. The caller has WRITE and all marks but the first, and everything in the log is in
    /// the database.
    pub fn start_over(self, header: &IndexHeader) -> Result<(), Failure> {
        let first = self.first()?;
        // Unlike SQLite, store this word first. If this process dies before the next store, the frames are
        // still there, and a checkpoint writes them to the database file a second time.
        first.store(BACKFILLED_WORD, 0);
        self.publish(header)?;
        first.store(ATTEMPTED_WORD, 0);
        first.store(FIRST_MARK_WORD + 1, 0);
        (2..MARKS).for_each(|mark| first.store(FIRST_MARK_WORD + mark, MARK_NOT_USED));
        Ok(())
    }
}

/// Returns the newest of the frames from `from` to `last` in a region that hold this page.
fn find_in(
    region: Region<'_>,
    place: Place,
    page: u32,
    from: u32,
    last: u32,
) -> Result<Option<u32>, Failure> {
    let mut found = None;
    let mut slot = first_slot(page);
    for tries in 0.. {
        let entry = u32::from(region.slot(slot));
        if entry == 0 {
            break;
        }
        if tries == HASH_SLOTS {
            return Err(Failure::new(ffi::CORRUPT, "the wal-index is full"));
        }
        let frame = place.before + entry;
        let is_its = region.load(place.first_word + entry as usize - 1) == page;
        if is_its && (from..=last).contains(&frame) {
            found = Some(frame);
        }
        slot = (slot + 1) % HASH_SLOTS;
    }
    Ok(found)
}

/// In the region that has the last of the `committed` frames, removes leftover entries after that frame, if
/// any of them is in the place of a frame up to `last`. This function checks all these places: a process may
/// have died while it removed entries, so the first place may be free while later ones are not.
fn forget_left(region: Region<'_>, place: Place, committed: u32, last: u32) {
    let first = place.first_word + (committed - place.before) as usize;
    let behind = (place.first_word + (last - place.before) as usize).min(HASH_OFFSET / 4);
    if (first..behind).any(|word| region.load(word) != 0) {
        region.forget(place, committed - place.before);
    }
}

/// Adds a frame with this page to its region.
fn add(region: Region<'_>, place: Place, frame: u32, page: u32) -> Result<(), Failure> {
    let entry = frame - place.before;
    if entry == 1 {
        // The region may still have frames from before the log started over.
        region.forget(place, 0);
    }
    let mut slot = first_slot(page);
    let mut tries = entry;
    while region.slot(slot) != 0 {
        if tries == 0 {
            return Err(Failure::new(ffi::CORRUPT, "the wal-index is full"));
        }
        tries -= 1;
        slot = (slot + 1) % HASH_SLOTS;
    }
    region.store(place.first_word + entry as usize - 1, page);
    region.set_slot(slot, u16::try_from(entry).unwrap_or(u16::MAX));
    Ok(())
}

/// Makes the region list frames with these pages, and no other frames, until all pages are listed or the
/// region is full. Calls `stored` after each store.
///
/// A reader may be using the region: it keeps its snapshot even if another connection has died while it wrote
/// the header. The frames that the reader looks for are at the beginning of the log, and they get the same
/// words whenever a region is filled in order. So this function does not store to a word that already has its
/// value (invariant 15).
fn fill(region: Region<'_>, place: Place, pages: &[u32], mut stored: impl FnMut()) {
    let words = place.first_word..HASH_OFFSET / 4;
    let mut slots = vec![0; HASH_SLOTS];
    for (entry, page) in (1..).zip(pages.iter().take(words.len())) {
        let mut slot = first_slot(*page);
        while slots.get(slot).is_some_and(|taken| *taken != 0) {
            slot = (slot + 1) % HASH_SLOTS;
        }
        if let Some(slot) = slots.get_mut(slot) {
            *slot = entry;
        }
    }
    for (word, page) in words.zip(pages.iter().copied().chain(std::iter::repeat(0))) {
        if region.load(word) != page {
            region.store(word, page);
            stored();
        }
    }
    for (slot, entry) in slots.into_iter().enumerate() {
        if region.slot(slot) != entry {
            region.set_slot(slot, entry);
            stored();
        }
    }
}

fn failed(what: &str) -> Failure {
    Failure::new(ffi::IOERR_SHMMAP, format!("cannot use the wal-index: {what}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
mod tests {
    use super::*;
    use crate::database::concurrent::memory::Private;

    /// Returns the frame that a reader of the first `last` frames finds for each page.
    fn found(region: Region<'_>, last: u32) -> Vec<Option<u32>> {
        (1..50).map(|page| find_in(region, Place::of(1), page, 1, last).unwrap()).collect()
    }

    /// A process has died with frames that it never published. The searches for the pages of these frames all
    /// begin at the same slot of the hash table. Another process may have died while it removed these frames.
    /// SQLite removes them from the first to the last, and this VFS from the last to the first.
    #[test]
    fn inv15_what_the_dead_have_left_takes_no_place() {
        let left: Vec<u32> = (1..20).map(|nth| 4 + nth * 8192).collect();
        for removed in [0..0, 2..3, 2..7, 12..21] {
            let mut memory = Private::default();
            memory.address(0, true);
            let (region, place) = (memory.first().unwrap(), Place::of(1));
            fill(region, place, &[&[2, 3], &left[..]].concat(), || {});
            // A process that removes frames clears their slots first.
            let is_left = |slot: &usize| !removed.is_empty() && region.slot(*slot) > 2;
            (0..HASH_SLOTS).filter(is_left).for_each(|slot| region.set_slot(slot, 0));
            removed.for_each(|entry| region.store(place.first_word + entry, 0));
            forget_left(region, place, 2, 5);
            for (frame, page) in (3..).zip([4, 5, 6]) {
                add(region, place, frame, page).unwrap();
            }
            assert_eq!(found(region, 5)[1..6], [1, 2, 3, 4, 5].map(Some));
            assert!(left.iter().all(|page| find_in(region, place, *page, 1, 100).unwrap().is_none()));
        }
    }

    #[test]
    fn inv15_whoever_reads_while_the_index_is_made_anew_finds_what_is_there() {
        let mut memory = Private::default();
        memory.address(0, true);
        let region = memory.first().unwrap();
        let committed: Vec<u32> = (0..200).map(|frame| frame * frame % 37 + 2).collect();
        fill(region, Place::of(1), &committed, || {});
        let expected = found(region, 200);
        let newest = |page: u32| committed.iter().rposition(|other| *other == page).map(|at| at as u32 + 1);
        assert_eq!(expected, (1..50).map(newest).collect::<Vec<_>>());
        // One process has died with frames that it never sealed, another process with frames that it has
        // sealed.
        for (died_with, sealed) in
            [(&[5, 6, 40][..], &[][..]), (&[], &[41, 5]), (&[5, 6, 40], &[6, 41, 42, 43])]
        {
            let all = |more: &[u32]| [&committed, more].concat();
            fill(region, Place::of(1), &all(died_with), || {});
            let mut stores = 0;
            fill(region, Place::of(1), &all(sealed), || {
                stores += 1;
                assert_eq!(found(region, 200), expected);
            });
            assert!(stores > 0);
            let last = 200 + sealed.len() as u32;
            let newest =
                |page: u32| all(sealed).iter().rposition(|other| *other == page).map(|at| at as u32 + 1);
            assert_eq!(found(region, last), (1..50).map(newest).collect::<Vec<_>>());
        }
    }
}
