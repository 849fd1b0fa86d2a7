//! What any log file says about itself, whichever engine wrote it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use duralite_logfmt::{FileIdentity, FormatError, LogId, nvwal, waldio};

use super::{disk, nvram};
use crate::JournalError;

/// What ties a log to its database.
pub(super) struct Head {
    pub(super) log_id: LogId,
    pub(super) db_inode: u64,
    pub(super) db_birth_ns: u64,
    path: Vec<u8>,
    /// The file that it was made in, where it is known.
    made_in: Option<FileIdentity>,
    kind: Kind,
}

enum Kind {
    Nvwal(nvwal::Superblock),
    Waldio,
}

impl Head {
    /// Reads and checks the superblock of an open file.
    pub(super) fn read(path: &Path, file: &File) -> Result<Self, JournalError> {
        let bytes = first_bytes(path, file, nvwal::SUPERBLOCK_BYTES)?;
        let format = |source| JournalError::Format { log: path.to_path_buf(), source };
        if bytes.starts_with(&waldio::MAGIC) {
            let superblock = waldio::Superblock::decode(&bytes).map_err(format)?;
            let waldio::Superblock { log_id, db_inode, db_birth_ns, path, file: made_in, .. } = superblock;
            return Ok(Self { log_id, db_inode, db_birth_ns, path, made_in, kind: Kind::Waldio });
        }
        let superblock = nvram::check(path, file, &bytes)?;
        Ok(Self {
            log_id: superblock.log_id,
            db_inode: superblock.db_inode,
            db_birth_ns: superblock.db_birth_ns,
            path: superblock.path.clone(),
            made_in: superblock.file,
            kind: Kind::Nvwal(superblock),
        })
    }

    /// Where the database was when the log was made, or the front of that path if it is very long.
    pub(super) fn database(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.path))
    }

    /// Whether an open file with this head is a copy of the log that was made.
    pub(super) fn is_copy(&self, file: &File) -> bool {
        self.made_in.is_some_and(|made_in| super::identity::of_log(file).is_some_and(|now| now != made_in))
    }

    /// The engine's name in settings.
    pub(super) fn engine(&self) -> &'static str {
        match self.kind {
            Kind::Nvwal(_) => "nvwal",
            Kind::Waldio => "waldio",
        }
    }

    /// Committed transactions in a log that nobody uses, or 1 if that cannot be told.
    pub(super) fn commits(&self, path: &Path, file: &File) -> u32 {
        match &self.kind {
            Kind::Nvwal(superblock) if nvram::is_spent(file, superblock) => 0,
            Kind::Nvwal(_) => nvram::open_read_only(path).map_or(1, |log| log.transactions()),
            Kind::Waldio => disk::open_disk_read_only(path).map_or(1, |log| log.transactions()),
        }
    }
}

/// The file's first bytes, up to `limit`.
pub(super) fn first_bytes(path: &Path, file: &File, limit: u64) -> Result<Vec<u8>, JournalError> {
    let meta = file.metadata().map_err(|error| JournalError::io("examine", path, &error))?;
    let mut bytes = vec![0; meta.len().min(limit) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| JournalError::io("read", path, &error))?;
    if bytes.is_empty() {
        let source = FormatError::Short { what: "the log file" };
        return Err(JournalError::Format { log: path.to_path_buf(), source });
    }
    Ok(bytes)
}
