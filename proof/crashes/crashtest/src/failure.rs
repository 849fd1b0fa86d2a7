//! Describes in one line a state that the oracle rejects, and keeps the state for a replay.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use duralite_crashmodel::disk::Pages;
use duralite_logdisk::FileSystemKind;
use serde::{Deserialize, Serialize};

use crate::model::Contents;
use crate::setup::Setup;
use crate::workload::Bounds;

/// The file that describes a kept state.
const DESCRIPTION: &str = "state.json";
/// The file that holds the image of the disk. A kept state has this file if a power cut on a disk left the
/// state.
pub(crate) const DISK: &str = "disk.img";

/// A crash state that the oracle rejects.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The setup.
    pub setup: Setup,
    /// The run's seed.
    pub seed: u64,
    /// The crash came before the event with this number.
    pub position: usize,
    /// The last transaction begun before the crash, and the last one acknowledged before it.
    pub bounds: Bounds,
    /// The state, with paths relative to the stage's root directory.
    pub contents: Contents,
    /// The disk that the database is on, if it is on a disk of its own.
    pub disk: Option<(FileSystemKind, Pages)>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, setup, seed, position, .. } = self;
        write!(
            f,
            "{} seed {seed} event {position} ({}, {}, {}-byte pages): {what}",
            setup.engine, setup.settings, setup.journal_mode, setup.page_bytes
        )
    }
}

/// A kept state without its files.
#[derive(Serialize, Deserialize)]
pub(crate) struct Description {
    what: String,
    pub setup: Setup,
    pub seed: u64,
    position: usize,
    acknowledged: u32,
    pub begun: u32,
    file_system: Option<String>,
}

impl Description {
    /// Reads the description of a kept state.
    ///
    /// # Errors
    /// An error if the directory holds no kept state.
    pub fn read(dir: &Path) -> Result<Self> {
        let text = fs::read_to_string(dir.join(DESCRIPTION))
            .with_context(|| format!("{} holds no kept state", dir.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the file system of the state's disk, if the state has a disk.
    pub fn file_system(&self) -> Result<Option<FileSystemKind>> {
        let parse = |name: &String| name.parse().map_err(anyhow::Error::msg);
        self.file_system.as_ref().map(parse).transpose()
    }

    pub fn bounds(&self) -> Bounds {
        Bounds { acknowledged: self.acknowledged, begun: self.begun }
    }
}

impl Violation {
    /// Returns whether the violation has a state that can be kept and recovered again.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.disk.is_some() || !self.contents.is_empty()
    }

    /// Keeps the state in a directory below `below`, and returns that directory.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn keep(&self, below: &Path) -> Result<PathBuf> {
        let dir = below.join(format!("{}-{}-{}", self.setup.engine, self.seed, self.position));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        for (path, content) in &self.contents {
            let Some(content) = content else { continue };
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&dir))?;
            fs::write(&path, content)?;
        }
        if let Some((_, image)) = &self.disk {
            let mut bytes = vec![0; image.len() as usize];
            image.read(0, &mut bytes);
            fs::write(dir.join(DISK), bytes)?;
        }
        let description = Description {
            what: self.what.clone(),
            setup: self.setup.clone(),
            seed: self.seed,
            position: self.position,
            acknowledged: self.bounds.acknowledged,
            begun: self.bounds.begun,
            file_system: self.disk.as_ref().map(|(file_system, _)| file_system.name().to_owned()),
        };
        fs::write(dir.join(DESCRIPTION), serde_json::to_string_pretty(&description)?)?;
        Ok(dir)
    }
}
