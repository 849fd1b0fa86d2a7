//! A state that broke the oracle: told in one line, kept, and run again.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use duralite_journal::DatabaseIdentity;
use duralite_logfmt::{nvwal, waldio};
use serde::{Deserialize, Serialize};

use crate::model::Contents;
use crate::oracle::{self, Depth};
use crate::setup::Setup;
use crate::stage::Stage;
use crate::transactions::Reference;
use crate::workload::Bounds;

/// What describes a kept state.
const DESCRIPTION: &str = "state.json";

/// A crash state that breaks the oracle.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The setup.
    pub setup: Setup,
    /// The run's seed.
    pub seed: u64,
    /// Number of the event before which the crash came.
    pub position: usize,
    /// What had been begun and acknowledged.
    pub bounds: Bounds,
    /// The state, with paths below the stage.
    pub contents: Contents,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, setup, seed, position, .. } = self;
        write!(
            f,
            "{} seed {seed} event {position} ({}, {}-byte pages): {what}",
            setup.engine, setup.settings, setup.page_bytes
        )
    }
}

#[derive(Serialize, Deserialize)]
struct Description {
    what: String,
    setup: Setup,
    seed: u64,
    position: usize,
    acknowledged: u32,
    begun: u32,
}

impl Violation {
    /// Keeps the state below a directory; returns where.
    ///
    /// # Errors
    /// What the file system says.
    pub fn keep(&self, below: &Path) -> Result<PathBuf> {
        let dir = below.join(format!("{}-{}-{}", self.setup.engine, self.seed, self.position));
        let _ = fs::remove_dir_all(&dir);
        for (path, content) in &self.contents {
            let Some(content) = content else { continue };
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&dir))?;
            fs::write(&path, content)?;
        }
        let description = Description {
            what: self.what.clone(),
            setup: self.setup.clone(),
            seed: self.seed,
            position: self.position,
            acknowledged: self.bounds.acknowledged,
            begun: self.bounds.begun,
        };
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(DESCRIPTION), serde_json::to_string_pretty(&description)?)?;
        Ok(dir)
    }
}

/// Recovers a kept state again. `Ok(Err)` says what is still wrong with it.
///
/// # Errors
/// When the state cannot be read.
pub fn replay(dir: &Path) -> Result<Result<u32, String>> {
    let text = fs::read_to_string(dir.join(DESCRIPTION))
        .with_context(|| format!("{} holds no kept state", dir.display()))?;
    let Description { setup, seed, acknowledged, begun, .. } = serde_json::from_str(&text)?;
    crate::tap::register()?;
    let stage = Stage::new()?;
    let mut contents = Contents::new();
    for (from, to) in [(dir.join("home"), stage.home()), (dir.join("pool"), stage.pool())] {
        let Ok(entries) = fs::read_dir(from) else { continue };
        for entry in entries {
            let entry = entry?;
            contents.push((to.join(entry.file_name()), Some(fs::read(entry.path())?)));
        }
    }
    stage.set(&contents)?;
    for (path, _) in &contents {
        if path.parent() == Some(&stage.pool()) {
            give_to(path, &stage.database())?;
        }
    }
    let reference = Reference::new(seed, begun + 2)?;
    Ok(oracle::check(&stage, &setup, &reference, Bounds { acknowledged, begun }, Depth::UseOn))
}

/// Makes a log name another file as its database: the copy has another inode.
fn give_to(log: &Path, database: &Path) -> Result<()> {
    let identity = DatabaseIdentity::of(database)?;
    let bytes = fs::read(log)?;
    let file = fs::OpenOptions::new().write(true).open(log)?;
    if let Ok(mut superblock) = waldio::Superblock::decode(&bytes) {
        (superblock.db_inode, superblock.db_birth_ns) = (identity.inode, identity.birth_ns);
        file.write_all_at(&superblock.encode(), 0)?;
    } else if let Ok(mut superblock) = nvwal::Superblock::decode(&bytes) {
        (superblock.db_inode, superblock.db_birth_ns) = (identity.inode, identity.birth_ns);
        file.write_all_at(&superblock.encode(), 0)?;
    }
    Ok(())
}
