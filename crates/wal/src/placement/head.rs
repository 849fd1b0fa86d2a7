//! The head of a log file, which every engine's logs have.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use duralite_format::{FileIdentity, FormatError, LogId};
use duralite_medium::process::OwnFile;

use crate::engine::descriptor::{Descriptor, HEAD_BYTES, LogHead, OpenFile};
use crate::shared::identity;
use crate::shared::log_file;
use crate::{DatabaseIdentity, LogError, engines};

/// What a log's superblock says about its database.
pub(super) struct Head {
    /// The engine that wrote it.
    pub(super) engine: &'static Descriptor,
    pub(super) log_id: LogId,
    pub(super) db_inode: u64,
    pub(super) db_birth_ns: u64,
    path: Vec<u8>,
    /// The file in which the log was made, where that is known.
    made_in: Option<FileIdentity>,
}

impl Head {
    /// Reads and checks the superblock of an open file.
    pub(super) fn read(path: &Path, file: &OwnFile) -> Result<Self, LogError> {
        let bytes = log_file::first_bytes(path, file, HEAD_BYTES)?;
        let unknown = || LogError::Format { log: path.to_path_buf(), source: FormatError::Magic };
        let engine = engines::by_magic(&bytes).ok_or_else(unknown)?;
        let LogHead { log_id, db_inode, db_birth_ns, path, made_in, .. } =
            (engine.inspect)(&OpenFile { path, file }, &bytes)?;
        Ok(Self { engine, log_id, db_inode, db_birth_ns, path, made_in })
    }

    /// The path of the database when the log was made, truncated if it is very long.
    pub(super) fn database(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.path))
    }

    /// Whether this was the path of the log's database when the log was made, or that path truncated if it is very
    /// long.
    pub(super) fn was_made_at(&self, path: &[u8]) -> bool {
        self.path == path
    }

    /// Whether the log was made for this very file.
    pub(super) fn is_of(&self, db: &DatabaseIdentity) -> bool {
        (self.db_inode, self.db_birth_ns) == (db.inode, db.birth_ns)
    }

    /// Whether an open file with this head is a copy, and not the file in which the log was made.
    pub(super) fn is_copy(&self, file: &File) -> bool {
        self.made_in.is_some_and(|made_in| identity::of_log(file).is_some_and(|now| now != made_in))
    }

    /// Releases what the log owns outside of its file, which is about to be deleted.
    pub(super) fn release(&self, path: &Path, file: &OwnFile) -> Result<(), LogError> {
        (self.engine.release)(&OpenFile { path, file })
    }

    /// Whether the log, which no process uses, holds no commits; `false` where that cannot be determined.
    pub(super) fn is_empty(&self, path: &Path, file: &OwnFile) -> bool {
        (self.engine.is_empty)(&OpenFile { path, file })
    }
}

/// Checks that an open log is the one that this database names, and that its owner may write the database.
pub(super) fn check_owner(
    path: &Path,
    file: &OwnFile,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
) -> Result<Head, LogError> {
    let head = Head::read(path, file)?;
    let meta = file.metadata().map_err(|error| LogError::io("examine", path, &error))?;
    if !db.trusts(&meta) {
        return Err(LogError::Owner(path.to_path_buf()));
    }
    if head.log_id != id || !(adopt || head.is_of(db)) {
        let (log, database) = (path.to_path_buf(), db.path.clone());
        return Err(LogError::Foreign { log, database, owner: head.database() });
    }
    Ok(head)
}
