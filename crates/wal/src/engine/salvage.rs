//! Salvages the contents of a damaged log: the database as of the last transaction before the damage, and, separately,
//! the intact transactions after it. Writes nothing to the log, its region, or the database.
//!
//! Recovery refuses a log that is damaged before its end, because acknowledged transactions cannot be read any more. This
//! module reads the rest. Each engine finds its own transactions: see `salvage` in its descriptor.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use duralite_format::guard::{DatabaseHeader, HEADER_BYTES};
use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
use duralite_format::{FormatError, LogId, guard};
use rustc_hash::FxHashMap;

use crate::engine::Engine;
use crate::engine::home::{DatabaseFile, OpenDatabase};
use crate::engine::rollback::{RollbackJournal, play_back};
use crate::{ErrorKind, LogError};

/// The place and the kind of the damage in a log.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The error that recovery reports.
    pub error: LogError,
    /// Offset in the log's file of the first byte that is not part of an intact transaction.
    pub from: u64,
    /// Offset of the first intact transaction after the damage. `None` if there is no such transaction, or if the order
    /// of the transactions is not that of their offsets.
    pub until: Option<u64>,
}

/// The last transaction before the damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// The number of transactions that the log holds up to and including this one.
    pub transactions: u64,
    /// The log's position after this transaction; `None` if the log does not say.
    pub position: Option<u64>,
    /// The time at which the transaction was sealed, in milliseconds since 1970; 0 if the log does not say.
    pub time_ms: u64,
    /// Size of the database in pages after this transaction. 0 if the log does not say; the database then has the size
    /// of its file.
    pub db_pages: u32,
    /// The transaction's commit frame; 0 if the log does not number frames.
    pub last_frame: u32,
}

/// A page that a transaction after the damage wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterPage {
    /// The page's number.
    pub page_number: u32,
    /// The page after the transaction; `None` if the log has only a difference from an image that is lost.
    pub image: Option<Box<[u8]>>,
}

/// An intact transaction after the damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterTransaction {
    /// The transaction's number, counted like [`Point::transactions`]; `None` if the log does not say (`waldio`, layout
    /// `embedded`).
    pub number: Option<u64>,
    /// The log's position after this transaction; `None` if the log does not say.
    pub position: Option<u64>,
    /// The time at which the transaction was sealed, in milliseconds since 1970; 0 if the log does not say.
    pub time_ms: u64,
    /// Size of the database in pages after this transaction; 0 if the log does not say.
    pub db_pages: u32,
    /// The transaction's first frame; 0 if the log does not number frames.
    pub first_frame: u32,
    /// Offset of the transaction in the log's file, or in its region.
    pub offset: u64,
    /// The transaction's pages, each once.
    pub pages: Vec<LaterPage>,
}

/// The callback that receives the transactions after the damage, in order.
pub type Later<'a> = &'a mut dyn FnMut(&LaterTransaction) -> Result<(), LogError>;

/// Pages as of the last transaction before the damage.
pub trait Source {
    /// Reads a page that the log holds. An engine that logs changes applies them to the page in `file`, the database file.
    ///
    /// # Errors
    /// `Corrupt`; errors of reading the database file.
    fn read(&mut self, file: &dyn DatabaseFile, page_number: u32, page: &mut [u8]) -> Result<(), LogError>;
}

/// The readable contents of a log.
pub struct Salvaged {
    /// Page size in bytes.
    pub page_bytes: u32,
    /// The last transaction before the damage; for an undamaged log, its last transaction.
    pub point: Point,
    /// The damage; `None` for an undamaged log.
    pub damage: Option<Damage>,
    /// The pages that the log holds as of `point`, in ascending order.
    pub pages: Vec<u32>,
    /// The pages whose version in the database file is newer than `point`, as far as the reader can tell. The log holds
    /// no image of these pages at `point`.
    pub newer: Vec<u32>,
    /// Pages without an image in the log. Their version in the database file may be older than `point` (`ppl`).
    pub older: Vec<u32>,
    /// Among the transactions after the damage, the number of the newest one with a page that is already in the
    /// database file.
    pub checkpointed: Option<u64>,
    /// The number of intact transactions after the damage.
    pub later: u64,
    /// Whether the log is one sequence of transactions. A log of `ppl` is not: in such a log, a transaction after the
    /// damage may also have changed pages that no longer occur in the log.
    pub is_sequence: bool,
    /// The number of lost transactions between `point` and the last intact transaction; `None` if the number is not
    /// known.
    pub missing: Option<u64>,
    source: Box<dyn Source>,
    journal: Option<Arc<dyn RollbackJournal>>,
}

/// Reads pages from the frames that an engine has indexed.
struct Frames {
    engine: Box<dyn Engine>,
    newest: FxHashMap<u32, u32>,
}

/// Returns the page, or the error for a page that the log does not hold.
pub(crate) fn held<T>(page: Option<T>) -> Result<T, LogError> {
    page.ok_or(LogError::Unexpected("a page that the log does not hold"))
}

impl Source for Frames {
    fn read(&mut self, file: &dyn DatabaseFile, page_number: u32, page: &mut [u8]) -> Result<(), LogError> {
        let frame = *held(self.newest.get(&page_number))?;
        self.engine.read_page(file, frame, page)
    }
}

impl Salvaged {
    /// Returns the contents of a log. `engine` has applied the log's transactions before the damage.
    #[must_use]
    pub fn of_frames(engine: Box<dyn Engine>, has_position: bool, damage: Option<Damage>) -> Self {
        let newest = engine.newest_frames();
        let transactions = engine.transactions();
        let last = transactions.checked_sub(1).and_then(|before| engine.transaction_after(before));
        let point = Point {
            transactions: transactions.into(),
            position: has_position.then(|| engine.position()),
            time_ms: last.map_or(0, |last| last.time_ms),
            db_pages: last.map_or(0, |last| last.db_pages),
            last_frame: engine.committed(),
        };
        let pages = newest.iter().map(|(page, _)| *page).collect();
        let page_bytes = engine.page_bytes();
        let newest = newest.into_iter().collect();
        let journal = engine.rollback_journal();
        let salvaged = Self::new(page_bytes, point, damage, pages, Box::new(Frames { engine, newest }));
        Self { journal, ..salvaged }
    }

    pub(crate) fn new(
        page_bytes: u32,
        point: Point,
        damage: Option<Damage>,
        pages: Vec<u32>,
        source: Box<dyn Source>,
    ) -> Self {
        let (newer, older, checkpointed, later, missing) = (Vec::new(), Vec::new(), None, 0, None);
        let is_sequence = true;
        Self {
            page_bytes,
            point,
            damage,
            pages,
            newer,
            older,
            checkpointed,
            later,
            is_sequence,
            missing,
            source,
            journal: None,
        }
    }
}

/// Reads a log with `read`. Also determines which pages of the database file are newer than the last transaction before the
/// damage, and how many transactions are missing.
pub(crate) fn read(
    read: &dyn Fn(Later<'_>) -> Result<Salvaged, LogError>,
    database: &dyn DatabaseFile,
    later: Later<'_>,
) -> Result<Salvaged, LogError> {
    let mut seen = Seen::default();
    let mut salvaged = read(&mut |transaction| {
        seen.note(database, transaction)?;
        later(transaction)
    })?;
    seen.tell(database, &mut salvaged)?;
    Ok(salvaged)
}

/// What the reader has learnt from all transactions after the damage.
#[derive(Default)]
struct Seen {
    count: u64,
    numbered: u64,
    newest: u64,
    /// Pages that a transaction after the damage wrote, if the database file has the same contents. The value is the
    /// number of that transaction.
    in_file: FxHashMap<u32, u64>,
    page: Vec<u8>,
}

impl Seen {
    fn note(&mut self, database: &dyn DatabaseFile, transaction: &LaterTransaction) -> Result<(), LogError> {
        self.count += 1;
        if let Some(number) = transaction.number {
            self.numbered += 1;
            self.newest = self.newest.max(number);
        }
        for LaterPage { page_number, image } in &transaction.pages {
            let Some(image) = image else { continue };
            self.page.resize(image.len(), 0);
            if read_home(database, *page_number, &mut self.page)? && *self.page == **image {
                self.in_file.insert(*page_number, transaction.number.unwrap_or(self.count));
            }
        }
        Ok(())
    }

    fn tell(mut self, database: &dyn DatabaseFile, salvaged: &mut Salvaged) -> Result<(), LogError> {
        self.page.resize(salvaged.page_bytes as usize, 0);
        let mut own = self.page.clone();
        for (page_number, transaction) in self.in_file {
            if salvaged.pages.binary_search(&page_number).is_err() {
                salvaged.newer.push(page_number);
            } else {
                salvaged.source.read(database, page_number, &mut own)?;
                read_home(database, page_number, &mut self.page)?;
                if own == self.page {
                    continue;
                }
            }
            salvaged.checkpointed = salvaged.checkpointed.max(Some(transaction));
        }
        salvaged.newer.sort_unstable();
        salvaged.newer.dedup();
        salvaged.later = self.count;
        let between = self.newest.checked_sub(salvaged.point.transactions);
        if salvaged.is_sequence && self.numbered == self.count && self.count > 0 {
            salvaged.missing = between.map(|between| between.saturating_sub(self.count));
        }
        Ok(())
    }
}

/// Reads a page of the database file as SQLite wrote it. Returns whether the file has the page.
fn read_home(database: &dyn DatabaseFile, page_number: u32, page: &mut [u8]) -> Result<bool, LogError> {
    let offset = u64::from(page_number.saturating_sub(1)) * page.len() as u64;
    let read = database.read(page, offset)?;
    if let Some(header) = page.first_chunk_mut::<HEADER_BYTES>().filter(|_| page_number == 1) {
        guard::lift(header);
    }
    Ok(read == page.len())
}

/// Returns an error of the kind `Corrupt`, which is the damage where the readable part of the log ends. Fails with an
/// error of any other kind, because such an error prevents all reading of the log.
pub(crate) fn damage_of(error: LogError) -> Result<LogError, LogError> {
    if error.kind() == ErrorKind::Corrupt { Ok(error) } else { Err(error) }
}

// Page images of the transactions after the damage. A record may depend on an image that is lost.

/// The newest images of pages, from records after the damage.
pub(crate) struct Images {
    page_bytes: usize,
    known: FxHashMap<u32, Box<[u8]>>,
    /// The pages of the transaction being read, in the order of their first records.
    order: Vec<u32>,
}

impl Images {
    pub(crate) fn new(page_bytes: u32) -> Self {
        Self { page_bytes: page_bytes as usize, known: FxHashMap::default(), order: Vec::new() }
    }

    /// Drops all images, because the lost transactions may have changed the pages.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.order.clear();
    }

    /// Applies a record to the image of its page, if there is an image. `record` begins with the record's header.
    ///
    /// # Errors
    /// `Short`, `Damaged`. If the record does not apply, drops the page's image.
    pub(crate) fn lay(&mut self, record: &[u8]) -> Result<(), FormatError> {
        let short = FormatError::Short { what: "a log record" };
        let (head, payload) = record.split_at_checked(RECORD_HEADER_BYTES as usize).ok_or(short)?;
        let header = RecordHeader::decode(head.try_into().map_err(|_| short)?)?;
        self.note(header.page_number);
        if header.base == Base::Zeros {
            let zeros = vec![0; self.page_bytes].into_boxed_slice();
            self.known.insert(header.page_number, zeros);
        }
        let Some(page) = self.known.get_mut(&header.page_number) else { return Ok(()) };
        let laid = header.apply(page, payload);
        if laid.is_err() {
            self.known.remove(&header.page_number);
        }
        laid
    }

    /// Stores the image of a page that the log holds whole.
    pub(crate) fn put(&mut self, page_number: u32, page: &[u8]) {
        self.note(page_number);
        self.known.insert(page_number, page.into());
    }

    fn note(&mut self, page_number: u32) {
        if !self.order.contains(&page_number) {
            self.order.push(page_number);
        }
    }

    /// Returns the pages of the transaction that has been read, and begins the next one.
    pub(crate) fn end_transaction(&mut self) -> Vec<LaterPage> {
        let order = std::mem::take(&mut self.order);
        let page = |page_number| LaterPage { page_number, image: self.known.get(&page_number).cloned() };
        order.into_iter().map(page).collect()
    }
}

// Writes the salvaged database into a new file.

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// The database file, and over it the pages that the log holds as of the last transaction before the damage.
    BeforeDamage,
    /// Only the database file, without the guard. The file is what the last checkpoint wrote, if that checkpoint was
    /// completed.
    FileAlone,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Size of the database in pages.
    pub db_pages: u32,
    /// Number of pages that came from the log.
    pub from_log: usize,
    /// The pages that neither the log nor the database file has, and that were written as zeros.
    pub absent: Vec<u32>,
}

/// Creates the file that the database is written to. Only its owner may read it.
///
/// # Errors
/// `Io`, also if a file of this name exists already.
pub fn create(out: &Path) -> Result<File, LogError> {
    let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(out);
    opened.map_err(|error| LogError::io("create", out, &error))
}

/// Copies only the database file, without the guard, into a file that [`create`] has made. A caller uses this if the log
/// cannot be read at all. Returns the size in pages. The contents are durable on return, but not the file's name.
///
/// # Errors
/// `Unexpected` if the database file does not say how large its pages are; errors of reading the file, and of writing.
pub fn write_file_alone(database: &dyn DatabaseFile, (file, out): (&File, &Path)) -> Result<u32, LogError> {
    let mut header = [0; HEADER_BYTES];
    let read = database.read(&mut header, 0)?;
    let (DatabaseHeader::Guarded { page_bytes, .. } | DatabaseHeader::Plain { page_bytes, .. }) =
        guard::inspect(header.get(..read).unwrap_or_default())
    else {
        return Err(LogError::Unexpected("a database file whose header is damaged, too"));
    };
    let failed = |error: std::io::Error| LogError::io("write", out, &error);
    let mut page = vec![0; page_bytes as usize];
    let db_pages = u32::try_from(database.size()? / u64::from(page_bytes)).unwrap_or(u32::MAX);
    for page_number in 1..=db_pages {
        read_home(database, page_number, &mut page)?;
        let offset = u64::from(page_number - 1) * u64::from(page_bytes);
        file.write_all_at(&page, offset).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(db_pages)
}

impl Salvaged {
    /// Writes the database into a file that [`create`] has made, and replaces what that file holds. The contents are
    /// durable on return, but not the file's name.
    ///
    /// # Errors
    /// `Unexpected` if most pages are in neither the log nor the database file; errors of reading the pages, and of writing.
    pub fn write(
        &mut self,
        database: &dyn DatabaseFile,
        (file, out): (&File, &Path),
        contents: Contents,
    ) -> Result<Written, LogError> {
        let failed = |error: std::io::Error| LogError::io("write", out, &error);
        let page_bytes = u64::from(self.page_bytes);
        let in_file = u32::try_from(database.size()? / page_bytes).unwrap_or(u32::MAX);
        let (db_pages, own) = match contents {
            Contents::BeforeDamage if self.point.db_pages > 0 => (self.point.db_pages, self.pages.clone()),
            Contents::BeforeDamage => {
                (in_file.max(self.pages.last().copied().unwrap_or(0)), self.pages.clone())
            }
            Contents::FileAlone => (in_file, Vec::new()),
        };
        let own: HashSet<u32> = own.into_iter().filter(|page| *page <= db_pages).collect();
        file.set_len(0).map_err(failed)?;
        let mut page = vec![0; self.page_bytes as usize];
        let mut absent = Vec::new();
        for page_number in 1..=db_pages {
            if own.contains(&page_number) {
                self.source.read(database, page_number, &mut page)?;
            } else if page_number > in_file {
                // The log says that the database has this page, but the page exists nowhere. So the log is damaged.
                // Leave a hole in the file.
                absent.push(page_number);
                if absent.len() > MOST_ABSENT {
                    let what = "the size that the log says the database has, with most of its pages nowhere";
                    return Err(LogError::Unexpected(what));
                }
                continue;
            } else {
                read_home(database, page_number, &mut page)?;
            }
            file.write_all_at(&page, u64::from(page_number - 1) * page_bytes).map_err(failed)?;
        }
        file.set_len(u64::from(db_pages) * page_bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(Written { db_pages, from_log: own.len(), absent })
    }
}

impl Salvaged {
    /// Rolls the written database back from the rollback journal in the log, if that journal is hot. Returns how many pages
    /// it rolled back. The journal stays. The pages are durable on return.
    ///
    /// # Errors
    /// `Corrupt` for a damaged journal. The written database may then have been rolled back in part.
    pub fn roll_back(&self, (file, out): (&File, &Path), id: LogId) -> Result<usize, LogError> {
        let Some(journal) = self.journal.clone() else { return Ok(0) };
        let file = file.try_clone().map_err(|error| LogError::io("open", out, &error))?;
        let file = OpenDatabase::new(file, out);
        let played = play_back(&Kept(journal), &file, id);
        // `play_back` has put the guard of the log on page 1, so lift it.
        let mut header = [0; HEADER_BYTES];
        if file.read(&mut header, 0)? == HEADER_BYTES {
            guard::lift(&mut header);
            file.write(&header, 0)?;
        }
        file.sync()?;
        Ok(played?.pages)
    }
}

/// A rollback journal that is only read: writes fail, and a deletion does nothing.
struct Kept(Arc<dyn RollbackJournal>);

const CHANGED: LogError = LogError::Unexpected("a change of a rollback journal that is only read");

impl RollbackJournal for Kept {
    fn size(&self) -> Result<Option<u64>, LogError> {
        self.0.size()
    }

    fn create(&self) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        self.0.read(buf, offset)
    }

    fn write(&self, _bytes: &[u8], _offset: u64) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn truncate(&self, _bytes: u64) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn sync(&self) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn delete(&self) -> Result<(), LogError> {
        // The caller has played the journal back into a copy. The original may still need the journal.
        Ok(())
    }
}

/// The most pages that may be in neither the log nor the database file. If more pages are missing, salvage fails,
/// because the log is not plausible.
const MOST_ABSENT: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(page_number: u32, base: Base, ranges: u16, payload: &[u8]) -> Vec<u8> {
        let record_bytes = RECORD_HEADER_BYTES + payload.len() as u32;
        let header = RecordHeader { record_bytes, frame: 1, page_number, ranges, base };
        [&header.encode()[..], payload].concat()
    }

    #[test]
    fn a_change_of_a_page_that_is_lost_makes_no_page() {
        let mut images = Images::new(512);
        images.lay(&record(3, Base::Previous, 1, &[4, 0, 0, 0, 7])).unwrap();
        images.lay(&record(2, Base::Zeros, 1, &[4, 0, 0, 0, 7])).unwrap();
        let pages = images.end_transaction();
        assert_eq!((pages[0].page_number, &pages[0].image), (3, &None));
        assert_eq!(pages[1].image.as_ref().unwrap().iter().filter(|byte| **byte == 7).count(), 1);
        images.lay(&record(2, Base::Previous, 1, &[5, 0, 0, 0, 8])).unwrap();
        let image = images.end_transaction().remove(0).image.unwrap();
        assert_eq!(image.iter().copied().filter(|byte| *byte != 0).collect::<Vec<_>>(), [7, 8]);
        images.clear();
        images.lay(&record(2, Base::Previous, 1, &[5, 0, 0, 0, 8])).unwrap();
        assert_eq!(images.end_transaction()[0].image, None);
    }
}
