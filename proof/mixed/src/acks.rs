//! The file of acknowledgements.
//!
//! A record is 24 bytes, appended by one write after `COMMIT` has returned. Such a write is in the page cache entirely or not
//! at all, whenever its process is killed, and the file is longer only once the bytes are there.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const RECORD: usize = 24;
/// Records that are read at once.
const BATCH: usize = 4096;

/// Who has committed: a writer, in one of the two databases.
pub(crate) type Place = (usize, i64);

/// Where a process acknowledges, and reads what all have acknowledged.
pub(crate) struct Acks {
    file: File,
    read: u64,
    newest: HashMap<Place, i64>,
}

impl Acks {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).append(true).create(true).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, read: 0, newest: HashMap::new() })
    }

    /// Acknowledges commit `seq` of a writer.
    pub(crate) fn record(&mut self, (database, writer): Place, seq: i64) -> Result<()> {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&(database as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&writer.to_le_bytes());
        bytes[16..].copy_from_slice(&seq.to_le_bytes());
        Ok(self.file.write_all(&bytes)?)
    }

    /// The newest commit of each writer that was acknowledged before the call.
    pub(crate) fn refresh(&mut self) -> Result<&HashMap<Place, i64>> {
        let mut buffer = vec![0; RECORD * BATCH];
        loop {
            let got = self.file.read_at(&mut buffer, self.read)? / RECORD * RECORD;
            if got == 0 {
                return Ok(&self.newest);
            }
            self.read += got as u64;
            for record in buffer[..got].chunks_exact(RECORD) {
                let word =
                    |at: usize| -> Result<i64> { Ok(i64::from_le_bytes(record[at..at + 8].try_into()?)) };
                let newest = self.newest.entry((usize::try_from(word(0)?)?, word(8)?)).or_default();
                *newest = word(16)?.max(*newest);
            }
        }
    }
}
