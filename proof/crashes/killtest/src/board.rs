//! A file in which each process notes what it is doing. The file also tells the processes whether they should
//! end.
//!
//! A plain write to a file costs a microsecond, and survives the death of the process that made it.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::Phase;

const ENTRY: u64 = 64;
/// The index of the first process's entry. The entry before it says whether all processes should end.
const FIRST: u64 = 1;

/// The note of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// A count that grows with each action of the process, which shows that the process makes progress.
    pub(crate) steps: u64,
    pub(crate) phase: Phase,
}

/// The file, for the process that kills the others: it reads all entries, and tells the processes to end.
pub(crate) struct Board(File);

impl Board {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot make {}", path.display()))?))
    }

    pub(crate) fn entry(&self, slot: usize) -> Result<Entry> {
        let words = read_words::<3>(&self.0, (slot as u64 + FIRST) * ENTRY)?;
        Ok(Entry { id: words[0], steps: words[1], phase: Phase::numbered(words[2]) })
    }

    /// Asks all processes to end, or takes this request back.
    pub(crate) fn ask_to_end(&self, end: bool) -> Result<()> {
        Ok(self.0.write_all_at(&u64::from(end).to_le_bytes(), 0)?)
    }
}

fn read_words<const N: usize>(file: &File, at: u64) -> Result<[u64; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        // Bytes that were never written read as zeros.
        if file.read_at(&mut bytes, at + 8 * index as u64)? == 8 {
            *word = u64::from_le_bytes(bytes);
        }
    }
    Ok(words)
}

/// The entry that a process writes.
pub(crate) struct Note {
    file: File,
    /// The index of this process's entry. It is `None` in a forked child, which has no entry.
    slot: Option<u64>,
    id: u64,
    steps: Cell<u64>,
}

impl Note {
    pub(crate) fn open(path: &Path, slot: u64, id: u64) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, slot: Some(slot), id, steps: Cell::new(0) })
    }

    /// Stops writing the entry, because this process is a forked child of the process to which the entry
    /// belongs.
    pub(crate) fn be_silent(&mut self) {
        self.slot = None;
    }

    /// Notes what this process is doing now.
    pub(crate) fn phase(&self, phase: Phase) -> Result<()> {
        let Some(slot) = self.slot else { return Ok(()) };
        self.steps.set(self.steps.get() + 1);
        let mut bytes = [0; 24];
        for (part, word) in bytes.chunks_exact_mut(8).zip([self.id, self.steps.get(), phase as u64]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        Ok(self.file.write_all_at(&bytes, (slot + FIRST) * ENTRY)?)
    }

    /// Returns whether this process should end.
    pub(crate) fn should_end(&self) -> Result<bool> {
        Ok(read_words::<1>(&self.file, 0)?[0] != 0)
    }
}
