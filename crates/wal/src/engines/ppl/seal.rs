//! Commits changes. Each change becomes a record in its page's log. The writer flushes all records, and one word of the
//! transaction log then commits them (SQLite/PPL, sections 3.2, log writer, and 3.3.3).

use std::time::Duration;

use duralite_format::page_change::{self, ChangeKind};
use duralite_format::ppl::{Extent, ExtentHeader, TransactionKind, TransactionRecord};

use super::area::{Need, State};
use super::chain::NewRecord;
use super::frames::Entry;
use super::merge::{Cause, Merged};
use super::store::{AsOf, Counts, Scratch, Store};
use super::words::{DB_PAGES, DUE, FRAMES, OPEN, SEALED, Turn, UNDO_END, UNDO_LAST};
use crate::LogError;
use crate::engine::home::DatabaseFile;
use crate::shared::log_memory::flush_all;

/// SQLite's code for a full disk.
const FULL: i32 = 13;
/// How a writer waits for space: it tries again after each `WAIT`. While another process is merging, the writer tries
/// at most `MOST_WAITS` times. Otherwise it tries at most `FEW_WAITS` times, because another process may be
/// checkpointing.
const WAIT: Duration = Duration::from_millis(1);
const FEW_WAITS: u32 = 250;
const MOST_WAITS: u32 = 5000;

/// A transaction's change of a page.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) page_number: u32,
    pub(super) payload: Vec<u8>,
}

/// Buffers that sealing reuses.
#[derive(Default)]
pub(super) struct Buffers {
    /// The ranges that have to be flushed.
    dirty: Vec<(u64, u64)>,
    chains: Vec<Extent>,
}

/// What one call of [`Store::seal`] commits.
pub(super) struct Sealing<'a> {
    pub(super) changes: &'a [Change],
    pub(super) entry: Entry,
    pub(super) retired: bool,
}

impl Store {
    /// Returns the extents that the changes and their transaction's entry need.
    fn need(&self, changes: &[Change], frames: usize) -> Result<Need, LogError> {
        let mut need = Need { sectors: 0, pieces: Entry::pieces(frames) };
        for change in changes {
            let chain = self.area.find_chain(change.page_number)?;
            need.add(self.area.need(chain, change.payload.len() as u32)?);
        }
        Ok(need)
    }

    /// Takes the lock as soon as there is space for the changes. If the log's usual size does not have the space,
    /// merges pages. If that is not enough, lets the log grow beyond its usual size. (In a log with a limit, the usual
    /// size is the limit.)
    pub(super) fn lock_for(
        &self,
        file: &dyn DatabaseFile,
        changes: &[Change],
        frames: usize,
    ) -> Result<Turn<'_>, LogError> {
        let (mut waits, mut has_merged) = (0, false);
        loop {
            let turn = self.lock()?;
            let need = self.need(changes, frames)?;
            let refused = match self.area.make_room(&self.words, &turn, need, has_merged) {
                Ok(()) => return Ok(turn),
                Err(full @ (LogError::LimitReached { .. } | LogError::NoSpace { .. })) => full,
                Err(error) => return Err(error),
            };
            drop(turn);
            let relieved = match self.relieve(file, Cause::Room) {
                // The disk is too full to write merged pages. The log is unchanged, and still full.
                Err(LogError::BaseVfs { code, .. }) if code & 0xff == FULL => Merged::default(),
                relieved => relieved?,
            };
            if !std::mem::replace(&mut has_merged, true) || relieved.pages > 0 {
                continue;
            }
            waits += 1;
            if waits < if relieved.is_other_merging { MOST_WAITS } else { FEW_WAITS } {
                std::thread::sleep(WAIT);
            } else {
                return Err(refused);
            }
        }
    }

    /// Stores the changes of a transaction and commits it. The transaction is durable and visible on return. The caller has
    /// made sure that there is space.
    pub(super) fn seal(
        &self,
        turn: &Turn<'_>,
        sealing: &Sealing<'_>,
        buffers: &mut Buffers,
    ) -> Result<(), LogError> {
        let Sealing { changes, entry, retired } = sealing;
        let nvm = &self.area.nvm;
        let Entry { number, db_pages, time_ms, .. } = *entry;
        let (last, end) = self.words.last_frames();
        self.words.store(UNDO_LAST, last);
        self.words.store(UNDO_END, end);
        self.words.store(OPEN, number);
        // Store the entry of the frames before the records, so that it takes pieces nearer to the beginning of the
        // file. It keeps its pieces longer than most chains do, and a log that has outgrown its usual size can give
        // back only the space after the last extent in use.
        self.area.append_entry(&self.words, turn, entry)?;
        let Buffers { dirty, chains } = buffers;
        dirty.clear();
        chains.clear();
        for change in *changes {
            let first = self.chain_for(turn, change.page_number, number)?;
            let record =
                NewRecord { page_number: change.page_number, transaction: number, payload: &change.payload };
            self.area.append(&self.words, turn, first, &record, dirty)?;
            if self.area.state(first, State::Bytes) >= self.full_bytes {
                self.words.store(DUE, 1);
            }
            chains.push(first);
        }
        let kind = TransactionKind::Begin;
        let begun = TransactionRecord { number, kind, db_pages, time_ms, retired: *retired };
        let at = TransactionRecord::offset(number);
        let bytes = begun.encode(self.area.id);
        // Clear the mark first. It belongs to an earlier transaction whose record was in this place. A torn record of
        // the new transaction must not carry it.
        let mark = TransactionRecord::mark_offset(number);
        nvm.store_u64(mark, 0);
        nvm.store(at + 16, &bytes[16..]);
        nvm.store_u64(at, number);
        nvm.store_u64(mark, kind.mark(self.area.id, number));
        dirty.push((at, at + bytes.len() as u64));
        flush_all(nvm.as_ref(), dirty);
        nvm.fence();
        nvm.store_u64(mark, TransactionKind::Commit.mark(self.area.id, number));
        nvm.flush(mark, 8);
        nvm.fence();
        for first in &*chains {
            self.area.set_state(*first, State::Last, number);
        }
        self.words.store(DB_PAGES, u64::from(db_pages));
        self.words.add(FRAMES, entry.pages.len() as u64);
        self.words.store(SEALED, number);
        self.words.store(OPEN, 0);
        let counts = &self.counts;
        Counts::add(&counts.commits, 1);
        Counts::add(&counts.frames, entry.pages.len() as u64);
        for change in *changes {
            let kind = page_change::kind(&change.payload).unwrap_or(ChangeKind::Whole);
            Counts::add(&counts.records[kind as usize], 1);
            Counts::add(&counts.record_bytes, change.payload.len() as u64);
        }
        Ok(())
    }

    /// Returns the first extent of a page's chain. Begins a chain if the page has none.
    fn chain_for(&self, turn: &Turn<'_>, page_number: u32, number: u64) -> Result<Extent, LogError> {
        if let Some(first) = self.area.find_chain(page_number)? {
            return Ok(first);
        }
        let first = self
            .area
            .take(&self.words, turn, false)?
            .ok_or(LogError::Unexpected("a page for which there is no room"))?;
        let header = ExtentHeader { page_number, order: 0, taken_by: number };
        self.area.store_header(first, &header, 0);
        // The header needs no flush here. It is flushed with the first record, which begins in the same cache line.
        self.begin_chain(first);
        self.area.enter_chain(page_number, first);
        Ok(first)
    }

    /// Returns whether a page's newest version was never published to readers. This is so if that version is later than
    /// the page's home position: the caller makes sure that SQLite has checkpointed everything published, so only a
    /// transaction whose writer died before publishing it can be later. Returns `false` for a page beyond `end`, the
    /// number of pages. Such a page needs no undo: if the database grows again, the page's next record is a whole page.
    pub(super) fn is_unseen(&self, page_number: u32, first: Extent, end: u64) -> bool {
        u64::from(page_number) <= end && self.is_ahead(first)
    }

    /// Returns changes that lead from the newest versions of these pages to the versions that `as_of` selects. `encode`
    /// gets the newest image of a page and the selected image, and appends the payload that turns the first into the
    /// second.
    pub(super) fn changes_to(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        as_of: AsOf,
        mut encode: impl FnMut(u32, &[u8], &[u8], &mut Vec<u8>),
    ) -> Result<Vec<Change>, LogError> {
        let mut changes = Vec::new();
        let bytes = self.page_bytes as usize;
        let (mut now, mut then) = (vec![0; bytes], vec![0; bytes]);
        let mut scratch = Scratch::default();
        for &page_number in pages {
            let newest = AsOf::Transaction(self.words.load(SEALED));
            self.read(file, page_number, newest, &mut now, &mut scratch)?;
            self.read(file, page_number, as_of, &mut then, &mut scratch)?;
            if now != then {
                let mut payload = Vec::new();
                encode(page_number, &now, &then, &mut payload);
                changes.push(Change { page_number, payload });
            }
        }
        Ok(changes)
    }

    /// Returns whether a page is beyond the end of the database as of the newest commit. The file and the log may still
    /// hold an old version of such a page, which must not be used.
    pub(super) fn is_new(&self, file: &dyn DatabaseFile, page_number: u32) -> Result<bool, LogError> {
        let pages = match self.words.load(DB_PAGES) {
            0 => self.home_pages(file)?,
            pages => pages,
        };
        Ok(u64::from(page_number) > pages)
    }
}
