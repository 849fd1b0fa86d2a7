//! Finds the file of a log in a directory in which anybody may have renamed, copied or deleted files. Also deals with
//! logs that their databases do not name.
//!
//! In two cases a crash leaves a log that its database does not name: a new log has its name, but its id is not in the
//! database yet; or the guard was lifted, but the log is not deleted yet. A power loss may leave the name of a
//! provisional log, and a part of its contents. People also delete, replace and restore databases. A database that
//! names no log needs no log. So [`collect`] deletes a log without commits that was made for this very file. Any other
//! log is kept; if it has the name that a new log is to get, it is renamed to its longer name. [`super::whose`] decides
//! to which database a log belongs, and this module acts on that decision.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use duralite_format::{FormatError, LogId};
use duralite_medium::FileSegment;
use duralite_medium::process::OwnFile;

use super::names::{self, Kind, sync_names};
use super::whose::{Fate, FoundLog, Head, fate, is_named_after, is_torn, open_and_read, open_log};
use crate::engine::descriptor::{Descriptor, HEAD_BYTES, LogPlacement};
use crate::shared::log_file::{self, is_in_place};
use crate::{DatabaseIdentity, ErrorKind, LogError};

impl LogPlacement {
    /// Returns the path of the log that the database at the path `database` names: the log with this id and the
    /// placement's engine. Returns `None` if that log is not in this directory.
    ///
    /// # Errors
    /// `Io` if a file that may be the log cannot be opened at the moment.
    pub fn find(&self, database: &Path, id: LogId) -> Result<Option<PathBuf>, LogError> {
        let is_it = |head: &Head| head.log_id == id && head.engine == self.engine;
        let with_id = names::with_id(&self.dir, database, id);
        let plain = names::plain(&self.dir, database).filter(|_| database.parent() == Some(&*self.dir));
        // The first error, which the search returns if it does not find the log under any name.
        let mut unknown = None;
        for path in [Some(&with_id), plain.as_ref()].into_iter().flatten() {
            match read_head(path) {
                Ok(Some(head)) if is_it(&head) || *path == with_id && head.engine == self.engine => {
                    // A file whose name contains the id is the log, or has a wrong name. Return it in both cases: if
                    // the name is wrong, attaching the file reports that.
                    return Ok(Some(path.clone()));
                }
                Ok(_) => {}
                Err(error) => {
                    unknown.get_or_insert(error);
                }
            }
        }
        if let Some(path) = [Some(with_id), plain].into_iter().flatten().find(|path| is_illegible(path)) {
            return Ok(Some(path));
        }
        match scan(self, id, &is_it) {
            Ok(None) => unknown.map_or(Ok(None), Err),
            Err(error) => Err(unknown.unwrap_or(error)),
            found => found,
        }
    }
}

/// Searches the whole directory for the log, because somebody may have renamed the database.
fn scan(
    placement: &LogPlacement,
    id: LogId,
    is_it: &dyn Fn(&Head) -> bool,
) -> Result<Option<PathBuf>, LogError> {
    let failed = |error: std::io::Error| LogError::io("read directory", &placement.dir, &error);
    let entries = match std::fs::read_dir(&placement.dir).map_err(failed) {
        Ok(entries) => entries,
        // A user who may not read a directory may still use its files by name, so this is not an error.
        Err(error) if error.says_none() || error.kind() == ErrorKind::ReadOnly => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let named = match names::kind_of(&entry.file_name()) {
            Some(Kind::Plain) => true,
            Some(Kind::WithId(other)) => other == id,
            Some(Kind::Segment(_)) | None => false,
        };
        if !named {
            continue;
        }
        let path = entry.path();
        match read_head(&path) {
            Ok(Some(head)) if is_it(&head) => return Ok(Some(path)),
            Ok(None) if is_of_other_version(&path, placement.engine, id) => return Ok(Some(path)),
            // Skip logs that this user may not read. They may be logs of other databases, with access denied on
            // purpose.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ReadOnly => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reads the head of a log. Returns `None` if no log has this name, or the file is not a log. Fails if the file cannot
/// be opened at the moment, because it may still be a log.
fn read_head(path: &Path) -> Result<Option<Head>, LogError> {
    match open_and_read(path, false) {
        Ok((_, head)) => Ok(Some(head)),
        Err(error) if error.says_none() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether there is a file with this name whose head is illegible (damaged, or of another version). A caller
/// that then attaches the log gets an error that says which of the two it is.
fn is_illegible(path: &Path) -> bool {
    matches!(open_and_read(path, false), Err(LogError::Format { .. }))
}

/// Returns whether a file is the log with this id in another version of the engine's format. Every version has the id
/// in the same place. A caller that attaches the log then gets an error that names the version. Returns `false` for a
/// damaged log, which under a provisional guard may be what a power loss left of a log without commits.
fn is_of_other_version(path: &Path, engine: &Descriptor, id: LogId) -> bool {
    let Ok(file) = open_log(path, false) else { return false };
    let other = matches!(Head::read(path, &file), Err(error) if error.is_other_version());
    let bytes = log_file::first_bytes(path, &file, HEAD_BYTES);
    other && bytes.is_ok_and(|bytes| bytes.starts_with(&engine.magic) && LogId::of_log(&bytes) == Some(id))
}

/// Finds the log of a database whose header cannot name the log. Looks in the directories of `log_dirs`.
///
/// Several logs may have been made for the database file. Another log than the newest would take the database back to an
/// earlier state, and the newest log's commits would be lost. Nothing in two logs says which is the newer one, and a
/// clock may have been set back. So this function returns a log that holds commits only if every other log is spent and
/// was also made earlier.
///
/// # Errors
/// `Io` if that cannot be determined; `TwoLogs` if another log may be the newest.
pub fn made_for(log_dirs: &[LogPlacement], db: &DatabaseIdentity) -> Result<Option<FoundLog>, LogError> {
    let (mut made, mut illegible) = (Vec::<Made>::new(), None);
    for placement in log_dirs {
        let plain = names::plain(&placement.dir, &db.path);
        for path in plain.into_iter().chain(named_after(&placement.dir, &db.path)?) {
            match open_and_read(&path, false) {
                Ok((file, head)) if head.is_of(db) && head.engine == placement.engine => {
                    let found = Made::new(placement, path, file, head)?;
                    // Another directory of `log_dirs` may be the same one under another name.
                    if made.iter().all(|other| other.number() != found.number()) {
                        made.push(found);
                    }
                }
                Ok(_) => {}
                Err(error) if may_hide_a_log(&path, &error, db) => illegible = Some(path),
                Err(error) if error.says_none() => {}
                // A log has the permissions of its database, so a log that this user may not read is not that of this
                // database.
                Err(error) if error.kind() == ErrorKind::ReadOnly => {}
                Err(error) => return Err(error),
            }
        }
    }
    // If there is no other log, attaching one of an owner who is not trusted reports that.
    if made.iter().any(|log| db.trusts(&log.meta)) {
        made.retain(|log| db.trusts(&log.meta));
    }
    let (newest, rival) = choose(made);
    match (newest, rival.or(illegible)) {
        (Some(first), Some(second)) => {
            Err(LogError::TwoLogs { database: db.path.clone(), first: first.path, second })
        }
        (newest, _) => Ok(newest),
    }
}

/// A log that was made for the database in question.
struct Made {
    log: FoundLog,
    file: OwnFile,
    head: Head,
    meta: Metadata,
}

impl Made {
    fn new(placement: &LogPlacement, path: PathBuf, file: OwnFile, head: Head) -> Result<Self, LogError> {
        let meta = file.metadata().map_err(|error| LogError::io("examine", &path, &error))?;
        Ok(Self { log: FoundLog { placement: placement.clone(), path, id: head.log_id }, file, head, meta })
    }

    fn number(&self) -> (u64, u64) {
        (self.meta.dev(), self.meta.ino())
    }

    /// Returns whether no process uses the log, and the database file has everything that the log holds.
    fn is_spent(&self) -> bool {
        // Keep other processes from attaching the log while this function reads it.
        let is_unused = self.file.try_lock().is_ok();
        let is_spent = is_unused && self.head.is_empty(&self.log.path, &self.file);
        if is_unused {
            drop(self.file.unlock());
        }
        is_spent
    }

    /// Returns whether this log is known to be older than the other one.
    fn is_before(&self, other: &Self) -> bool {
        let born = |log: &Self| log.head.made_in().map(|made_in| made_in.birth_ns).filter(|ns| *ns != 0);
        born(self).zip(born(other)).is_some_and(|(own, others)| own < others)
    }
}

/// Chooses the newest of the logs that were made for a database. Also returns the path of another log that may be newer,
/// if there is one.
fn choose(mut made: Vec<Made>) -> (Option<FoundLog>, Option<PathBuf>) {
    if made.len() < 2 {
        return (made.pop().map(|only| only.log), None);
    }
    let (spent, mut held): (Vec<_>, Vec<_>) = made.into_iter().partition(Made::is_spent);
    let Some(newest) = held.pop() else {
        // None of these logs has the torn page, so it does not matter which one the caller attaches to find that out.
        return (spent.into_iter().next().map(|log| log.log), None);
    };
    let rival = held.pop().or_else(|| spent.into_iter().find(|log| !log.is_before(&newest)));
    (Some(newest.log), rival.map(|rival| rival.log.path))
}

/// Returns whether a file with the name of a log of this database, which could not be read, may hold commits of the
/// database: it is damaged, or a log of another version. What a power loss leaves of a log without commits holds none.
fn may_hide_a_log(path: &Path, error: &LogError, db: &DatabaseIdentity) -> bool {
    let LogError::Format { source, .. } = error else { return false };
    // A file without the magic number is no log: it may be the shared memory of a log.
    *source != FormatError::Magic
        && open_log(path, false).is_ok_and(|file| {
            file.metadata().is_ok_and(|meta| db.trusts(&meta)) && !is_torn(path, &file, error)
        })
}

/// Returns the files in a directory that have the name of a log of this database.
fn named_after(dir: &Path, database: &Path) -> Result<Vec<PathBuf>, LogError> {
    let failed = |error: std::io::Error| LogError::io("read directory", dir, &error);
    let entries = match std::fs::read_dir(dir).map_err(failed) {
        Ok(entries) => entries,
        Err(error) if error.says_none() || error.kind() == ErrorKind::ReadOnly => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let paths =
        entries.filter_map(Result::ok).filter(|entry| names::belongs_to(&entry.file_name(), database));
    Ok(paths.map(|entry| entry.path()).collect())
}

/// Returns the present path of a log that was opened as `path`: the same path, the path with the log's longer name, or
/// the path to which somebody has moved the log.
pub(crate) fn where_now(path: &Path, file: &OwnFile, id: LogId) -> Result<Option<PathBuf>, LogError> {
    let moved = std::fs::read_link(log_file::own_name(file));
    for name in [Some(path.to_path_buf()), Some(names::aside(path, id)), moved.ok()].into_iter().flatten() {
        if is_in_place(&name, file)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Deletes the logs without commits that were made for this database, which names no log. Also deletes what a power
/// loss has left of such logs. Keeps a log while a process uses it or is making it. With `scan`, also deletes logs that
/// were made while the database had another name. Before the first deletion, calls `make_sure`, which has to confirm
/// that the database durably names no log.
pub(super) fn collect(dir: &Path, db: &DatabaseIdentity, scan: bool, make_sure: &dyn Fn() -> bool) {
    let entries = if scan { entries(dir) } else { Vec::new() };
    let mut seen = Vec::new();
    for path in names::plain(dir, &db.path).into_iter().chain(logs_among(&entries, db)) {
        let Some(name) = path.file_name() else { continue };
        match names::kind_of(name) {
            Some(Kind::Plain | Kind::WithId(_)) if !seen.contains(&path) => {}
            _ => continue,
        }
        seen.push(path.clone());
        // Open the log for writing, because `release` changes what the log owns outside its file.
        let Ok(file) = open_log(&path, true) else {
            log_file::remove_torn(&path, &|meta| is_named_after(name, meta, db), make_sure);
            continue;
        };
        // Once this process has the lock, it may delete the log. But after this process opened the log, another process
        // may have deleted it and made a new log of the same name. So check that the name still leads to the locked
        // file.
        let is_unused = || file.try_lock().is_ok() && is_in_place(&path, &file).unwrap_or(false);
        match fate(&path, &file, db) {
            Fate::Stays => {}
            Fate::GoesIfEmpty { head, is_copy } => {
                let release = || is_copy || head.release(&path, &file).is_ok();
                if is_unused() && head.is_empty(&path, &file) && make_sure() && release() {
                    drop(log_file::remove(&path, &names::segment(&path, head.log_id)));
                }
            }
            Fate::GoesIfTorn(error) => {
                if is_unused() && is_torn(&path, &file, &error) && make_sure() {
                    drop(std::fs::remove_file(&path));
                }
            }
        }
    }
    collect_memory(dir, &entries, db);
}

/// Deletes the segments of this database's logs if the logs themselves no longer exist. A power loss may have brought back
/// the name of such a segment but not the name of its log.
fn collect_memory(dir: &Path, entries: &[PathBuf], db: &DatabaseIdentity) {
    let own = entries.iter().filter_map(|path| {
        let name = path.file_name().filter(|name| names::belongs_to(name, &db.path))?;
        match names::kind_of(name)? {
            Kind::Segment(id) => Some((path, id)),
            _ => None,
        }
    });
    for (path, id) in own {
        // If the id of the log with the plain name cannot be read, assume that the segment belongs to that log.
        let may_be_of_plain = || {
            names::plain(dir, &db.path).is_some_and(|plain| {
                open_and_read(&plain, false)
                    .map_or_else(|error| !error.says_none(), |(_, head)| head.log_id == id)
            })
        };
        if may_exist(&names::with_id(dir, &db.path, id)) || may_be_of_plain() {
            continue;
        }
        let Ok(file) = File::open(path) else { continue };
        let is_used = file.try_lock().is_err() || FileSegment::has_processes(&file).unwrap_or(true);
        if !is_used && file.metadata().is_ok_and(|meta| db.trusts(&meta)) {
            drop(std::fs::remove_file(path));
        }
    }
}

/// The largest number of files in a directory that this module examines. In a larger directory, a leftover log without
/// commits may stay.
const LOOKED_AT: usize = 1000;

/// The largest number of logs named after other databases that this module opens. It opens such logs because this
/// database may have had another name. It does not open all of them, because a directory may hold the logs of hundreds
/// of databases, and each log has to be opened and read.
const OTHERS_OPENED: usize = 16;

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).take(LOOKED_AT);
    entries.map(|entry| entry.path()).collect()
}

/// Returns the files that have the name of some log. The log's name may be from a time when the database had another
/// name.
fn logs_among(entries: &[PathBuf], db: &DatabaseIdentity) -> impl Iterator<Item = PathBuf> {
    let logs = entries.iter().filter(|path| names::is_log_name(path));
    let is_named_after =
        |path: &&PathBuf| path.file_name().is_some_and(|name| names::belongs_to(name, &db.path));
    let (own, others): (Vec<_>, Vec<_>) = logs.partition(is_named_after);
    own.into_iter().chain(others.into_iter().take(OTHERS_OPENED)).cloned()
}

/// Makes the plain name free for a new log. A file that cannot be moved keeps the name. Returns the old and the new
/// path of a log that was moved.
pub(super) fn free_plain_name(
    plain: &Path,
    db: &DatabaseIdentity,
) -> Result<Option<(PathBuf, PathBuf)>, LogError> {
    let Ok((file, head)) = open_and_read(plain, false) else { return Ok(None) };
    if !file.metadata().is_ok_and(|meta| db.trusts(&meta)) {
        return Ok(None);
    }
    // Do not move the log if another process holds its lock, because that process is about to delete the log by this
    // name.
    if head.is_of(db) && file.try_lock().is_err() {
        return Ok(None);
    }
    let aside = names::aside(plain, head.log_id);
    // The longer name contains the log's id. So a file that already has this name is a copy of this very log, and both
    // stay.
    if may_exist(&aside) {
        return Ok(None);
    }
    match std::fs::rename(plain, &aside) {
        Ok(()) => {}
        // In a directory with the sticky bit, only the owner of a file may rename or delete it. The owner of this log is
        // another user, and the last user of the database could not delete the log.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(LogError::io("put aside", plain, &error)),
    }
    // Make the log's longer name durable. After a power loss the database may name this log again, because the process
    // that lifted the guard may not have made that durable. Duralite can then find the log by its longer name, although
    // another log has the plain name.
    sync_names(plain)?;
    Ok(Some((plain.to_path_buf(), aside)))
}

/// Returns whether the log was put aside, that is, whether there is a file with its longer name.
pub(super) fn is_aside(path: &Path, head: &Head) -> bool {
    may_exist(&names::aside(path, head.log_id))
}

fn may_exist(path: &Path) -> bool {
    !matches!(path.try_exists(), Ok(false))
}

/// Deletes a log if its database no longer has a name and no process uses the log. A log that has been moved to another
/// path stays.
pub(crate) fn remove_unused(path: &Path, id: LogId) {
    let Ok((file, head)) = open_and_read(path, true) else { return };
    let is_it = head.log_id == id && file.try_lock().is_ok() && is_in_place(path, &file).unwrap_or(false);
    if is_it && head.release(path, &file).is_ok() {
        // Sync the directory. Otherwise a power loss could bring the log's name back, and with it the commits that the
        // log holds.
        drop(log_file::remove(path, &names::segment(path, id)).and_then(|()| log_file::sync_names(path)));
    }
}
