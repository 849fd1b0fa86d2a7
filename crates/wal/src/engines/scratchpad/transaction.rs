//! Reads transactions from the region. This decoder serves recovery, processes that follow others, `duralite verify`
//! and fuzzing.
//!
//! The decoder accepts any bytes and never panics (invariant 12). It accepts exactly the transactions that the table
//! "valid if and only if" in `docs/format/scratchpad.md` allows.

use duralite_format::record::largest_record;
use duralite_format::scratchpad::{
    CHANGE_HEADER_BYTES, CommitEntry, ENTRY_BYTES, HEADER_BYTES, Kind, LAST_AT, PAGE_BYTES, PageHeader,
    RECORD_AT, RECORD_HEADER_BYTES, RecordHeader, TxHash, committed_mark, committing_mark, entry_bytes,
    read_change_word, read_link,
};

use rustc_hash::FxHashMap;

use super::region::{Region, offset_of};
use crate::LogError;
use crate::shared::delta_chains::FoundRecord;

/// The number of cache lines in a page. Each line holds an entry.
pub(super) const LINES: u64 = PAGE_BYTES / ENTRY_BYTES;

/// The transaction that the caller looks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) generation: u64,
    /// Number of the transaction in the generation, from 1.
    pub(super) sequence: u32,
    /// Number of frames before the transaction.
    pub(super) frames: u32,
    pub(super) page_bytes: u32,
}

/// A committed transaction.
#[derive(Debug)]
pub(super) struct FoundTransaction {
    pub(super) commit: CommitEntry,
    pub(super) first_frame: u32,
    pub(super) records: Vec<FoundRecord>,
    /// The pages of the transaction, in order.
    pub(super) pages: Vec<u32>,
    /// Offset of the last entry.
    pub(super) last: u64,
}

/// Reads the transaction that begins in page `first`, if it is the expected transaction and committed.
///
/// # Errors
/// `Corrupt` if no crash can have left these bytes.
pub(super) fn read(
    region: &Region,
    first: u32,
    expected: &Expected,
) -> Result<Option<FoundTransaction>, LogError> {
    let Expected { generation, sequence, .. } = *expected;
    let begins = PageHeader { kind: Kind::Redo, generation, transaction: sequence, index: 0 };
    let Some((_, tag)) = region.header(first).filter(|(header, _)| *header == begins) else {
        return Ok(None);
    };
    if !region.is_own(first) {
        return Ok(None);
    }
    let lines = u64::from(region.superblock.limit_pages) * LINES;
    let last = read_link(
        region.nvm.load_u64(offset_of(first) + LAST_AT),
        tag,
        u32::try_from(lines).unwrap_or(u32::MAX),
    );
    let Some(last) = last.map(|line| u64::from(line) * ENTRY_BYTES) else { return Ok(None) };
    if region.nvm.refresh_len(last + ENTRY_BYTES).is_err() {
        return Ok(None);
    }
    let Some(commit) = read_last(region, last, expected)? else { return Ok(None) };
    let mut body = Body {
        region,
        expected,
        header: begins,
        tag,
        pages: vec![first],
        offset: HEADER_BYTES,
        hash: TxHash::new(region.id, generation, sequence),
        scratch: Vec::new(),
    };
    let records = body.read(&commit, last)?;
    let first_frame = records.first().map_or(0, |record| record.header.frame);
    Ok(Some(FoundTransaction { commit, first_frame, records, pages: body.pages, last }))
}

/// Reads the last entry of a transaction, if the transaction is committed.
fn read_last(region: &Region, at: u64, expected: &Expected) -> Result<Option<CommitEntry>, LogError> {
    let Expected { generation, sequence, .. } = *expected;
    let mark = region.nvm.load_u64(at);
    let mut line = [0; ENTRY_BYTES as usize];
    region.nvm.read(at, &mut line);
    let entry = CommitEntry::decode(&line, region.id, generation, sequence);
    let committed = mark == committed_mark(region.id, generation, sequence);
    match entry {
        Some(entry) if committed => Ok(Some(entry)),
        // A writer stores the mark *committing* or *committed* before the rest of its line. So a line that is complete
        // but has neither mark is damaged.
        None if !committed => Ok(None),
        Some(_) if mark == committing_mark(region.id, generation, sequence) => Ok(None),
        _ => Err(region.corrupt((at / PAGE_BYTES) as u32, "the last entry of a transaction")),
    }
}

/// Returns whether a page contains the last entry of this transaction with the mark *committed*.
pub(super) fn has_commit(region: &Region, page: u32, generation: u64, sequence: u32) -> bool {
    let wanted = committed_mark(region.id, generation, sequence);
    (1..LINES).any(|line| region.nvm.load_u64(offset_of(page) + line * ENTRY_BYTES) == wanted)
}

/// The part of a transaction between its beginning and its last entry.
struct Body<'a> {
    region: &'a Region,
    expected: &'a Expected,
    header: PageHeader,
    tag: u32,
    pages: Vec<u32>,
    /// The offset of the next entry. That entry is in the last of `pages`.
    offset: u64,
    hash: TxHash,
    scratch: Vec<u8>,
}

impl Body<'_> {
    fn page(&self) -> u32 {
        self.pages.last().copied().unwrap_or_default()
    }

    fn at(&self) -> u64 {
        offset_of(self.page()) + self.offset
    }

    /// Returns the error for a committed transaction that cannot be read. Such a transaction is damage, not the end of
    /// the log (invariant 25).
    fn damaged(&self) -> LogError {
        self.region.corrupt(self.page(), "a transaction")
    }

    /// Reads all records. The last entry is at `last`, and the records have to agree with its contents.
    fn read(&mut self, commit: &CommitEntry, last: u64) -> Result<Vec<FoundRecord>, LogError> {
        let mut records: Vec<FoundRecord> = Vec::new();
        let mut first_frame = 0;
        loop {
            if self.offset == PAGE_BYTES {
                self.go_on()?;
            }
            if self.at() == last {
                break;
            }
            let record = self.read_record()?;
            let frame = record.header.frame;
            if records.is_empty() {
                first_frame = frame;
            }
            let most = u64::from(first_frame) + records.len() as u64;
            if frame < first_frame || u64::from(frame) > most {
                return Err(self.damaged());
            }
            records.push(record);
        }
        let header = commit.header;
        let fits = (1..=self.expected.frames.saturating_add(1)).contains(&first_frame)
            && header.last_frame >= first_frame
            && u64::from(header.records) == records.len() as u64
            && header.records > header.last_frame - first_frame
            && header.db_pages > 0
            && u64::from(commit.pages) == self.pages.len() as u64
            && header.seal_hash(self.hash) == header.hash;
        if fits { Ok(records) } else { Err(self.damaged()) }
    }

    /// Continues in the transaction's next page.
    fn go_on(&mut self) -> Result<(), LogError> {
        let next = self.region.next(self.page(), &self.header, self.tag);
        let Some((page, header, tag)) = next else { return Err(self.damaged()) };
        self.pages.push(page);
        (self.header, self.tag, self.offset) = (header, tag, HEADER_BYTES);
        Ok(())
    }

    fn read_record(&mut self) -> Result<FoundRecord, LogError> {
        let at = self.at();
        let mut head = [0; CHANGE_HEADER_BYTES as usize];
        self.region.nvm.read(at, &mut head);
        let word = head.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        let size = read_change_word(word).ok_or_else(|| self.damaged())?;
        let record = head[RECORD_AT as usize..].first_chunk().ok_or_else(|| self.damaged())?;
        let header = RecordHeader::decode(record).map_err(|_| self.damaged())?;
        let most = largest_record(self.expected.page_bytes);
        if u64::from(size) != RECORD_AT + u64::from(header.record_bytes) || header.record_bytes > most {
            return Err(self.damaged());
        }
        let at = at + RECORD_AT;
        self.scratch.resize(header.record_bytes as usize, 0);
        self.region.read_stream(at, &mut self.scratch)?;
        let (head_of_record, payload) = self.scratch.split_at(RECORD_HEADER_BYTES as usize);
        self.hash = self.hash.record(head_of_record, payload);
        let short = head
            .get(12..16)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let number = head
            .get(8..12)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if short != self.hash.short() || number != self.expected.sequence {
            return Err(self.damaged());
        }
        let mut left = entry_bytes(header.record_bytes);
        while left > PAGE_BYTES - self.offset {
            left -= PAGE_BYTES - self.offset;
            self.go_on()?;
        }
        self.offset += left;
        Ok(FoundRecord { at, header })
    }
}

/// What a scan of the page headers in the region has found: the pages of this log, and the pages where transactions may
/// begin.
#[derive(Default)]
pub(super) struct Scan {
    /// The pages where a transaction may begin, by the transaction's number. A transaction that was rolled back may
    /// have left pages with the same number.
    heads: FxHashMap<u32, Vec<u32>>,
    /// The pages of this log, according to their owner word or their header.
    own: Vec<u32>,
    /// The number of pages that all logs have taken.
    used: u64,
}

impl Scan {
    /// Reads the headers of all pages.
    pub(super) fn of(region: &Region, generation: u64) -> Self {
        let mut scan = Self::default();
        for page in 1..region.pages() {
            scan.used += u64::from(region.owner_word(page) != 0);
            let header = region.header(page).map(|(header, _)| header);
            let current =
                header.filter(|header| header.kind == Kind::Redo && header.generation == generation);
            if let Some(header) = current.filter(|header| header.index == 0) {
                scan.heads.entry(header.transaction).or_default().push(page);
            }
            if current.is_some() || region.is_own(page) {
                scan.own.push(page);
            }
        }
        scan
    }

    /// Returns the pages where the transaction with this number may begin.
    pub(super) fn heads(&self, transaction: u32) -> &[u32] {
        self.heads.get(&transaction).map_or(&[], |heads| heads)
    }

    /// Returns, in ascending order, the transaction numbers above the given one. Only numbers for which the scan has
    /// found a possible first page are included.
    pub(super) fn numbers_above(&self, transaction: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> =
            self.heads.keys().copied().filter(|number| *number > transaction).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the pages of this log, according to their owner word or their header.
    pub(super) fn own(&self) -> &[u32] {
        &self.own
    }

    /// Returns how many pages all logs have taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}
