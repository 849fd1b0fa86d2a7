//! Salvages the contents of a damaged log: the database as of the last transaction before the damage, and, separately,
//! the intact transactions after it. Writes nothing to the log, its region, or the database.
//!
//! Recovery refuses a log that is damaged before its end, because acknowledged transactions are missing from it. This
//! module reads what is still readable; each engine finds its own transactions (`salvage` of its descriptor).

mod later;
mod output;

use std::sync::Arc;

use duralite_format::guard::{self, HEADER_BYTES};
use rustc_hash::FxHashMap;

use crate::engine::Engine;
use crate::engine::home::DatabaseFile;
use crate::engine::rollback::RollbackJournal;
use crate::{ErrorKind, LogError};
pub(crate) use later::Images;
pub use output::{Contents, Written, create, write_file_alone};

/// Where a log is damaged.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The error that recovery reports.
    pub error: LogError,
    /// Offset in the log's file of the first byte that is not part of an intact transaction.
    pub from: u64,
    /// Offset of the first intact transaction after the damage; `None` where there is none, or where the log's
    /// transactions are not in byte order.
    pub until: Option<u64>,
}

/// The last transaction before the damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// How many transactions the log holds up to this one.
    pub transactions: u64,
    /// The log's position after it; `None` where the log does not say.
    pub position: Option<u64>,
    /// When the transaction was sealed, in milliseconds since 1970; 0 if the log does not say.
    pub time_ms: u64,
    /// Size of the database in pages after it; 0 if that is the size of the database file.
    pub db_pages: u32,
    /// The transaction's commit frame; 0 where the log does not number frames.
    pub last_frame: u32,
}

/// A page that a later transaction wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterPage {
    /// The page's number.
    pub page_number: u32,
    /// The page after the transaction; `None` where the log has only a difference from an image that is lost.
    pub image: Option<Box<[u8]>>,
}

/// An intact transaction after the damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterTransaction {
    /// The transaction's number, counted as [`Point::transactions`]; `None` where the log does not say (`waldio`,
    /// layout `embedded`).
    pub number: Option<u64>,
    /// The log's position after it; `None` where the log does not say.
    pub position: Option<u64>,
    /// When the transaction was sealed, in milliseconds since 1970; 0 if the log does not say.
    pub time_ms: u64,
    /// Size of the database in pages after it; 0 if the log does not say.
    pub db_pages: u32,
    /// The transaction's first frame; 0 where the log does not number frames.
    pub first_frame: u32,
    /// Offset of the transaction in the log's file, or in its region.
    pub offset: u64,
    /// The transaction's pages, each once.
    pub pages: Vec<LaterPage>,
}

/// The callback that is given the later transactions, in order.
pub type Later<'a> = &'a mut dyn FnMut(&LaterTransaction) -> Result<(), LogError>;

/// Pages as of the last transaction before the damage.
pub trait Source {
    /// Reads a page that the log holds.
    ///
    /// # Errors
    /// `Corrupt`; of reading the database file.
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
    /// Pages whose version in the database file is newer than `point`, as far as can be told, and of which the log has
    /// no older image.
    pub newer: Vec<u32>,
    /// Pages known only from the database file, whose version there may be older than `point` (`ppl`).
    pub older: Vec<u32>,
    /// The number of a later transaction of which at least a part is in the database file already.
    pub checkpointed: Option<u64>,
    /// How many transactions after the damage are intact.
    pub later: u64,
    /// Whether the log is one sequence of transactions. If not (`ppl`), a later transaction may have pages of which
    /// nothing is known.
    pub is_sequence: bool,
    /// How many transactions between `point` and the last intact one are lost, as far as the log numbers them.
    pub missing: Option<u64>,
    source: Box<dyn Source>,
    journal: Option<Arc<dyn RollbackJournal>>,
}

/// Reads pages from the frames of an engine.
struct Frames {
    engine: Box<dyn Engine>,
    newest: FxHashMap<u32, u32>,
}

/// Turns a missing page into an error.
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
    /// The transactions that an engine has applied before the damage.
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

/// Reads a log with `read`, and also determines which pages of the database file are newer than the damage, and how
/// many transactions are missing.
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

/// What is known of all later transactions together.
#[derive(Default)]
struct Seen {
    count: u64,
    numbered: u64,
    newest: u64,
    /// Pages that the database file has as a later transaction left them, with that transaction's number.
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

/// Returns the error that marks the end of the readable part, or fails if the log cannot be read at all.
pub(crate) fn damage_of(error: LogError) -> Result<LogError, LogError> {
    if error.kind() == ErrorKind::Corrupt { Ok(error) } else { Err(error) }
}
