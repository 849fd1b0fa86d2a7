//! Writes and reads long values page by page.

use std::io::{self, Read};
use std::sync::Arc;

use super::Transaction;
use super::change::OBJECT_OVERHEAD;
use crate::admission::Room;
use crate::error::{Error, VALUE_LIMIT};
use crate::format::{LEAF_CELL_HEAD, PAGE_HEADER_BYTES, PageId, Value, leaf_cell, leaf_value};
use crate::locks::Mode;
use crate::pager::Logged;
use crate::table::Table;
use crate::tree::{Chain, ChainPage, add_to_chain, chain_pages, chain_piece, end_chain, inline_limit};
use crate::value_reader::ValueReader;

/// The number of pages for which a transaction reserves room in the log at a time. Before the next reservation, the
/// store may write the earlier pages home and discard their log objects. So the log need not have room for all pages of
/// a long value at once.
const PAGES_AHEAD: u64 = 16;

/// A reader of a value, which fails once its transaction has ended or failed.
struct InTransaction<'t, R> {
    tx: &'t Transaction,
    value: R,
}

impl<R: Read> Read for InTransaction<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tx.check().map_err(io::Error::other)?;
        self.value.read(buffer)
    }
}

/// Fills a buffer with up to `most` bytes.
fn read_full(from: &mut dyn Read, buffer: &mut Vec<u8>, most: usize) -> Result<(), Error> {
    buffer.clear();
    let read = from.take(most as u64).read_to_end(buffer);
    read.map(|_| ())
        .map_err(|source| Error::Io { what: "reading the value that is to be stored".to_owned(), source })
}

impl Transaction {
    /// Takes a shared lock on a row, and returns the row's value as a reader, which reads the value piece by piece. At
    /// most one page of the value is in memory.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put_stream(&table, b"picture", &mut std::io::repeat(7).take(1 << 20))?;
    /// # use std::io::Read;
    /// if let Some(mut value) = tx.get_stream(&table, b"picture")? {
    ///     assert_eq!(std::io::copy(&mut value, &mut std::io::sink())?, 1 << 20);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get). Errors of later reads are the source of an [`io::Error`].
    pub fn get_stream(&self, table: &Table, key: &[u8]) -> Result<Option<ValueReader<'_>>, Error> {
        let Some(cell) = self.cell(table, key, Mode::Shared)? else { return Ok(None) };
        Ok(Some(match leaf_value(&cell).map_err(|_| Error::corrupt("a row"))? {
            Value::Inline(value) => {
                let (len, value) = (value.len() as u64, io::Cursor::new(value.to_vec()));
                ValueReader::new(len, InTransaction { tx: self, value })
            }
            Value::Long { bytes, first } => {
                let value = Chain::new(&self.engine().pager, first, bytes, 0);
                ValueReader::new(bytes, InTransaction { tx: self, value })
            }
        }))
    }

    /// Sets a row's value to everything that `value` yields, like [`put`](Self::put). Returns the value's length in
    /// bytes. At most two pages of the value are in memory. A value of any size up to [`VALUE_LIMIT`] takes about 1,200
    /// bytes of [`log_bytes`](method@crate::Options::log_bytes) for each page. A value of 64 MiB in pages of 8 KiB
    /// takes 12 MiB.
    ///
    /// See [`get_stream`](Self::get_stream) for an example.
    ///
    /// # Errors
    /// As [`put`](Self::put), and [`Error::Io`] if `value` fails. The transaction can then only be rolled back,
    /// completely or to a savepoint. [`Error::Full`] names the `log_bytes` that the part of the value read so far would
    /// need.
    pub fn put_stream(&mut self, table: &Table, key: &[u8], value: &mut impl Read) -> Result<u64, Error> {
        self.check_key(table, key)?;
        self.lock_row(table, key, Mode::Exclusive)?;
        let most = inline_limit(self.page_bytes()).saturating_sub(LEAF_CELL_HEAD + key.len());
        self.changing(|tx| {
            // Reads one byte more than fits into a cell, which shows whether the value is a long one.
            let mut begin = Vec::new();
            read_full(value, &mut begin, most + 1)?;
            let (cell, bytes) = if begin.len() <= most {
                (leaf_cell(key, Value::Inline(&begin)), begin.len() as u64)
            } else {
                let (bytes, first) = tx.write_long(&mut begin.chain(value))?;
                (leaf_cell(key, Value::Long { bytes, first }), bytes)
            };
            tx.put_cell(table.root(), key, &cell)?;
            Ok(bytes)
        })
    }

    /// Writes a long value again, if one of its pages has the number `limit` or a higher one.
    pub(crate) fn rewrite_long(&mut self, table: &Table, key: &[u8], limit: PageId) -> Result<(), Error> {
        let Some(cell) = self.cell(table, key, Mode::Exclusive)? else { return Ok(()) };
        let Value::Long { first, bytes } = leaf_value(&cell).map_err(|_| Error::corrupt("a row"))? else {
            return Ok(());
        };
        let running = Arc::clone(&self.running);
        let pager = &running.engine.pager;
        let (mut next, mut is_before) = (first, true);
        while next != 0 && is_before {
            is_before = next < limit;
            next = chain_piece(pager, next)?.1;
        }
        if is_before {
            return Ok(());
        }
        let mut old = Chain::new(pager, first, bytes, 0);
        self.changing(|tx| {
            let (bytes, first) = tx.write_long(&mut old)?;
            tx.put_cell(table.root(), key, &leaf_cell(key, Value::Long { bytes, first }))
        })
    }

    /// Checks that the log is large enough for a value of this many bytes, before any of it is written.
    pub(super) fn check_long(&self, bytes: u64) -> Result<(), Error> {
        let log = &self.engine().pager.log;
        let pages = chain_pages(self.page_bytes(), bytes);
        let ahead = Ahead::room(self.page_bytes());
        let undo = (pages + 4) * OBJECT_OVERHEAD * 2 + log.space().force_bytes;
        let room = Room { bytes: undo + ahead.bytes, objects: pages + 4 + ahead.objects };
        self.engine().admission.check(room, self.kept.room)
    }

    /// Writes a long value page by page. Returns the value's length and its first page.
    pub(super) fn write_long(&mut self, value: &mut dyn Read) -> Result<(u64, PageId), Error> {
        self.enter()?;
        let mut ahead = Ahead::default();
        let written = self.write_pages(value, &mut ahead);
        ahead.give_back(self);
        written
    }

    fn write_pages(&mut self, value: &mut dyn Read, ahead: &mut Ahead) -> Result<(u64, PageId), Error> {
        let most = self.page_bytes() - PAGE_HEADER_BYTES;
        let (mut piece, mut after) = (Vec::new(), Vec::new());
        read_full(value, &mut piece, most)?;
        if piece.is_empty() {
            return Ok((0, 0));
        }
        let first = self.chain_step(ahead, None)?;
        let (mut id, mut bytes) = (first, piece.len() as u64);
        loop {
            read_full(value, &mut after, most)?;
            let page = ChainPage { id, piece: &piece };
            if after.is_empty() {
                end_chain(&self.engine().pager, page)?;
                return Ok((bytes, first));
            }
            bytes += after.len() as u64;
            if bytes > VALUE_LIMIT {
                return Err(Error::RowTooLong { len: bytes });
            }
            id = self.chain_step(ahead, Some(page))?;
            std::mem::swap(&mut piece, &mut after);
        }
    }

    /// Allocates the next page of a value, and writes the page before it.
    fn chain_step(&mut self, ahead: &mut Ahead, before: Option<ChainPage<'_>>) -> Result<PageId, Error> {
        ahead.next(self)?;
        // Locks this mutex only after waiting for room. The keeper may need the mutex to free that room, if it has to
        // move this transaction's undo forward in the log.
        let undoable = Arc::clone(self.undoable.get_or_insert_default());
        let busy = undoable.busy.lock();
        let engine = self.engine();
        let added = add_to_chain(&engine.pager, &engine.space, self.author(), before);
        let (id, logged, undo) = added?;
        // To undo this step, a rollback only frees the page, without logging an image. So the undo needs less room than
        // the step.
        self.add_step(Logged { bytes: OBJECT_OVERHEAD, ..logged }, undo);
        drop(busy);
        Ok(id)
    }
}

/// Room in the log that is reserved for the next pages of a value.
#[derive(Debug, Default)]
struct Ahead {
    room: Room,
    pages: u64,
}

impl Ahead {
    /// Returns the room that is needed for [`PAGES_AHEAD`] pages, and for one more page, which ends the chain.
    fn room(page_bytes: usize) -> Room {
        let pages = PAGES_AHEAD + 1;
        Room { bytes: pages * (page_bytes as u64 + 2 * OBJECT_OVERHEAD), objects: pages * 2 }
    }

    /// Ensures that there is room for one more page.
    fn next(&mut self, tx: &Transaction) -> Result<(), Error> {
        if let Some(left) = self.pages.checked_sub(1) {
            self.pages = left;
            return Ok(());
        }
        self.give_back(tx);
        let room = Self::room(tx.page_bytes());
        let engine = tx.engine();
        engine.admission.keep(room, tx.kept.room, engine.tuning.lock_timeout)?;
        (self.room, self.pages) = (room, PAGES_AHEAD - 1);
        Ok(())
    }

    fn give_back(&mut self, tx: &Transaction) {
        tx.engine().admission.give_back(std::mem::take(&mut self.room));
        self.pages = 0;
    }
}
