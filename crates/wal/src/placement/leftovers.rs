//! Logs that their databases do not name.
//!
//! A crash leaves such a log when it comes between giving a new log its name and writing its id to the database, or
//! between lifting the guard and deleting the log. A power loss may leave the name of a provisional log, and a part of
//! its contents. People also delete, replace and restore databases. A database that names no log needs none. So a log
//! without commits that was made for this very file is deleted. Any other log makes way: it is kept, under its longer
//! name.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use duralite_format::{FormatError, LogId};
use duralite_medium::FileSegment;
use duralite_medium::process::OwnFile;

use super::head::Head;
use super::names::{self, Kind};
use super::open::open_log;
use crate::engine::descriptor::{HEAD_BYTES, OpenFile};
use crate::shared::log_file::{self, is_in_place};
use crate::{DatabaseIdentity, LogError, engines};

/// Deletes logs that were made for this database, which names none of them, if they hold nothing; also deletes what a
/// power loss has left of such logs. Logs that a process uses or is making stay. With `scan` this includes logs that
/// were made while the database had another name. Nothing is deleted unless `make_sure`, which is called then, confirms
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
        // For writing: `release` changes what the log owns outside of its file.
        let Ok(file) = open_log(&path, true) else {
            log_file::remove_torn(&path, &|meta| is_named_after(name, meta, db), make_sure);
            continue;
        };
        let head = match Head::read(&path, &file) {
            Ok(head) => head,
            Err(error) => {
                let is_own = file.metadata().is_ok_and(|meta| is_named_after(name, &meta, db));
                let may_delete =
                    is_own && file.try_lock().is_ok() && is_in_place(&path, &file).unwrap_or(false);
                if may_delete && is_torn(&path, &file, &error) && make_sure() {
                    drop(std::fs::remove_file(&path));
                }
                continue;
            }
        };
        let trusted = file.metadata().is_ok_and(|meta| db.trusts(&meta));
        // The lock permits this process to delete the log. The log may have been deleted since it was opened, and its
        // name may be that of a log that another process has just made. A directory that was copied while its database
        // was being closed contains a copy of a log that has ended.
        let is_copy = head.is_copy(&file) && names::belongs_to(name, &db.path);
        let may_delete = trusted
            && (head.is_of(db) || is_copy)
            && file.try_lock().is_ok()
            && is_in_place(&path, &file).unwrap_or(false);
        // What a copy refers to outside of its file belongs to the original log.
        let release = || is_copy || head.release(&path, &file).is_ok();
        if may_delete && head.is_empty(&path, &file) && make_sure() && release() {
            let segment = names::segment(&path, head.log_id);
            drop(log_file::remove(&path, &segment));
        }
    }
    collect_memory(dir, &entries, db);
}

/// Whether a file has the name of a log of this database, and an owner who may have made such a log.
fn is_named_after(name: &OsStr, meta: &Metadata, db: &DatabaseIdentity) -> bool {
    names::belongs_to(name, &db.path) && db.trusts(meta)
}

/// Whether a log with an illegible head has no commits either, and is not of a version that this build does not know.
fn is_torn(path: &Path, file: &OwnFile, error: &LogError) -> bool {
    let LogError::Format { source: FormatError::Short { .. } | FormatError::Damaged { .. }, .. } = error
    else {
        return false;
    };
    let engine =
        log_file::first_bytes(path, file, HEAD_BYTES).ok().and_then(|bytes| engines::by_magic(&bytes));
    engine.is_some_and(|engine| (engine.is_empty)(&OpenFile { path, file }))
}

/// Deletes segments of logs of this database that no longer exist: a power loss brought back the name of the segment
/// but not that of the log.
fn collect_memory(dir: &Path, entries: &[PathBuf], db: &DatabaseIdentity) {
    let own = entries.iter().filter_map(|path| {
        let name = path.file_name().filter(|name| names::belongs_to(name, &db.path))?;
        match names::kind_of(name)? {
            Kind::Segment(id) => Some((path, id)),
            _ => None,
        }
    });
    for (path, id) in own {
        // What cannot be determined is assumed.
        let may_be_of_plain = || {
            names::plain(dir, &db.path).is_some_and(|plain| {
                let head = open_log(&plain, false).and_then(|file| Head::read(&plain, &file));
                head.map_or_else(|error| !error.says_none(), |head| head.log_id == id)
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

/// How many files of a directory are examined. In a larger directory a leftover may stay; it holds nothing.
const LOOKED_AT: usize = 1000;

/// How many logs with the names of other databases are opened. This database may have had such a name, but each log has
/// to be opened and read, and a directory may hold the logs of hundreds of databases.
const OTHERS_OPENED: usize = 16;

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).take(LOOKED_AT);
    entries.map(|entry| entry.path()).collect()
}

/// The files that have the name of a log, whatever the database's name was when the log was made.
fn logs_among(entries: &[PathBuf], db: &DatabaseIdentity) -> impl Iterator<Item = PathBuf> {
    let logs = entries.iter().filter(|path| names::is_log_name(path));
    let is_named_after =
        |path: &&PathBuf| path.file_name().is_some_and(|name| names::belongs_to(name, &db.path));
    let (own, others): (Vec<_>, Vec<_>) = logs.partition(is_named_after);
    own.into_iter().chain(others.into_iter().take(OTHERS_OPENED)).cloned()
}

/// Makes sure that no log has the plain name, which a new log is to get. A file that cannot be moved keeps the name.
/// Returns the old and the new path of a log that was moved.
pub(super) fn free_plain_name(
    plain: &Path,
    db: &DatabaseIdentity,
) -> Result<Option<(PathBuf, PathBuf)>, LogError> {
    let Ok(file) = open_log(plain, false) else { return Ok(None) };
    let Ok(head) = Head::read(plain, &file) else { return Ok(None) };
    if !file.metadata().is_ok_and(|meta| db.trusts(&meta)) {
        return Ok(None);
    }
    // Another process is about to delete the log, by this name.
    if head.is_of(db) && file.try_lock().is_err() {
        return Ok(None);
    }
    let aside = names::aside(plain, head.log_id);
    // The name contains the log's id: a file that already has it is a copy of this very log, and both stay.
    if may_exist(&aside) {
        return Ok(None);
    }
    std::fs::rename(plain, &aside).map_err(|error| LogError::io("put aside", plain, &error))?;
    // The log may be the database's after all, if the lifting of the guard was not durable. With its longer name
    // durable it can be found, whatever file gets the plain name.
    log_file::sync_names(plain).map_err(|error| LogError::io("sync the directory of", plain, &error))?;
    Ok(Some((plain.to_path_buf(), aside)))
}

/// Whether the log has been put aside under its longer name.
pub(super) fn is_aside(path: &Path, head: &Head) -> bool {
    may_exist(&names::aside(path, head.log_id))
}

fn may_exist(path: &Path) -> bool {
    !matches!(path.try_exists(), Ok(false))
}

/// The present path of a log that was opened by this path: the same, its longer name, or where somebody has moved it.
pub(crate) fn where_now(path: &Path, file: &OwnFile, id: LogId) -> Result<Option<PathBuf>, LogError> {
    let moved = std::fs::read_link(log_file::own_name(file));
    for name in [Some(path.to_path_buf()), Some(names::aside(path, id)), moved.ok()].into_iter().flatten() {
        if is_in_place(&name, file)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
