//! The file of pages: superblocks, the double-write area, and the pages.
//!
//! Invariant 31: a page is written home only after its image is durable in the double-write area, together with a list
//! of the pages there. The area is overwritten only after these pages are durable at home. So opening the store can
//! repair a page that a power loss has torn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_format::FormatError;
use duralite_medium::MediumError;
use duralite_medium::block::{AlignedBuf, Block, Durability};
use parking_lot::{Mutex, MutexGuard};

use crate::controls::{Controls, Rule};
use crate::error::Error;
use crate::format::{
    BatchList, DOUBLE_WRITE_PAGES, Lsn, PageFileHead, PageId, SLOT_OFFSETS, SUPERBLOCK_AREA_BYTES,
    SUPERBLOCK_BYTES, check, lsn, seal,
};

/// The smallest number of pages, and the largest number of bytes, by which the file grows at a time. Between these
/// limits it grows by a quarter.
const SMALLEST_GROWTH: u64 = 64;
const LARGEST_GROWTH_BYTES: u64 = 64 << 20;

/// An open page file.
#[derive(Debug)]
pub(crate) struct PageFile {
    block: Arc<dyn Block>,
    page_bytes: usize,
    seed: u64,
    head: Mutex<PageFileHead>,
    growing: Mutex<()>,
    /// The failure of an earlier flush, if one has failed. A thread holds the mutex while it makes the file durable. If
    /// two threads flushed at once, the kernel might report a failure to only one of them, and the other would wrongly
    /// assume that its data is durable.
    flush_failed: Mutex<Option<MediumError>>,
    area: Mutex<AlignedBuf>,
    controls: Arc<Controls>,
    pub(crate) read: AtomicU64,
    /// The number of calls that have read pages.
    pub(crate) reads: AtomicU64,
    pub(crate) written: AtomicU64,
}

impl PageFile {
    /// Makes a page file on an empty medium. The file is durable on return.
    pub(crate) fn create(
        block: Arc<dyn Block>,
        head: PageFileHead,
        controls: Controls,
    ) -> Result<Self, Error> {
        let it = Self::over(block, head, controls);
        it.grow_to(it.first_page() + 1)?;
        let blank = vec![0; SUPERBLOCK_BYTES];
        for at in SLOT_OFFSETS {
            it.commit(at, &blank)?;
        }
        it.write_head(|_| ())?;
        Ok(it)
    }

    /// Opens a page file that [`create`](Self::create) has made, and writes nothing. Before the caller uses pages, it has
    /// to call [`restore_torn`](Self::restore_torn).
    pub(crate) fn open(block: Arc<dyn Block>, controls: Controls) -> Result<Self, FormatOrError> {
        let head = newest_head(&*block)?;
        Ok(Self::over(block, head, controls))
    }

    fn over(block: Arc<dyn Block>, head: PageFileHead, controls: Controls) -> Self {
        Self {
            block,
            page_bytes: head.page_bytes as usize,
            seed: head.seed(),
            head: Mutex::new(head),
            growing: Mutex::default(),
            flush_failed: Mutex::default(),
            area: Mutex::default(),
            controls: Arc::new(controls),
            read: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// Returns which rule is broken, in this file and in the layers above.
    pub(crate) fn controls(&self) -> &Arc<Controls> {
        &self.controls
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns the size in bytes of the memory for pages that are being written home.
    pub(crate) fn memory_bytes(&self) -> u64 {
        ((1 + DOUBLE_WRITE_PAGES) * self.page_bytes) as u64
    }

    pub(crate) fn head(&self) -> PageFileHead {
        *self.head.lock()
    }

    /// Returns the number of the first page after the double-write area.
    pub(crate) fn first_page(&self) -> PageId {
        SUPERBLOCK_AREA_BYTES.div_ceil(self.page_bytes as u64) + 1 + DOUBLE_WRITE_PAGES as u64
    }

    fn area_page(&self) -> PageId {
        self.first_page() - 1 - DOUBLE_WRITE_PAGES as u64
    }

    /// Returns how many pages the file has.
    pub(crate) fn pages(&self) -> PageId {
        self.block.len() / self.page_bytes as u64
    }

    /// Changes the superblock. The change is durable on return. Returns the new superblock's number.
    pub(crate) fn write_head(&self, change: impl FnOnce(&mut PageFileHead)) -> Result<u64, Error> {
        let mut head = self.head.lock();
        let mut next = *head;
        change(&mut next);
        next.number += 1;
        self.commit(SLOT_OFFSETS[(next.number % 2) as usize], &next.encode())?;
        *head = next;
        Ok(next.number)
    }

    /// Writes the superblock again, at the same place. The superblock may be only in the system's cache, because the
    /// process that wrote it died before it flushed the file, or because the flush failed. The superblock is durable on
    /// return.
    pub(crate) fn write_head_again(&self) -> Result<(), Error> {
        let head = self.head.lock();
        self.commit(SLOT_OFFSETS[(head.number % 2) as usize], &head.encode())
    }

    /// Records in the superblock that the page file has the changes of all log objects below `home`. The record is
    /// durable on return.
    ///
    /// If an earlier build has written the superblock, it has no such record, and this function leaves it unchanged. A
    /// crash may interrupt an opening of the store before it replaces the log. The missing record tells the next
    /// opening that it has to replace the log.
    pub(crate) fn note_home(&self, home: Lsn) -> Result<(), Error> {
        let has = self.head().home;
        if has == 0 || home <= has {
            return Ok(());
        }
        self.write_head(|head| head.home = head.home.max(home)).map(|_| ())
    }

    /// Returns `error`, which says that a log does not fit this file. If a superblock is damaged, adds to the error
    /// that this may be the cause.
    pub(crate) fn explain_misfit(&self, error: Error) -> Error {
        let is_damaged = |at: &u64| {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            let is_read = self.block.read(*at, &mut bytes).is_ok();
            is_read && matches!(PageFileHead::decode(&bytes), Err(FormatError::Damaged { .. }))
        };
        match error {
            Error::Invalid { what } if SLOT_OFFSETS.iter().any(is_damaged) => Error::Invalid {
                what: format!(
                    "{what}; one of the two superblocks of the page file is damaged, so the file itself may be as new \
                     as its log"
                ),
            },
            error => error,
        }
    }

    fn commit(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut aligned = AlignedBuf::default();
        aligned.resize(bytes.len());
        aligned.as_mut_slice().copy_from_slice(bytes);
        self.making_durable(|block| block.write_durably(at, aligned.as_slice(), Durability::Full))
            .map_err(|error| Error::medium("writing the page file", error))
    }

    /// Makes the file durable by calling `make`. Once a flush has failed, every later call fails too.
    fn making_durable(
        &self,
        make: impl FnOnce(&dyn Block) -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let mut failed = self.flush_failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let made = make(&*self.block);
        *failed = made.clone().err().filter(MediumError::is_failed_flush);
        made
    }

    /// Makes the file large enough for `pages` pages. If this fails, the file's content is unchanged.
    pub(crate) fn grow_to(&self, pages: PageId) -> Result<(), Error> {
        if self.pages() >= pages {
            return Ok(());
        }
        let _one_at_a_time = self.growing.lock();
        let has = self.pages();
        if has >= pages {
            return Ok(());
        }
        let most = LARGEST_GROWTH_BYTES / self.page_bytes as u64;
        let step = (has / 4).clamp(SMALLEST_GROWTH, most);
        let bytes = |pages: u64| pages * self.page_bytes as u64;
        let grow_to = |pages| self.making_durable(|block| block.preallocate(bytes(pages)));
        let grown = match grow_to(pages.max(has + step)) {
            // On a disk that is nearly full, at least the needed pages may fit.
            Err(MediumError::NoSpace) => grow_to(pages),
            grown => grown,
        };
        grown.map_err(|error| Error::medium("the page file cannot grow", error))
    }

    /// Makes the file large enough, like [`grow_to`](Self::grow_to). If the medium allows it, writes nothing into the
    /// new pages, because the caller will write them. The new size becomes durable with the next flush.
    pub(crate) fn reserve(&self, pages: PageId) -> Result<(), Error> {
        let _one_at_a_time = self.growing.lock();
        if self.pages() >= pages {
            return Ok(());
        }
        // If the medium can reserve space only by writing the new pages, it also makes them durable.
        let reserved = self.making_durable(|block| block.reserve(pages * self.page_bytes as u64));
        reserved.map_err(|error| Error::medium("the page file cannot grow", error))
    }

    /// Writes adjacent pages directly, not through the double-write area, because nothing refers to these pages yet.
    /// They are not durable on return.
    pub(crate) fn write_past(&self, first: PageId, pages: &mut [u8]) -> Result<(), Error> {
        let size = self.page_bytes;
        for (id, page) in (first..).zip(pages.chunks_mut(size)) {
            seal(page, id, self.seed);
        }
        let written = self.block.write(first * size as u64, pages);
        written.map_err(|error| Error::medium("writing pages", error))?;
        self.written.fetch_add((pages.len() / size) as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Makes all written pages durable.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.making_durable(|block| block.flush()).map_err(|error| Error::medium("writing pages", error))
    }

    /// Reads adjacent pages, from `first` on, with one call. Does not check them.
    ///
    /// # Errors
    /// Errors of the medium. Even if the error concerns only one page, the content of all buffers is uncertain.
    pub(crate) fn read_neighbours(&self, first: PageId, into: &mut [&mut [u8]]) -> Result<(), Error> {
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        let read = self.block.read_parts(first * self.page_bytes as u64, into);
        read.map_err(|error| Error::medium("reading pages", error))
    }

    /// Returns whether these bytes are page `id`, undamaged.
    pub(crate) fn is_whole(&self, id: PageId, bytes: &[u8]) -> bool {
        check(bytes, id, self.seed).is_ok()
    }

    /// Tells the system that these pages will be read soon. The caller passes them in the order of the file.
    pub(crate) fn will_read(&self, pages: &[PageId]) {
        for run in runs(pages) {
            self.block.will_read(run[0] * self.page_bytes as u64, (run.len() * self.page_bytes) as u64);
        }
    }

    /// Removes unused pages from the end of the file. This is not durable: after a power failure, the file may have the
    /// pages again.
    pub(crate) fn shrink_to(&self, pages: PageId) -> Result<(), Error> {
        let _one_at_a_time = self.growing.lock();
        // While the area is locked, no backup can be copying these pages.
        let _area = self.area.lock();
        let shrunk = self.block.shrink(pages * self.page_bytes as u64);
        shrunk.map_err(|error| Error::medium("cutting the page file", error))
    }

    /// Reads a page. A page that was never written reads as zeros.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page is not valid.
    pub(crate) fn read_page(&self, id: PageId, into: &mut [u8]) -> Result<(), Error> {
        if id >= self.pages() {
            into.fill(0);
            return Ok(());
        }
        self.read.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.block
            .read(id * self.page_bytes as u64, into)
            .map_err(|error| Error::medium("reading a page", error))?;
        check(into, id, self.seed).map_err(|error| Error::page(id, error))
    }

    /// Begins a batch of pages that will be written home together. The batch keeps the double-write area locked, so
    /// there is only one batch at a time.
    pub(crate) fn batch(&self) -> Batch<'_> {
        let mut area = self.area.lock();
        area.resize((1 + DOUBLE_WRITE_PAGES) * self.page_bytes);
        Batch { area, page_bytes: self.page_bytes, list: BatchList { pages: Vec::new() } }
    }

    /// Writes a batch of pages home, and grows the file if necessary. The pages are durable on return. After a crash at
    /// any point, opening the store can repair every page. After an error, the pages may or may not be home.
    pub(crate) fn write(&self, batch: Batch<'_>) -> Result<(), Error> {
        let Batch { mut area, page_bytes: size, list } = batch;
        self.grow_to(list.pages.iter().max().map_or(0, |last| last + 1))?;
        area.resize((1 + list.pages.len()) * size);
        for (id, image) in list.pages.iter().zip(area.as_mut_slice()[size..].chunks_mut(size)) {
            seal(image, *id, self.seed);
        }
        area.as_mut_slice()[..size].copy_from_slice(&list.encode(size, self.seed));
        let writing = |error| Error::medium("writing pages", error);
        let place = self.area_page() * size as u64;
        let durability =
            if self.controls.keep(Rule::FlushDoubleWrite) { Durability::Full } else { Durability::Normal };
        if self.controls.keep(Rule::DoubleWrite) {
            let write = |block: &dyn Block| block.write_durably(place, area.as_slice(), durability);
            self.making_durable(write).map_err(writing)?;
        }
        for (at, id) in list.pages.iter().enumerate() {
            let image = &area.as_slice()[(at + 1) * size..(at + 2) * size];
            // These writes stay in the system's cache until the flush, so that the device gets many at a time.
            self.block.write_later(id * size as u64, image).map_err(writing)?;
        }
        if self.controls.keep(Rule::FlushHome) {
            self.making_durable(|block| block.flush()).map_err(writing)?;
        }
        self.written.fetch_add(list.pages.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Passes the whole file to `write`, from the first byte to the last, without torn pages. If a page is not valid,
    /// calls `is_whole`, which returns whether the page must be valid. If it must, reads the page again. Otherwise
    /// passes zeros in its place.
    pub(crate) fn copy_to(
        &self,
        write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
        is_whole: &dyn Fn(PageId) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut head = vec![0; self.first_page() as usize * self.page_bytes];
        head[..SUPERBLOCK_BYTES].copy_from_slice(&self.head().encode());
        write(&head)?;
        let mut next = self.first_page();
        let mut bytes = vec![0; DOUBLE_WRITE_PAGES * self.page_bytes];
        while next < self.pages() {
            let piece = {
                // While the area is locked, no other thread writes pages home or cuts them off.
                let _area = self.area.lock();
                let count = self.pages().saturating_sub(next).min(DOUBLE_WRITE_PAGES as u64);
                let piece = &mut bytes[..count as usize * self.page_bytes];
                let at = next * self.page_bytes as u64;
                self.block.read(at, piece).map_err(|error| Error::medium("reading pages", error))?;
                piece
            };
            let count = (piece.len() / self.page_bytes) as u64;
            for (id, page) in (next..).zip(piece.chunks_mut(self.page_bytes)) {
                if !self.is_whole(id, page) {
                    self.copy_again(id, page, is_whole)?;
                }
            }
            write(piece)?;
            next += count;
        }
        Ok(())
    }

    fn copy_again(
        &self,
        id: PageId,
        page: &mut [u8],
        is_whole: &dyn Fn(PageId) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        if !is_whole(id)? {
            page.fill(0);
            return Ok(());
        }
        let _area = self.area.lock();
        let read = self.block.read(id * self.page_bytes as u64, page);
        read.map_err(|error| Error::medium("reading pages", error))?;
        check(page, id, self.seed).map_err(|error| Error::page(id, error))
    }

    /// Repairs torn pages of the last double write. For this, copies their images from the double-write area to their
    /// own places.
    pub(crate) fn restore_torn(&self) -> Result<(), Error> {
        if !self.controls.keep(Rule::RestoreTorn) {
            return Ok(());
        }
        let size = self.page_bytes;
        let reading = |error| Error::medium("reading the double-write area", error);
        let mut page = vec![0; size];
        self.block.read(self.area_page() * size as u64, &mut page).map_err(reading)?;
        let Some(list) = BatchList::decode(&page, self.seed) else { return Ok(()) };
        // If the flush of the area failed, the area may be only in the system's cache. So write it durably again.
        let mut area = vec![0; (1 + list.pages.len()) * size];
        self.block.read(self.area_page() * size as u64, &mut area).map_err(reading)?;
        self.commit(self.area_page() * size as u64, &area)?;
        let mut image = AlignedBuf::default();
        image.resize(size);
        for (at, id) in (self.area_page() + 1..).zip(&list.pages) {
            if *id >= self.pages() {
                // The file was cut after this double write, so the page was free.
                continue;
            }
            self.block.read(at * size as u64, image.as_mut_slice()).map_err(reading)?;
            self.block.read(id * size as u64, &mut page).map_err(reading)?;
            let is_whole = check(image.as_slice(), *id, self.seed).is_ok();
            let home_is_whole = check(&page, *id, self.seed).is_ok();
            // A page may be readable and yet not be durable, if a flush had failed. So the image is written again,
            // unless the page at home is newer than the image.
            if is_whole && (!home_is_whole || lsn(&page) <= lsn(image.as_slice())) {
                self.block.write(id * size as u64, image.as_slice()).map_err(reading)?;
            }
        }
        self.block.flush().map_err(reading)
    }
}

/// Pages that are written home together, at most [`DOUBLE_WRITE_PAGES`].
#[derive(Debug)]
pub(crate) struct Batch<'f> {
    /// Memory for the page with the list, followed by the images.
    area: MutexGuard<'f, AlignedBuf>,
    page_bytes: usize,
    list: BatchList,
}

impl Batch<'_> {
    /// Adds a copy of a page to the batch.
    pub(crate) fn add(&mut self, id: PageId, bytes: &[u8]) {
        self.list.pages.push(id);
        let at = self.list.pages.len() * self.page_bytes;
        self.area.as_mut_slice()[at..at + self.page_bytes].copy_from_slice(bytes);
    }
}

/// The reason why a page file cannot be opened.
#[derive(Debug)]
pub(crate) enum FormatOrError {
    Format(FormatError),
    Error(Error),
}

impl From<Error> for FormatOrError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(crate) fn newest_head(block: &dyn Block) -> Result<PageFileHead, FormatOrError> {
    let mut newest: Option<PageFileHead> = None;
    let mut first_error = None;
    for at in SLOT_OFFSETS {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        if at + SUPERBLOCK_BYTES as u64 > block.len() {
            first_error.get_or_insert(FormatError::Short { what: "the page file" });
            continue;
        }
        block.read(at, &mut bytes).map_err(|error| Error::medium("reading the page file", error))?;
        match PageFileHead::decode(&bytes) {
            Ok(head) if newest.is_none_or(|newest| newest.number < head.number) => newest = Some(head),
            Ok(_) => {}
            // If both slots have an error, report that of a damaged slot, or of a slot of another version. A slot that
            // was never written says less.
            Err(FormatError::Magic) => {
                first_error.get_or_insert(FormatError::Magic);
            }
            Err(error) => first_error = Some(error),
        }
    }
    newest.ok_or(FormatOrError::Format(first_error.unwrap_or(FormatError::Magic)))
}

/// Splits pages into runs of adjacent ones. The pages must be in the order of the file.
pub(crate) fn runs(pages: &[PageId]) -> impl Iterator<Item = &[PageId]> {
    pages.chunk_by(|one, next| one + 1 == *next)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed helper is a failed test

    use duralite_crashmodel::{BlockOp, RecordingBlock};
    use rustix::io::Errno;

    use super::*;

    /// If the medium can reserve space only by writing, growing the file includes a flush. If that flush fails, every
    /// later flush has to fail too.
    #[test]
    fn inv37_after_a_growth_whose_flush_failed_no_flush_succeeds() {
        let block = Arc::new(RecordingBlock::new(4096));
        let head = PageFileHead {
            number: 0,
            store_id: [4; 16],
            page_bytes: 4096,
            log_kind: 0,
            log_seed: 0,
            log_first: 1,
            last_tx: 0,
            opened: 0,
            home: 1,
        };
        let file = PageFile::create(block.clone(), head, Controls::default()).unwrap();
        file.flush().unwrap();
        block.fail(BlockOp::Preallocate, 0, MediumError::from_errno("fdatasync", Errno::IO));
        file.reserve(file.pages() + 1).unwrap_err();
        file.flush().unwrap_err();
    }
}
