//! Pages as chains of records: the index of an engine that logs differences.
//!
//! To build a page's image at one of the page's records, the engine takes the last whole image before that record, and
//! applies all records from there on up to that record. The chains are only in memory, so an engine rebuilds them by
//! scanning its log.

use std::collections::hash_map::Entry;

use duralite_format::page_change::Difference;
use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
use duralite_format::sqlite_wal::Checksum;
use duralite_format::{FormatError, diff, page_change};
use rustc_hash::FxHashMap;

use crate::LogError;
use crate::engine::walk::WalkedRecord;
use crate::engine::{Frame, Transaction};
use crate::shared::images::Images;

/// A committed record that a scan has found in a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundRecord {
    /// Where the record is in the log. Each engine has its own unit for this.
    pub(crate) at: u64,
    pub(crate) header: RecordHeader,
}

impl FoundRecord {
    /// Returns the record in the form in which a walk reports it.
    pub(crate) fn walked(&self) -> WalkedRecord {
        let RecordHeader { record_bytes, frame, page_number, ranges, base } = self.header;
        WalkedRecord { offset: self.at, frame, page_number, record_bytes, ranges, whole: base == Base::Zeros }
    }
}

/// The most bytes of page images that recovery caches. The images stay in the cache until the log starts over. Without
/// an image, rebuilding a page costs a read of the device for each of the page's records.
const RECOVERY_BYTES: usize = 64 << 20;

/// The chains of one generation.
pub(crate) struct DeltaChains {
    index: Index,
    images: Images<RecordNumber>,
    zeros: Box<[u8]>,
    /// Whether a scan caches the images of pages that it finds whole. It does so if all pages are about to be read.
    keeps_images: bool,
    /// Whether all versions of all pages are about to be read, in the order of their records. Then the cache keeps the
    /// version of a page that was read last, and the next one is built from it.
    reads_in_order: bool,
    /// Buffer for a rebuilt image from which a difference is computed.
    rebuilt: Vec<u8>,
    /// Working memory for finding the changes in a page.
    changes: page_change::Scratch,
}

impl DeltaChains {
    /// Makes empty chains for a log with pages of this size.
    pub(crate) fn new(page_bytes: u32, cache_bytes: usize) -> Self {
        let page_bytes = page_bytes as usize;
        Self {
            index: Index::default(),
            images: Images::new(page_bytes, cache_bytes),
            zeros: vec![0; page_bytes].into_boxed_slice(),
            keeps_images: false,
            reads_in_order: false,
            rebuilt: Vec::new(),
            changes: page_change::Scratch::default(),
        }
    }

    /// Sets whether the next scans cache images of the pages that they find, as far as the cache has space. Recovery
    /// caches images, because it reads the newest image of each page next, and a page's records are scattered over the
    /// log. A process that only follows the log caches none, because it reads few of the pages that the scan finds.
    pub(crate) fn keep_images(&mut self, keep: bool) {
        self.keeps_images = keep;
        self.widen();
    }

    /// Prepares for reads of all versions of all pages, in the order of their records, until the log starts over.
    /// Otherwise each read of an old version applies all records since the page's last whole image.
    pub(crate) fn read_in_order(&mut self) {
        self.reads_in_order = true;
        self.images.widen(RECOVERY_BYTES);
    }

    fn widen(&mut self) {
        if self.keeps_images {
            self.images.widen(RECOVERY_BYTES);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.images.clear();
        self.reads_in_order = false;
        self.widen();
    }

    /// Returns the number of committed frames.
    pub(crate) fn frames(&self) -> u32 {
        self.index.frames()
    }

    pub(crate) fn frame(&self, number: u32) -> Option<Frame> {
        self.index.frame(number)
    }

    /// Returns the record of a frame. A staged frame takes precedence over a committed one.
    pub(crate) fn record_of_frame(&self, number: u32) -> Option<&Record> {
        self.index.record(self.index.record_of_frame(number)?)
    }

    /// Returns the pages with committed frames in ascending order, each with the number of its newest frame.
    pub(crate) fn newest_frames(&self) -> Vec<(u32, u32)> {
        let mut pages: Vec<_> = self.index.newest_frames().into_iter().collect();
        pages.sort_unstable();
        pages
    }

    pub(crate) fn has_staged(&self) -> bool {
        self.index.has_staged()
    }

    /// Returns the number of the first staged frame, and how many frames are staged.
    pub(crate) fn staged_frames(&self) -> (u32, u32) {
        self.index.staged_frames()
    }

    /// Stages the records of a transaction that a scan has found in the log at `at`. Does not update the cached images
    /// of the pages. The engine updates them when it reads the pages.
    ///
    /// `Corrupt` if a frame leaves a gap, if the frames are not those of the transaction, or if a chain is longer than
    /// any valid chain. The last check keeps a damaged log from slowing down the reads of its pages.
    pub(crate) fn found(
        &mut self,
        at: u64,
        records: &[FoundRecord],
        first_frame: u32,
        last_frame: u32,
    ) -> Result<(), LogError> {
        let what = FormatError::Damaged { what: "a transaction's frame numbers" };
        for record in records {
            let wrong = LogError::Corrupt { offset: record.at, what };
            self.apply(record.at, &record.header).ok_or(wrong)?;
        }
        let (first, count) = self.staged_frames();
        if first != first_frame || last_frame - first >= count {
            return Err(LogError::Corrupt { offset: at, what });
        }
        Ok(())
    }

    fn apply(&mut self, at: u64, header: &RecordHeader) -> Option<Staged> {
        let RecordHeader { record_bytes, frame, page_number, base, .. } = *header;
        let staged = self.index.stage(frame, page_number, at, record_bytes, base)?;
        Some(staged).filter(|staged| !staged.head.is_impossible(self.zeros.len() as u32))
    }

    /// Stages one record that a scan has found. If the cache has an image of the page, uses `change` to apply this
    /// record to the image at once: the scan has the record's bytes in memory, and a later read would have to get them
    /// from the device. Returns `false` in the cases in which [`DeltaChains::found`] fails.
    pub(crate) fn found_at_hand(
        &mut self,
        at: u64,
        header: &RecordHeader,
        change: impl FnOnce(&mut [u8]) -> Result<(), FormatError>,
    ) -> bool {
        let RecordHeader { page_number, base, .. } = *header;
        let Some(Staged { number, before, .. }) = self.apply(at, header) else { return false };
        // Ignore an error here, because a later read of the page reports that the record is wrong.
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
            // Applying the ranges copies fewer bytes than replacing the whole page would.
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

    /// Returns the first transaction that has a number above `sequence` and that no later transaction has replaced.
    pub(crate) fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        self.index.transaction_after(sequence)
    }

    /// Gives the staged records their final places in the log: adds `base` (wrapping) to the `at` of each.
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

    /// Rebuilds a page at a record. Starts from the page's cached image, unless the image includes later records.
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
        if self.reads_in_order || self.index.head(page_number).is_some_and(|head| head.record == number) {
            self.images.put(page_number, number, page);
        }
        Ok(())
    }

    /// Makes the record of a frame. Encodes the page into `payload` as [`DeltaChains::difference`] decides, and returns the
    /// record's header.
    pub(crate) fn encode_record(
        &mut self,
        frame: u32,
        page_number: u32,
        page: &[u8],
        payload: &mut Vec<u8>,
        apply: Apply<'_>,
    ) -> Result<RecordHeader, LogError> {
        payload.clear();
        let (base, ranges) = self.difference(page_number, page, payload, apply)?;
        let record_bytes = RECORD_HEADER_BYTES + payload.len() as u32;
        Ok(RecordHeader { record_bytes, frame, page_number, ranges, base })
    }

    /// Encodes the page as a difference from its last logged image. Encodes the whole page instead if there is no such image,
    /// the chain has grown long, or the difference would be no smaller.
    fn difference(
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

/// Makes the record of a frame for a log without differential logging: the whole page as one range.
pub(crate) fn encode_whole_record(
    frame: u32,
    page_number: u32,
    page: &[u8],
    payload: &mut Vec<u8>,
) -> RecordHeader {
    payload.clear();
    let ranges = diff::encode_whole(page, payload);
    let record_bytes = RECORD_HEADER_BYTES + payload.len() as u32;
    RecordHeader { record_bytes, frame, page_number, ranges, base: Base::Zeros }
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

/// Applies a record to a page. `record` begins with the record's header.
pub(crate) fn apply_record(page: &mut [u8], record: &[u8]) -> Result<(), FormatError> {
    let short = FormatError::Short { what: "a log record" };
    let (head, payload) = record.split_at_checked(RECORD_HEADER_BYTES as usize).ok_or(short)?;
    let header = RecordHeader::decode(head.try_into().map_err(|_| short)?)?;
    header.apply(page, payload)
}

// The index of committed and staged records, in this process's memory. The index maps each frame to the record that
// holds it. It also maps each record that is a difference to the page's previous record, to which the difference
// applies. Each process rebuilds the index from the log.

/// If a page's chain has this many differences, the page's next record is a whole image.
pub(crate) const CHAIN_RECORDS: u32 = 64;
/// If the differences in a page's chain have more bytes than this many pages, the page's next record is also a whole
/// image.
pub(crate) const CHAIN_PAGES: u32 = 2;

/// The newest record of a page, and the length of its chain, which determines the cost of reading the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) record: RecordNumber,
    chain_records: u32,
    chain_bytes: u32,
}

impl Head {
    /// Returns whether the chain is far longer than any chain that this program writes.
    pub(crate) fn is_impossible(&self, page_bytes: u32) -> bool {
        self.chain_records > 2 * CHAIN_RECORDS || self.chain_bytes > 4 * CHAIN_PAGES * page_bytes
    }

    /// Returns whether one more difference would make the page too expensive to read.
    pub(crate) fn is_long(&self, page_bytes: u32) -> bool {
        self.chain_records >= CHAIN_RECORDS || self.chain_bytes > CHAIN_PAGES * page_bytes
    }
}

/// The result of staging a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    pub(crate) number: RecordNumber,
    /// The page's head with this record.
    pub(crate) head: Head,
    /// The page's newest record before this one.
    pub(crate) before: Option<RecordNumber>,
}

#[derive(Debug, Clone, Copy)]
struct CommittedFrame {
    record: RecordNumber,
    db_pages: u32,
    checksum: Option<Checksum>,
}

/// A transaction that no later transaction has replaced.
#[derive(Debug, Clone, Copy)]
struct CommittedTransaction {
    sequence: u32,
    last_frame: u32,
    time_ms: u64,
}

/// The index of one generation.
#[derive(Default)]
pub(crate) struct Index {
    records: Vec<Record>,
    frames: Vec<CommittedFrame>,
    /// The committed transactions, ascending by number and by frame.
    transactions: Vec<CommittedTransaction>,
    heads: FxHashMap<u32, Head>,
    /// Number of records of committed transactions. The records after them are staged.
    committed_records: usize,
    staged_first: u32,
    staged: Vec<RecordNumber>,
    /// The undo log of `heads`. For each staged record: its page, and the head that the record replaced. The oldest
    /// record is first.
    undo: Vec<(u32, Option<Head>)>,
}

/// The number of entries for which each list keeps memory when a new generation begins. If the lists kept none, a log that
/// starts over every thousand frames would allocate the memory again each time.
const KEPT: usize = 1 << 14;

impl Index {
    /// Empties the index.
    pub(crate) fn clear(&mut self) {
        let Self { records, frames, transactions, heads, committed_records, staged_first, staged, undo } =
            self;
        records.clear();
        records.shrink_to(KEPT);
        frames.clear();
        frames.shrink_to(KEPT);
        transactions.clear();
        transactions.shrink_to(KEPT);
        heads.clear();
        heads.shrink_to(KEPT);
        staged.clear();
        staged.shrink_to(KEPT);
        undo.clear();
        undo.shrink_to(KEPT);
        (*committed_records, *staged_first) = (0, 0);
    }

    pub(crate) fn frames(&self) -> u32 {
        self.frames.len() as u32
    }

    pub(crate) fn frame(&self, number: u32) -> Option<Frame> {
        let frame = self.frames.get(number.checked_sub(1)? as usize)?;
        let record = self.records.get(frame.record as usize)?;
        Some(Frame {
            page_number: record.page_number,
            db_pages: frame.db_pages,
            checksum: frame.checksum,
            record_bytes: Some(record.record_bytes),
        })
    }

    /// Returns the record of a frame. A staged frame takes precedence over a committed one.
    pub(crate) fn record_of_frame(&self, number: u32) -> Option<RecordNumber> {
        if !self.staged.is_empty() && number >= self.staged_first {
            return self.staged.get((number - self.staged_first) as usize).copied();
        }
        self.frames.get(number.checked_sub(1)? as usize).map(|frame| frame.record)
    }

    pub(crate) fn record(&self, number: RecordNumber) -> Option<&Record> {
        self.records.get(number as usize)
    }

    pub(crate) fn head(&self, page_number: u32) -> Option<&Head> {
        self.heads.get(&page_number)
    }

    /// Adds a record as staged for `frame`. Returns `None` if the frame number leaves a gap.
    pub(crate) fn stage(
        &mut self,
        frame: u32,
        page_number: u32,
        at: u64,
        record_bytes: u32,
        base: Base,
    ) -> Option<Staged> {
        let number = self.records.len() as RecordNumber;
        if self.staged.is_empty() {
            self.staged_first = frame;
        }
        let slot = frame.checked_sub(self.staged_first)? as usize;
        if slot == self.staged.len() {
            self.staged.push(number);
        } else {
            *self.staged.get_mut(slot)? = number;
        }
        let entry = self.heads.entry(page_number);
        let before = match &entry {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(_) => None,
        };
        let (previous, chain_records, chain_bytes) = match (base, before) {
            (Base::Previous | Base::Change, Some(head)) => {
                (Some(head.record), head.chain_records + 1, head.chain_bytes)
            }
            (Base::Previous | Base::Change, None) | (Base::Zeros, _) => (None, 0, 0),
        };
        self.records.push(Record { at, record_bytes, page_number, previous });
        let chain_bytes = if previous.is_some() { chain_bytes.saturating_add(record_bytes) } else { 0 };
        let head = Head { record: number, chain_records, chain_bytes };
        entry.insert_entry(head);
        self.undo.push((page_number, before));
        Some(Staged { number, head, before: before.map(|head| head.record) })
    }

    /// Commits the staged frames up to the transaction's last frame.
    pub(crate) fn commit(&mut self, committed: &Committed) {
        let Committed { last_frame, db_pages, checksum, sequence, time_ms } = *committed;
        while self.transactions.last().is_some_and(|before| before.last_frame >= self.staged_first) {
            self.transactions.pop();
        }
        self.transactions.push(CommittedTransaction { sequence, last_frame, time_ms });
        self.frames.truncate((self.staged_first - 1) as usize);
        let count = (last_frame + 1 - self.staged_first) as usize;
        for (i, &record) in self.staged.iter().take(count).enumerate() {
            let is_last = i + 1 == count;
            self.frames.push(CommittedFrame {
                record,
                db_pages: if is_last { db_pages } else { 0 },
                checksum: checksum.filter(|_| is_last),
            });
        }
        self.committed_records = self.records.len();
        self.staged.clear();
        self.undo.clear();
    }

    /// Returns the first transaction with a number above `sequence`.
    pub(crate) fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        let at = self.transactions.partition_point(|transaction| transaction.sequence <= sequence);
        let CommittedTransaction { sequence, last_frame, time_ms } = *self.transactions.get(at)?;
        let before = at.checked_sub(1).and_then(|before| self.transactions.get(before));
        let first_frame = before.map_or(1, |before| before.last_frame + 1);
        let db_pages = self.frame(last_frame)?.db_pages;
        Some(Transaction { sequence, first_frame, last_frame, db_pages, time_ms })
    }

    /// Adds `base` (wrapping) to the `at` of each staged record.
    pub(crate) fn move_staged(&mut self, base: u64) {
        for record in self.records.iter_mut().skip(self.committed_records) {
            record.at = record.at.wrapping_add(base);
        }
    }

    /// Returns the records from which the page's image at the record `number` is built, newest first. If `since` is one
    /// of them, returns `true`, and only the records after `since`.
    pub(crate) fn chain(
        &self,
        number: RecordNumber,
        since: Option<RecordNumber>,
    ) -> Result<(bool, Vec<&Record>), LogError> {
        // Usually no record follows `since`, so do not allocate memory in advance.
        let mut chain = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next.filter(|_| next != since) {
            let record = self.records.get(number as usize).ok_or(LogError::Unexpected("a record number"))?;
            chain.push(record);
            next = record.previous;
        }
        Ok((next.is_some(), chain))
    }

    /// Returns whether any frame is staged.
    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Returns the number of the first staged frame, and how many frames are staged.
    pub(crate) fn staged_frames(&self) -> (u32, u32) {
        (self.staged_first, self.staged.len() as u32)
    }

    /// Undoes the staged records. Calls `forget` for the page of each of them.
    pub(crate) fn discard(&mut self, mut forget: impl FnMut(u32)) {
        for (page_number, before) in self.undo.drain(..).rev() {
            match before {
                Some(head) => self.heads.insert(page_number, head),
                None => self.heads.remove(&page_number),
            };
            forget(page_number);
        }
        self.records.truncate(self.committed_records);
        self.staged.clear();
    }

    /// Returns the pages with committed frames, and the newest frame of each page.
    pub(crate) fn newest_frames(&self) -> FxHashMap<u32, u32> {
        let mut newest = FxHashMap::default();
        for (i, frame) in self.frames.iter().enumerate() {
            if let Some(record) = self.records.get(frame.record as usize) {
                newest.insert(record.page_number, i as u32 + 1);
            }
        }
        newest
    }
}

// A record in a log, and what a commit says about staged records.

/// Number of a record in the index of a generation.
pub(crate) type RecordNumber = u32;

/// A record in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Where the record is in the log. Each engine has its own unit for this.
    pub(crate) at: u64,
    pub(crate) record_bytes: u32,
    pub(crate) page_number: u32,
    /// The page's record before this one; `None` if this record is a whole image.
    pub(crate) previous: Option<RecordNumber>,
}

/// Applies one record to a page. The engine provides this function, because only the engine knows where the record's bytes are.
pub(crate) type Apply<'a> = &'a mut dyn FnMut(&Record, &mut [u8]) -> Result<(), LogError>;

/// What a commit says about the staged frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) last_frame: u32,
    pub(crate) db_pages: u32,
    pub(crate) checksum: Option<Checksum>,
    /// Number of the transaction in the generation.
    pub(crate) sequence: u32,
    pub(crate) time_ms: u64,
}
