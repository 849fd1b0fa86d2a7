//! Finding the log that a database names.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use duralite_journal::{PoolConfig, PoolKind, offline};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::DatabaseHeader;

use crate::Target;

/// The pools that a directory may be.
fn pools(dir: &Path) -> [PoolConfig; 2] {
    let memory = if duralite_medium::is_dax(dir) { PoolKind::Dax } else { PoolKind::Emulate };
    [memory, PoolKind::Disk].map(|kind| PoolConfig { kind, dir: dir.to_path_buf() })
}

/// The places where a log may be: the one given, the one in the environment, shared memory,
/// and beside the database.
pub(crate) fn candidates(target: &Target) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = target.log_dir.iter().chain(&target.nvram_dir).cloned().collect();
    dirs.extend(std::env::var_os("DURALITE_LOG_DIR").map(PathBuf::from));
    dirs.extend(std::env::var_os("DURALITE_NVRAM").filter(|dir| dir != "emulate").map(PathBuf::from));
    dirs.push("/dev/shm".into());
    dirs.extend(target.path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf)));
    dirs.dedup();
    dirs
}

/// The pool that holds the log.
pub(crate) fn find(target: &Target, id: LogId) -> Option<PoolConfig> {
    candidates(target).iter().flat_map(|dir| pools(dir)).find(|pool| pool.contains(id))
}

/// Whether the path itself is a log file.
pub(crate) fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "nvwal" || end == "waldio")
}

/// The log file of a target: itself, or the one that the database names.
pub(crate) fn log_file(target: &Target) -> Result<PathBuf> {
    if is_log(&target.path) {
        return Ok(target.path.clone());
    }
    match offline::inspect(&target.path)? {
        DatabaseHeader::Guarded { log_id, .. } => match find(target, log_id) {
            Some(pool) => Ok(pool.log_path(log_id)),
            None => bail!(missing(target, log_id)),
        },
        header => bail!("{} has no log: it is {}", target.path.display(), describe(header)),
    }
}

/// What to say when a log is nowhere to be found.
pub(crate) fn missing(target: &Target, id: LogId) -> String {
    let dirs: Vec<String> = candidates(target).iter().map(|dir| dir.display().to_string()).collect();
    format!(
        "the newest commits of {} are in log {id}, which is in none of {}; name its directory with --log-dir",
        target.path.display(),
        dirs.join(", ")
    )
}

/// A database header in words.
pub(crate) fn describe(header: DatabaseHeader) -> &'static str {
    match header {
        DatabaseHeader::Empty => "an empty file",
        DatabaseHeader::NotSqlite => "not a SQLite database",
        DatabaseHeader::Plain { wal: true, .. } => "a plain SQLite database in WAL mode",
        DatabaseHeader::Plain { wal: false, .. } => "a plain SQLite database",
        DatabaseHeader::Guarded { .. } => "guarded: its newest commits are in a Duralite log",
        DatabaseHeader::Damaged => "guarded, but the guard is damaged",
    }
}
