//! A gate before the writes of group commits. While the gate is closed, every process that is about to write
//! a group waits.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use duralite_crashmodel::{OverBlock, Through};
use duralite_medium::MediumError;
use duralite_medium::block::{Block, Durability};
use duralite_wal::placement::{FileStep, Hook, Hooked, hook};

/// A gate. Its state is in a directory, so that processes can share it.
#[derive(Clone, Debug)]
pub struct Gate(PathBuf);

impl Gate {
    /// Returns the gate with its state in this directory. A new gate is open.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self(dir.to_path_buf())
    }

    /// Returns the directory with the gate's state.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Puts the gate before every log in this directory that is opened from now on.
    #[must_use]
    pub fn before(&self, logs: &Path) -> Hooked {
        hook(logs, Arc::new(self.clone()))
    }

    /// Closes the gate, so that no process writes a group from now on.
    pub fn close(&self) {
        let _ = std::fs::remove_file(self.file("reached"));
        std::fs::write(self.file("closed"), "").unwrap();
    }

    /// Opens the gate, so that waiting writers and all later writers continue.
    pub fn open(&self) {
        std::fs::remove_file(self.file("closed")).unwrap();
    }

    /// Returns the byte offsets in the log of the groups that have reached the gate since it was closed. If a
    /// leader stops, the next leader writes its group again. The result still has that group's offset only
    /// once.
    #[must_use]
    pub fn places(&self) -> BTreeSet<u64> {
        let text = std::fs::read_to_string(self.file("reached")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until a writer has reached the gate.
    pub fn until_reached(&self) {
        while self.places().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn pass(&self, at: u64) {
        let reached = self.file("reached");
        // Each line is written by one call, so the lines of several processes do not mix.
        let mut reached = OpenOptions::new().append(true).create(true).open(reached).unwrap();
        reached.write_all(format!("{at}\n").as_bytes()).unwrap();
        while self.file("closed").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Hook for Gate {
    fn step(&self, _step: FileStep, _log: &Path) -> io::Result<()> {
        Ok(())
    }

    fn block(&self, _log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        Ok(Arc::new(Through(Gated { below: block, gate: self.clone() })))
    }
}

#[derive(Debug)]
struct Gated {
    below: Arc<dyn Block>,
    gate: Gate,
}

impl OverBlock for Gated {
    fn below(&self) -> &dyn Block {
        self.below.as_ref()
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.gate.pass(at);
        self.below.write_durably(at, blocks, durability)
    }
}
