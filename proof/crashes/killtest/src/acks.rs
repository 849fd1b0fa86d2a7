//! The file of acknowledgements.
//!
//! A record is 16 bytes, appended by one write after `COMMIT` has returned. Whenever the process is killed,
//! the page cache has all of such a write or nothing of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

pub(crate) const RECORD: u64 = 16;
/// Records read at a time.
const BATCH: usize = 4096;

/// The end of the file to which a process appends its acknowledgements.
pub(crate) struct Acks(File);

impl Acks {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().append(true).create(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot open {}", path.display()))?))
    }

    /// Acknowledges transaction `n`, made by process `id`.
    pub(crate) fn record(&mut self, n: i64, id: u64) -> Result<()> {
        let mut bytes = [0; RECORD as usize];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes[8..].copy_from_slice(&id.to_le_bytes());
        Ok(self.0.write_all(&bytes)?)
    }
}

/// The acknowledgements read so far.
pub(crate) struct Acknowledged {
    file: File,
    read: u64,
    owners: HashMap<i64, u64>,
    newest: i64,
}

impl Acknowledged {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).append(true).create(true).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, read: 0, owners: HashMap::new(), newest: 0 })
    }

    /// Reads the new acknowledgements. Returns the lowest transaction number among them.
    pub(crate) fn refresh(&mut self) -> Result<Option<i64>> {
        let mut lowest = None;
        let mut buffer = vec![0; RECORD as usize * BATCH];
        loop {
            let got = self.file.read_at(&mut buffer, self.read)? as u64 / RECORD * RECORD;
            if got == 0 {
                return Ok(lowest);
            }
            self.read += got;
            for record in buffer[..got as usize].chunks_exact(RECORD as usize) {
                let (n, id) = record.split_at(8);
                let n = i64::from_le_bytes(n.try_into()?);
                let id = u64::from_le_bytes(id.try_into()?);
                if let Some(other) = self.owners.insert(n, id).filter(|other| *other != id) {
                    bail!("transaction {n} was acknowledged to process {other} and to process {id}");
                }
                self.newest = self.newest.max(n);
                lowest = Some(lowest.map_or(n, |low: i64| low.min(n)));
            }
        }
    }

    pub(crate) fn newest(&self) -> i64 {
        self.newest
    }

    /// The process to which transaction `n` was acknowledged, if it was.
    pub(crate) fn owner(&self, n: i64) -> Option<u64> {
        self.owners.get(&n).copied()
    }

    /// Forgets acknowledgements of transactions before `low`, if there are many.
    pub(crate) fn forget_before(&mut self, low: i64) {
        if self.owners.len() > 4 * BATCH {
            self.owners.retain(|n, _| *n >= low);
        }
    }
}
