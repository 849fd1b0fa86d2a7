//! Recovers crash states that a rig has kept for a replay.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use duralite_crashmodel::disk::Pages;
use duralite_format::{nvwal, ppl, scratchpad, waldio};
use duralite_logdisk::{FileSystemKind, ImageMounter};
use duralite_wal::DatabaseIdentity;

use crate::failure::{DISK, Description};
use crate::model::Contents;
use crate::oracle::{self, Depth};
use crate::power::{self, Judged};
use crate::stage::Stage;
use crate::transactions::Reference;

/// Recovers a kept state again. The inner error says what is still wrong with the state.
///
/// # Errors
/// This function cannot read the state, or cannot mount its disk on this machine.
pub fn replay(dir: &Path) -> Result<Result<(), String>> {
    let state = Description::read(dir)?;
    crate::hooks::register()?;
    let stage = Stage::new(state.setup.beside)?;
    let mut contents = Contents::new();
    for (from, to) in [(dir.join("home"), stage.home()), (dir.join("pool"), stage.log_dir())] {
        let Ok(entries) = fs::read_dir(from) else { continue };
        for entry in entries {
            let entry = entry?;
            contents.push((to.join(entry.file_name()), Some(fs::read(entry.path())?)));
        }
    }
    stage.set(&contents)?;
    // After recovery the check commits one more transaction. So the reference needs more transactions than
    // the recorded run had begun.
    let reference = Reference::new(&state.setup, state.seed, state.begun + 2)?;
    match state.file_system()? {
        Some(file_system) => replay_disk(dir, &state, file_system, &stage, &reference),
        None => {
            let is_log = |path: &Path| path.parent() == Some(&stage.log_dir()) && path != stage.database();
            let logs = contents.iter().filter(|(path, _)| is_log(path));
            for (log, _) in logs {
                give_to(log, &stage.database())?;
            }
            Ok(oracle::check(&stage, &state.setup, &reference, state.bounds(), Depth::UseOn).map(|_| ()))
        }
    }
}

fn replay_disk(
    dir: &Path,
    state: &Description,
    file_system: FileSystemKind,
    memory: &Stage,
    reference: &Reference,
) -> Result<Result<(), String>> {
    if let Some(why) = power::missing_rig(file_system) {
        bail!("this state is a disk, which cannot be mounted here: {why}");
    }
    let path = dir.join(DISK);
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut image = Pages::new(bytes.len() as u64);
    image.write(0, &bytes);
    let mut mounter = ImageMounter::new(file_system, "");
    let judged =
        power::recover(&mut mounter, &image, memory, &state.setup, reference, state.bounds(), Depth::UseOn)?;
    Ok(match judged {
        Judged::Sound => Ok(()),
        Judged::Refused => Err(power::REFUSED.into()),
        Judged::Broken(what) => Err(what),
    })
}

/// Writes the identity of the copied database into a log. The log still names the original, which has a
/// different inode.
fn give_to(log: &Path, database: &Path) -> Result<()> {
    let identity = DatabaseIdentity::of(database)?;
    let bytes = fs::read(log)?;
    let file = fs::OpenOptions::new().write(true).open(log)?;
    if let Ok(mut superblock) = waldio::Superblock::decode(&bytes) {
        (superblock.head.db_inode, superblock.head.db_birth_ns) = (identity.inode, identity.birth_ns);
        file.write_all_at(&superblock.encode(), 0)?;
    } else if let Ok(mut superblock) = nvwal::Superblock::decode(&bytes) {
        (superblock.head.db_inode, superblock.head.db_birth_ns) = (identity.inode, identity.birth_ns);
        file.write_all_at(&superblock.encode(), 0)?;
    } else if let Ok(mut superblock) = scratchpad::Superblock::decode(&bytes) {
        (superblock.head.db_inode, superblock.head.db_birth_ns) = (identity.inode, identity.birth_ns);
        file.write_all_at(&superblock.encode().0, 0)?;
    } else if let Ok(mut superblock) = ppl::Superblock::decode(&bytes) {
        (superblock.head.db_inode, superblock.head.db_birth_ns) = (identity.inode, identity.birth_ns);
        file.write_all_at(&superblock.encode(), 0)?;
    }
    Ok(())
}
