//! Opens, locks and changes `app.db-archive`. A process that has the file open holds an exclusive lock on it, which
//! keeps all other processes from changing it. So every process closes the file as soon as it has changed it.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use duralite_format::archive::{self as format, Owner, Record, Records};
use duralite_format::{FormatError, LogId};
use duralite_medium::process::OwnFile;
use duralite_medium::{ByteLock, lock_byte};

use super::{backlog_of, path_of};
use crate::hooks::{self, FileStep};
use crate::shared::log_file::{self, adjust, is_in_place};
use crate::{DatabaseIdentity, LogError};

/// The offset of the lock, far after the file's content.
const LOCK_AT: i64 = 1 << 40;
/// The number of attempts to take the lock, a millisecond apart. A process holds the lock only for a write and a sync.
const TRIES: u32 = 2000;
/// If the file is longer than this number of bytes, `ArchiveFile::begin` forgets the earlier logs, and the database
/// begins a new line of logs. The file becomes that long only if the database was closed very often without a sidecar.
const MOST_BYTES: usize = 256 << 10;

/// An open and locked `app.db-archive`.
pub struct ArchiveFile {
    database: PathBuf,
    path: PathBuf,
    file: OwnFile,
    /// The records in the file.
    pub records: Records,
    bytes: Vec<u8>,
}

impl ArchiveFile {
    /// Opens the file of a database; returns `None` if the database has none.
    ///
    /// # Errors
    /// `Busy` if another process keeps it locked; `Owner`, `Format`, `Io`, `Medium`.
    pub fn open(database: &DatabaseIdentity) -> Result<Option<Self>, LogError> {
        let path = path_of(&database.path);
        for _ in 0..TRIES {
            match path.symlink_metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(LogError::io("examine", &path, &error)),
                Ok(_) => {}
            }
            let file = log_file::open(&path, true, format::may_be)?;
            if !database.trusts(&file.metadata().map_err(|error| LogError::io("examine", &path, &error))?) {
                return Err(LogError::Owner(path));
            }
            if lock(&path, &file)? && is_in_place(&path, &file)? {
                return Self::read(database, path, file).map(Some);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(LogError::Busy { path, what: "another process keeps it locked" })
    }

    /// Reads the records in the file of a database; returns `None` if the database has none. A caller that does not
    /// change the file uses this function.
    ///
    /// # Errors
    /// `Format`, `Io`.
    pub fn look(database: &Path) -> Result<Option<Records>, LogError> {
        let path = path_of(database);
        match std::fs::read(&path) {
            Ok(bytes) => decode(&path, &bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("read", &path, &error)),
        }
    }

    fn read(database: &DatabaseIdentity, path: PathBuf, file: OwnFile) -> Result<Self, LogError> {
        let failed = |error: io::Error| LogError::io("read", &path, &error);
        let length = file.metadata().map_err(failed)?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let records = decode(&path, &bytes)?;
        Ok(Self { database: database.path.clone(), path, file, records, bytes })
    }

    /// Records the URL of the database's archive, and the generation and the token of this database in that archive.
    /// Makes the file if the database has none. The record is durable on return. If the file was made for this
    /// database, it keeps its other records.
    ///
    /// # Errors
    /// `Format` for a URL that the file cannot hold; as [`ArchiveFile::open`].
    pub fn enable(
        database: &DatabaseIdentity,
        url: &str,
        generation: u64,
        token: u128,
    ) -> Result<(), LogError> {
        let &DatabaseIdentity { inode, birth_ns, .. } = database;
        let owner = Owner { url: url.to_owned(), generation, token, inode, birth_ns };
        if let Some(mut found) = Self::open(database)? {
            if found.is_of(database) {
                return found.append(&[Record::Owner(owner)]);
            }
            drop(found);
        }
        replace(database, &[Record::Owner(owner)])
    }

    /// Deletes the file that names the archive of a database, and the other files of the archive beside the database.
    /// Returns whether there was an archive. The deletion is durable on return.
    ///
    /// # Errors
    /// As [`ArchiveFile::open`].
    pub fn disable(database: &DatabaseIdentity) -> Result<bool, LogError> {
        let Some(found) = Self::open(database)? else { return Ok(false) };
        found.delete_backlogs(|_| true)?;
        std::fs::remove_file(&found.path).map_err(|error| LogError::io("delete", &found.path, &error))?;
        crate::placement::sync_names(&found.path)?;
        Ok(true)
    }

    /// Returns whether the file was written for this database. Returns `false` if this database is a copy, and the file
    /// was written for the original.
    #[must_use]
    pub fn is_of(&self, database: &DatabaseIdentity) -> bool {
        is_of(&self.records, database)
    }

    /// Returns whether the file beside a database says that another primary has taken over the database's archive.
    /// Returns `false` if the file cannot be read.
    #[must_use]
    pub fn is_fenced(database: &DatabaseIdentity) -> bool {
        let found = Self::look(&database.path).ok().flatten();
        found.is_some_and(|records| records.fenced.is_some() && is_of(&records, database))
    }

    /// Records that another primary has taken over the archive. The record is durable on return.
    ///
    /// # Errors
    /// `Io`.
    pub fn note_fence(&mut self, generation: u64) -> Result<(), LogError> {
        if self.records.fenced.is_some() { Ok(()) } else { self.append(&[Record::Fenced { generation }]) }
    }

    /// Appends records, which are durable on return.
    ///
    /// # Errors
    /// `Format` for a URL that the file cannot hold; `Io`.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        let failed = |error: io::Error| LogError::io("write", &self.path, &error);
        // If a crash has torn the last line, keep the torn line, and begin a new one.
        let mut new = if self.bytes.ends_with(b"\n") { Vec::new() } else { b"\n".to_vec() };
        new.extend_from_slice(&encode(&self.path, records)?);
        let end = self.bytes.len() as u64;
        hooks::step(FileStep::Record, &self.path).map_err(failed)?;
        let written = self.file.write_all_at(&new, end).and_then(|()| self.file.sync_all());
        if let Err(error) = written {
            // Cut off the part of these lines that was written. Otherwise a process could later read records that this
            // call has reported as failed.
            let _ = self.file.set_len(end);
            return Err(failed(error));
        }
        self.bytes.extend_from_slice(&new);
        self.records = decode(&self.path, &self.bytes)?;
        Ok(())
    }

    /// Truncates the file at the offset `at`, which [`Records::tail_of`] has returned.
    ///
    /// # Errors
    /// `Io`.
    pub fn cut(&mut self, at: usize) -> Result<(), LogError> {
        hooks::step(FileStep::Record, &self.path)
            .and_then(|()| self.file.set_len(at as u64))
            .map_err(|error| LogError::io("cut", &self.path, &error))?;
        self.bytes.truncate(at);
        self.records = decode(&self.path, &self.bytes)?;
        Ok(())
    }

    /// Records that a process is making a log. `intact` is as in [`Record::Begin`]. The record is durable on return. If
    /// the file has become too long, forgets the earlier logs.
    ///
    /// # Errors
    /// `Io`.
    pub fn begin(mut self, database: &DatabaseIdentity, log: LogId, intact: bool) -> Result<(), LogError> {
        if self.bytes.len() <= MOST_BYTES {
            return self.append(&[Record::Begin { log, intact }]);
        }
        self.delete_backlogs(|_| true)?;
        let mut records = self.records.of_owner();
        records.push(Record::Begin { log, intact: false });
        replace(database, &records)
    }

    /// Forgets the logs whose records all precede the first record of `log`, and deletes their backlogs. The sidecar
    /// calls this method once the archive holds all of these logs. The new file is durable on return.
    ///
    /// # Errors
    /// `Io`.
    pub fn forget_before(self, database: &DatabaseIdentity, log: LogId) -> Result<(), LogError> {
        let kept: Vec<Record> =
            self.records.logs().skip_while(|record| record.log() != Some(log)).cloned().collect();
        self.delete_backlogs(|other| kept.iter().all(|record| record.log() != Some(other)))?;
        // Keep the order of the records: older logs, then the archive's owner, then newer logs.
        let (_, newer) = self.records.around_owner();
        let (older, newer) = kept.split_at(kept.len().saturating_sub(newer.len()));
        replace(database, &[older, &self.records.of_owner(), newer].concat())
    }

    /// Deletes the backlogs of the logs for which `gone` returns `true`.
    fn delete_backlogs(&self, gone: impl Fn(LogId) -> bool) -> Result<(), LogError> {
        for record in self.records.logs() {
            if let Record::End { log, backlog: true, .. } = record
                && gone(*log)
            {
                remove(&backlog_of(&self.database, *log))?;
            }
        }
        Ok(())
    }
}

fn is_of(records: &Records, database: &DatabaseIdentity) -> bool {
    let Owner { inode, birth_ns, .. } = records.owner;
    (inode, birth_ns) == (database.inode, database.birth_ns)
}

/// Deletes a file, if the file still exists.
pub(super) fn remove(path: &Path) -> Result<(), LogError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(LogError::io("delete", path, &error)),
        _ => Ok(()),
    }
}

fn lock(path: &Path, file: &OwnFile) -> Result<bool, LogError> {
    lock_byte(file, ByteLock::Exclusive, LOCK_AT)
        .map_err(|source| LogError::Medium { path: path.to_path_buf(), source })
}

fn format_error(path: &Path) -> impl Fn(FormatError) -> LogError + '_ {
    |source| LogError::Format { log: path.to_path_buf(), source }
}

fn encode(path: &Path, records: &[Record]) -> Result<Vec<u8>, LogError> {
    let lines: Result<Vec<String>, FormatError> = records.iter().map(Record::encode).collect();
    Ok(lines.map_err(format_error(path))?.concat().into_bytes())
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Records, LogError> {
    Records::decode(bytes).map_err(format_error(path))
}

/// Replaces the present file, if there is one, by a file with these records. The new file is durable on return.
fn replace(database: &DatabaseIdentity, records: &[Record]) -> Result<(), LogError> {
    let path = path_of(&database.path);
    let failed = |error: io::Error| LogError::io("write", &path, &error);
    let mut new = path.clone().into_os_string();
    new.push("-new");
    let new = PathBuf::from(new);
    remove(&new)?;
    let bytes = encode(&path, records)?;
    let options = OpenOptions::new().write(true).create_new(true).mode(database.mode & 0o666).clone();
    let file = OwnFile::open(|| options.open(&new)).map_err(failed)?;
    adjust(&file, database.mode & 0o666, database).map_err(failed)?;
    (&*file).write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&new, &path).map_err(failed)?;
    crate::placement::sync_names(&path)
}
