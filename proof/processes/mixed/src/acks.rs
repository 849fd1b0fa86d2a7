//! The file of acknowledgements.
//!
//! A process appends a record of 24 bytes with one write after `COMMIT` has returned. Whenever the process is killed, such a
//! write is in the page cache either completely or not at all. The file grows only after the bytes are there.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const RECORD: usize = 24;
/// Records read at a time.
const BATCH: usize = 4096;

/// A writer, in one of the two databases.
pub(crate) type Place = (usize, i64);

/// Appends the acknowledgements of a process, and reads those of all processes.
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

    /// Records that commit `seq` of a writer is acknowledged.
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
