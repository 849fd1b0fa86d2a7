//! The write-ahead log as a plain file would hold it, and SQLite's writes to it.

use duralite_wal::engine::home::NoDatabase;
use std::fmt;
use std::rc::Rc;

use duralite_format::page_change;
use duralite_format::sqlite_wal::{Checksum, FRAME_HEADER_BYTES, WalHeader, make_wal_header};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

use crate::rig::Stream;

/// The number of pages in the database.
pub const PAGES: u32 = 12;

type Page = Rc<Vec<u8>>;

/// A log, and the database at its end.
#[derive(Clone)]
pub struct Model {
    page_bytes: usize,
    header: Option<WalHeader>,
    frames: Vec<Frame>,
    pages: Vec<Page>,
    restarts: u32,
}

#[derive(Clone)]
struct Frame {
    page_number: u32,
    db_pages: u32,
    sum: Checksum,
    page: Page,
}

/// A step of a transaction.
pub enum Step {
    /// Appends a frame. The last frame of a transaction also has the size of the database in pages.
    Append { page_number: u32, content: Page, db_pages: u32 },
    /// Overwrites the page of a spilled frame in place. `frame` counts from the transaction's first frame.
    Overwrite { frame: usize, content: Page },
    /// Rolls back to a savepoint. At the savepoint the transaction had `frames` frames.
    Undo { frames: usize },
}

/// One write to the log's file.
#[derive(Clone)]
pub struct Write {
    pub at: u64,
    pub bytes: Vec<u8>,
}

impl Write {
    /// Whether the write is a page, and not the header of a frame.
    pub fn is_page(&self) -> bool {
        self.bytes.len() > FRAME_HEADER_BYTES
    }
}

/// A transaction as a sequence of SQLite's writes.
pub struct Transaction {
    pub writes: Vec<Write>,
    /// The index of the write of the commit frame's page. Before this write SQLite can still roll back. The
    /// writes after it correct checksums.
    pub commit_page: usize,
}

impl Model {
    pub fn new(page_bytes: usize) -> Self {
        let pages = vec![Rc::new(vec![0; page_bytes]); PAGES as usize];
        Self { page_bytes, header: None, frames: Vec::new(), pages, restarts: 0 }
    }

    /// Whether the log has no header yet.
    pub fn is_empty(&self) -> bool {
        self.header.is_none()
    }

    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    pub fn len(&self) -> u64 {
        if self.is_empty() { 0 } else { self.offset_of(self.frames.len()) }
    }

    fn offset_of(&self, frame: usize) -> u64 {
        32 + frame as u64 * (self.page_bytes + FRAME_HEADER_BYTES) as u64
    }

    pub fn page(&self, page_number: u32) -> Page {
        self.pages[page_number as usize - 1].clone()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let Some(header) = &self.header else { return Vec::new() };
        let mut bytes = header.bytes.to_vec();
        for frame in &self.frames {
            bytes.extend_from_slice(&header.frame_header(frame.page_number, frame.db_pages, frame.sum));
            bytes.extend_from_slice(&frame.page);
        }
        bytes
    }

    /// Checks the pages that a checkpoint would write home.
    pub fn check_pages(&self, stream: &mut Stream) {
        let mut page = vec![0; self.page_bytes];
        let newest = stream.engine().newest_frames();
        for (page_number, number) in &newest {
            let last = self.frames.iter().rposition(|frame| frame.page_number == *page_number);
            assert_eq!(last.map(|index| index as u32 + 1), Some(*number));
            stream.engine_mut().read_page(&NoDatabase, *number, &mut page).expect("a committed page");
            assert!(page == *self.frames[*number as usize - 1].page);
        }
        let logged = (1..=PAGES).filter(|page| self.frames.iter().any(|frame| frame.page_number == *page));
        assert_eq!(logged.count(), newest.len());
    }

    /// Starts the log over. Returns the header that SQLite writes at the log's beginning.
    pub fn restart(&mut self, salt: u32) -> Vec<u8> {
        self.restarts += 1;
        let bytes = make_wal_header(self.page_bytes as u32, self.restarts, [self.restarts, salt]);
        self.header = Some(WalHeader::parse(&bytes).expect("a header"));
        self.frames.clear();
        bytes.to_vec()
    }

    pub fn truncate(&mut self) {
        self.header = None;
        self.frames.clear();
    }

    /// The steps of a random transaction.
    pub fn steps(&self, input: &mut Unstructured, most: usize) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let mut pages = self.pages.clone();
        let mut staged: Vec<u32> = Vec::new();
        for _ in 0..input.int_in_range(1..=most)? {
            match input.int_in_range(0..=9)? {
                0 if !staged.is_empty() => {
                    let frames = input.int_in_range(0..=staged.len())?;
                    staged.truncate(frames);
                    steps.push(Step::Undo { frames });
                }
                1 | 2 if !staged.is_empty() => {
                    let frame = input.int_in_range(0..=staged.len() - 1)?;
                    let content = changed(input, &mut pages, staged[frame])?;
                    steps.push(Step::Overwrite { frame, content });
                }
                _ => {
                    let page_number = input.int_in_range(1..=PAGES)?;
                    let content = changed(input, &mut pages, page_number)?;
                    staged.push(page_number);
                    steps.push(Step::Append { page_number, content, db_pages: 0 });
                }
            }
        }
        let page_number = input.int_in_range(1..=PAGES)?;
        let content = changed(input, &mut pages, page_number)?;
        steps.push(Step::Append { page_number, content, db_pages: PAGES });
        Ok(steps)
    }

    /// The writes that SQLite makes for these steps, and the log after them (`sqlite3WalFrames`,
    /// `walWriteOneFrame`, `walRewriteChecksums`, `sqlite3WalSavepointUndo` of SQLite's wal.c).
    pub fn write(&self, steps: &[Step]) -> (Transaction, Self) {
        let header = self.header.expect("a log that was started");
        let mut after = self.clone();
        let first = self.frames.len();
        let mut writes = Vec::new();
        // The first frame whose header has a stale checksum.
        let mut stale: Option<usize> = None;
        for step in steps {
            match step {
                Step::Append { page_number, content, db_pages } => {
                    let number = after.frames.len();
                    let before = after.frames.last().map_or(header.checksum, |frame| frame.sum);
                    let sum = header.extend(before, *page_number, *db_pages, content);
                    let shown = if stale.is_some() { [0, 0] } else { sum };
                    let head = header.frame_header(*page_number, *db_pages, shown);
                    let at = after.offset_of(number);
                    writes.push(Write { at, bytes: head.to_vec() });
                    writes.push(Write { at: at + head.len() as u64, bytes: content.to_vec() });
                    after.frames.push(Frame {
                        page_number: *page_number,
                        db_pages: *db_pages,
                        sum,
                        page: content.clone(),
                    });
                }
                Step::Overwrite { frame, content } => {
                    let number = first + frame;
                    let at = after.offset_of(number) + FRAME_HEADER_BYTES as u64;
                    writes.push(Write { at, bytes: content.to_vec() });
                    after.frames[number].page = content.clone();
                    stale = Some(stale.map_or(number, |from| from.min(number)));
                    after.sum_again(&header, number);
                }
                Step::Undo { frames } => {
                    after.frames.truncate(first + frames);
                    stale = stale.filter(|from| *from < first + frames);
                }
            }
        }
        let commit_page = writes.len() - 1;
        if let Some(from) = stale {
            for number in from..after.frames.len() {
                let Frame { page_number, db_pages, sum, .. } = after.frames[number];
                let bytes = header.frame_header(page_number, db_pages, sum).to_vec();
                writes.push(Write { at: after.offset_of(number), bytes });
            }
        }
        for frame in &after.frames[first..] {
            after.pages[frame.page_number as usize - 1] = frame.page.clone();
        }
        (Transaction { writes, commit_page }, after)
    }

    fn sum_again(&mut self, header: &WalHeader, from: usize) {
        let mut sum = from.checked_sub(1).map_or(header.checksum, |before| self.frames[before].sum);
        for frame in &mut self.frames[from..] {
            sum = header.extend(sum, frame.page_number, frame.db_pages, &frame.page);
            frame.sum = sum;
        }
    }
}

/// The payload of a page change that inserts or deletes a row.
fn row(input: &mut Unstructured, page_number: u32) -> Result<Vec<u8>> {
    let first = if page_number == 1 { 0x11 } else { 1 };
    let slot = input.int_in_range(0..=8)?;
    if input.arbitrary()? {
        return Ok(vec![first, 1, 3, slot, 0]);
    }
    let length = input.int_in_range(2..=60)?;
    let mut payload = vec![first, 1, 1, slot, length + 1, length, slot];
    payload.resize(payload.len() + usize::from(length), input.arbitrary()?);
    Ok(payload)
}

/// Changes a page, a little or completely, and returns it.
fn changed(input: &mut Unstructured, pages: &mut [Page], page_number: u32) -> Result<Page> {
    let page = &mut pages[page_number as usize - 1];
    let content = Rc::make_mut(page);
    for _ in 0..input.int_in_range(0..=3)? {
        let start = input.int_in_range(0..=content.len() - 1)?;
        let room = content.len() - start;
        match input.int_in_range(0..=7)? {
            0 => content.fill(input.arbitrary()?),
            1 => content[start..].fill(0),
            2 => {
                // A b-tree page whose gap the `embedded` layout uses.
                let at = if page_number == 1 { 100 } else { 0 };
                let end = (start as u16).to_be_bytes();
                content[at..at + 7].copy_from_slice(&[13, 0, 0, 0, input.arbitrary()?, end[0], end[1]]);
            }
            3 => {
                // Many small differences.
                let step = input.int_in_range(1..=64)?;
                content[start..].iter_mut().step_by(step).for_each(|byte| *byte = byte.wrapping_add(1));
            }
            4 | 5 => {
                let mut changed = content.to_vec();
                if page_change::apply(&mut changed, &row(input, page_number)?).is_ok() {
                    content.copy_from_slice(&changed);
                }
            }
            _ => {
                let length = input.int_in_range(1..=room.min(200))?;
                content[start..start + length].fill(input.arbitrary()?);
            }
        }
    }
    Ok(page.clone())
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append { page_number, db_pages, .. } => write!(f, "page {page_number} of {db_pages}"),
            Self::Overwrite { frame, .. } => write!(f, "overwrite {frame}"),
            Self::Undo { frames } => write!(f, "back to {frames}"),
        }
    }
}
