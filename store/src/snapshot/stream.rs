//! Reads long values through a snapshot, piece by piece.

use std::io::{self, Read};
use std::sync::Arc;

use super::{Snapshot, damaged};
use crate::error::Error;
use crate::format::{KEY_LIMIT, Value, leaf_value};
use crate::table::Table;
use crate::tree::Chain;
use crate::value_reader::ValueReader;
use crate::versions::Image;

impl Snapshot {
    /// Returns a row's value as a reader, which reads the value piece by piece. Later changes of the row do not affect
    /// the reader.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// # use std::io::Read;
    /// store.run(|tx| tx.put_stream(&table, b"picture", &mut std::io::repeat(7).take(1 << 20)))?;
    /// let snapshot = store.snapshot();
    /// let mut picture = snapshot.get_stream(&table, b"picture")?.ok_or("no picture")?;
    /// store.run(|tx| tx.delete(&table, b"picture"))?;
    /// assert_eq!(std::io::copy(&mut picture, &mut std::io::sink())?, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get). Errors of later reads are the source of an [`io::Error`](std::io::Error).
    pub fn get_stream(&self, table: &Table, key: &[u8]) -> Result<Option<ValueReader<'_>>, Error> {
        self.check(table)?;
        if key.len() > KEY_LIMIT {
            return Err(Error::KeyTooLong { len: key.len() });
        }
        open(self, table, key).map_err(|error| self.or_too_old(error))
    }
}

/// Opens a reader for the value of a row.
fn open<'s>(snapshot: &'s Snapshot, table: &Table, key: &[u8]) -> Result<Option<ValueReader<'s>>, Error> {
    let image = snapshot.image_in(table, key)?;
    let len = match &image {
        Image::Absent => return Ok(None),
        Image::Damaged => return Err(damaged()),
        Image::Copied(value) => value.len() as u64,
        Image::Cell(cell) => match leaf_value(cell).map_err(|_| damaged())? {
            Value::Inline(value) => {
                return Ok(Some(ValueReader::new(value.len() as u64, io::Cursor::new(value.to_vec()))));
            }
            Value::Long { bytes, .. } => bytes,
        },
    };
    let rest = rest_of(snapshot, &image, len, 0)?;
    let long = Long { snapshot, table: table.clone(), key: key.to_vec(), image, len, at: 0, rest };
    Ok(Some(ValueReader::new(len, long)))
}

/// Where the rest of a value is.
enum Rest<'s> {
    /// In pages. The pages keep the value as long as the row does not change.
    Pages(Chain<'s>),
    /// In memory, because its pages were freed.
    Copied(Arc<Vec<u8>>),
}

/// Returns where the rest of a long value is, from byte `at` on.
fn rest_of<'s>(snapshot: &'s Snapshot, image: &Image, len: u64, at: u64) -> Result<Rest<'s>, Error> {
    match image {
        Image::Copied(value) if value.len() as u64 == len => Ok(Rest::Copied(Arc::clone(value))),
        Image::Cell(cell) => match leaf_value(cell) {
            Ok(Value::Long { bytes, first }) if bytes == len => {
                Ok(Rest::Pages(Chain::new(&snapshot.engine().pager, first, bytes, at)))
            }
            _ => Err(damaged()),
        },
        _ => Err(damaged()),
    }
}

/// A long value that a program is reading.
struct Long<'s> {
    snapshot: &'s Snapshot,
    table: Table,
    key: Vec<u8>,
    /// The row as this snapshot showed it at the last check.
    image: Image,
    len: u64,
    /// The number of bytes of the value that have been read.
    at: u64,
    rest: Rest<'s>,
}

impl Long<'_> {
    /// Reads the next piece, if the current piece has been read completely.
    fn fill(&mut self) -> Result<(), Error> {
        while let Rest::Pages(chain) = &mut self.rest
            && chain.is_empty()
        {
            self.snapshot.check(&self.table)?;
            let filled = chain.fill();
            // The pages may have been freed during the read. Before that happens, the row's version changes. So compare
            // the version again, and if it has changed, continue with the new one.
            let now = self.snapshot.image_in(&self.table, &self.key)?;
            if now == self.image {
                return filled;
            }
            self.rest = rest_of(self.snapshot, &now, self.len, self.at)?;
            self.image = now;
        }
        Ok(())
    }
}

impl Read for Long<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill().map_err(|error| io::Error::other(self.snapshot.or_too_old(error)))?;
        let some = match &mut self.rest {
            Rest::Pages(chain) => chain.read_piece(buffer),
            Rest::Copied(value) => value.get(self.at as usize..).unwrap_or_default().read(buffer)?,
        };
        self.at += some as u64;
        Ok(some)
    }
}
