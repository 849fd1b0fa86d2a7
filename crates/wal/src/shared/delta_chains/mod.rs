//! Pages as chains of records: the index of an engine that logs differences.
//!
//! A page's image as of a record is made of the page's records from the last whole image on. The chains are volatile: an engine
//! rebuilds them by scanning its log.

mod index;
mod record;

use duralite_format::page_change::{self, Difference};
use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
use duralite_format::{FormatError, diff};

use crate::LogError;
use crate::engine::{Frame, Transaction};
use crate::shared::images::Images;
use index::{Index, Staged};
use record::RecordNumber;
pub(crate) use record::{Apply, Committed, Record};

/// Bytes of page images that recovery keeps until the log starts over. To rebuild a page without an image costs a read of the
/// device for each of the page's records.
const RECOVERY_BYTES: usize = 64 << 20;

/// The chains of one generation.
pub(crate) struct DeltaChains {
    index: Index,
    images: Images<RecordNumber>,
    zeros: Box<[u8]>,
    /// Whether to cache an image of each page that is found whole, since all pages are about to be read.
    keeps_images: bool,
    /// Buffer for an image that is rebuilt to compute a difference from it.
    rebuilt: Vec<u8>,
    /// Working memory of the search for a page's changes.
    changes: page_change::Scratch,
}

impl DeltaChains {
    /// Empty chains for a log with pages of this size.
    pub(crate) fn new(page_bytes: u32, cache_bytes: usize) -> Self {
        let page_bytes = page_bytes as usize;
        Self {
            index: Index::default(),
            images: Images::new(page_bytes, cache_bytes),
            zeros: vec![0; page_bytes].into_boxed_slice(),
            keeps_images: false,
            rebuilt: Vec::new(),
            changes: page_change::Scratch::default(),
        }
    }

    /// Sets whether to cache images of the pages that are found from now on, as far as the cache has room. Recovery does so: it
    /// reads the newest image of each page next, and a page's records lie all over the log. Other processes read few of the pages
    /// whose records they apply.
    pub(crate) fn keep_images(&mut self, keep: bool) {
        self.keeps_images = keep;
        self.widen();
    }

    fn widen(&mut self) {
        if self.keeps_images {
            self.images.widen(RECOVERY_BYTES);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.images.clear();
        self.widen();
    }

    /// Number of committed frames.
    pub(crate) fn frames(&self) -> u32 {
        self.index.frames()
    }

    pub(crate) fn frame(&self, number: u32) -> Option<Frame> {
        self.index.frame(number)
    }

    /// The record of a frame. A staged frame takes precedence over a committed one.
    pub(crate) fn record_of_frame(&self, number: u32) -> Option<&Record> {
        self.index.record(self.index.record_of_frame(number)?)
    }

    /// The pages with committed frames, each with the number of its newest one; ascending.
    pub(crate) fn newest_frames(&self) -> Vec<(u32, u32)> {
        let mut pages: Vec<_> = self.index.newest_frames().into_iter().collect();
        pages.sort_unstable();
        pages
    }

    pub(crate) fn has_staged(&self) -> bool {
        self.index.has_staged()
    }

    /// The number of the first staged frame, and how many frames are staged.
    pub(crate) fn staged_frames(&self) -> (u32, u32) {
        self.index.staged_frames()
    }

    /// Stages a record that a scan has found in the log. Returns `false` if its frame leaves a gap, or if its chain is longer
    /// than any valid one: the pages of a damaged log must not take longer to read than others. A cached image of the page stays
    /// at the older record until the page is read.
    pub(crate) fn found(&mut self, at: u64, header: &RecordHeader) -> bool {
        self.take_in(at, header).is_some()
    }

    fn take_in(&mut self, at: u64, header: &RecordHeader) -> Option<Staged> {
        let RecordHeader { record_bytes, frame, page_number, base, .. } = *header;
        let staged = self.index.stage(frame, page_number, at, record_bytes, base)?;
        Some(staged).filter(|staged| !staged.head.is_impossible(self.zeros.len() as u32))
    }

    /// As [`DeltaChains::found`], for a record whose bytes are in memory now and would cost a read of the device later. `change`
    /// applies the record to the cached image of the page, if there is one.
    pub(crate) fn found_at_hand(
        &mut self,
        at: u64,
        header: &RecordHeader,
        change: impl FnOnce(&mut [u8]) -> Result<(), FormatError>,
    ) -> bool {
        let RecordHeader { page_number, base, .. } = *header;
        let Some(Staged { number, before, .. }) = self.take_in(at, header) else { return false };
        // A wrong record is reported when the page is read.
        if self.keeps_images && base == Base::Zeros {
            let mut page = self.zeros.clone();
            match change(&mut page) {
                Ok(()) => self.images.put(page_number, number, &page),
                Err(_) => self.images.remove(page_number),
            }
            return true;
        }
        self.images.renew(page_number, before, number, |image| {
            if base == Base::Zeros {
                image.fill(0);
            }
            change(image).is_ok()
        });
        true
    }

    /// Stages a record that the engine has just stored at `at`. `page` is the page after the change.
    pub(crate) fn stored(
        &mut self,
        at: u64,
        header: &RecordHeader,
        payload: &[u8],
        page: &[u8],
    ) -> Result<(), LogError> {
        let RecordHeader { record_bytes, frame, page_number, base, .. } = *header;
        let staged = self.index.stage(frame, page_number, at, record_bytes, base);
        let gap = LogError::Unexpected("a gap in the frame numbers");
        let Staged { number, before, .. } = staged.ok_or(gap)?;
        match base {
            // To apply ranges copies less than the whole page.
            Base::Previous => {
                self.images.renew(page_number, before, number, |image| header.apply(image, payload).is_ok())
            }
            Base::Change => self.images.renew(page_number, before, number, |image| {
                image.copy_from_slice(page);
                true
            }),
            Base::Zeros => self.images.put(page_number, number, page),
        }
        Ok(())
    }

    /// Commits the staged frames up to the transaction's last frame.
    pub(crate) fn commit(&mut self, committed: &Committed) {
        self.index.commit(committed);
    }

    /// The first transaction with a number above `sequence` that no later one has replaced.
    pub(crate) fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        self.index.transaction_after(sequence)
    }

    /// Sets the final places of the staged records: adds `base` (wrapping) to each.
    pub(crate) fn move_staged(&mut self, base: u64) {
        self.index.move_staged(base);
    }

    /// Drops the staged records.
    pub(crate) fn discard(&mut self) {
        let images = &mut self.images;
        self.index.discard(|page_number| images.remove(page_number));
    }

    /// Reads the page of a frame. A staged frame takes precedence over a committed one.
    pub(crate) fn read_page(
        &mut self,
        frame: u32,
        page: &mut [u8],
        apply: Apply<'_>,
    ) -> Result<(), LogError> {
        let missing = LogError::Unexpected("a read of a frame that does not exist");
        let number = self.index.record_of_frame(frame).ok_or_else(|| missing.clone())?;
        let page_number = self.index.record(number).ok_or(missing)?.page_number;
        self.rebuild(page_number, number, page, apply)
    }

    /// Rebuilds a page as of a record. Starts from the page's cached image if that is of this record or an earlier one of its
    /// chain.
    fn rebuild(
        &mut self,
        page_number: u32,
        number: RecordNumber,
        page: &mut [u8],
        apply: Apply<'_>,
    ) -> Result<(), LogError> {
        let cached = self.images.newest(page_number);
        let (since, chain) = self.index.chain(number, cached.as_ref().map(|(version, _)| *version))?;
        match cached.filter(|_| since) {
            Some((_, image)) => page.copy_from_slice(image),
            None => page.fill(0),
        }
        if chain.is_empty() {
            return Ok(());
        }
        chain.into_iter().rev().try_for_each(|record| apply(record, page))?;
        if self.index.head(page_number).is_some_and(|head| head.record == number) {
            self.images.put(page_number, number, page);
        }
        Ok(())
    }

    /// Encodes the page as a difference from its last logged image. Encodes the page whole if there is no such image, the chain
    /// has grown long, or the difference would be no smaller.
    pub(crate) fn difference(
        &mut self,
        page_number: u32,
        page: &[u8],
        payload: &mut Vec<u8>,
        apply: Apply<'_>,
    ) -> Result<(Base, u16), LogError> {
        let head = self.index.head(page_number).copied();
        let Some(head) = head.filter(|head| !head.is_long(page.len() as u32)) else {
            return Ok((Base::Zeros, diff::encode(&self.zeros, page, payload)));
        };
        let found = match self.images.get(page_number, head.record) {
            Some(image) => encode(&mut self.changes, page_number, image, page, payload),
            None => {
                let mut image = std::mem::take(&mut self.rebuilt);
                image.resize(page.len(), 0);
                let rebuilt = self.rebuild(page_number, head.record, &mut image, apply);
                let found = rebuilt.map(|()| encode(&mut self.changes, page_number, &image, page, payload));
                self.rebuilt = image;
                found?
            }
        };
        if payload.len() > page.len() / 2 {
            let mut whole = Vec::new();
            let whole_ranges = diff::encode(&self.zeros, page, &mut whole);
            if whole.len() <= payload.len() {
                *payload = whole;
                return Ok((Base::Zeros, whole_ranges));
            }
        }
        Ok(found)
    }
}

/// Appends the change from `old` to `new` to `payload`. Returns the base and the number of ranges for the record's header.
fn encode(
    scratch: &mut page_change::Scratch,
    page_number: u32,
    old: &[u8],
    new: &[u8],
    payload: &mut Vec<u8>,
) -> (Base, u16) {
    let header_bytes = page_change::header_bytes(page_number);
    match page_change::encode_rearranged(scratch, old, new, header_bytes, payload) {
        Difference::Ranges(ranges) => (Base::Previous, ranges),
        Difference::Change => (Base::Change, 0),
    }
}

/// Applies a record, which begins with its header, to a page.
pub(crate) fn apply_record(page: &mut [u8], record: &[u8]) -> Result<(), FormatError> {
    let short = FormatError::Short { what: "a log record" };
    let (head, payload) = record.split_at_checked(RECORD_HEADER_BYTES as usize).ok_or(short)?;
    let header = RecordHeader::decode(head.try_into().map_err(|_| short)?)?;
    header.apply(page, payload)
}
