//! Logs that a database does not name.
//!
//! A crash leaves one where it comes between giving a new log its name and writing that into the database,
//! or between lifting the guard and deleting the log. And people delete, replace and restore databases. A
//! database that names no log needs none: a log without commits that was made for this very file is deleted,
//! and any other one makes way: it is kept, under its longer name.

use std::path::{Path, PathBuf};

use duralite_logfmt::LogId;
use duralite_medium::process::OwnFile;

use super::files::is_in_place;
use super::head::Head;
use super::names::{self, Kind};
use super::open::open_log;
use super::{DatabaseIdentity, files};
use crate::JournalError;

/// Deletes the logs that were made for this database, which names none of them, and that hold nothing. Those
/// that somebody uses, or that are being made, stay. With `scan` those are found too that were made while the
/// database had another name. None goes unless `make_sure`, asked then, says that it is durable that the database names none.
pub(super) fn collect(dir: &Path, db: &DatabaseIdentity, scan: bool, make_sure: &dyn Fn() -> bool) {
    let plain = names::plain(dir, &db.path);
    let others = scan.then(|| logs_in(dir)).into_iter().flatten();
    let mut seen = Vec::new();
    for path in plain.into_iter().chain(others) {
        match path.file_name().and_then(names::kind_of) {
            Some(Kind::Plain | Kind::WithId(_)) if !seen.contains(&path) => {}
            _ => continue,
        }
        seen.push(path.clone());
        // To be changed: what it has elsewhere is given back.
        let Ok(file) = open_log(&path, true) else { continue };
        let Ok(head) = Head::read(&path, &file) else { continue };
        let trusted = file.metadata().is_ok_and(|meta| db.trusts(&meta));
        // Who has the lock may delete it. It may have been deleted since it was opened, and its name be
        // that of the log that another process has just made.
        let may_delete = trusted
            && head.is_of(db)
            && file.try_lock().is_ok()
            && is_in_place(&path, &file).unwrap_or(false);
        if may_delete && head.is_empty(&path, &file) && make_sure() && head.release(&path, &file).is_ok() {
            let segment = names::segment(&path, head.log_id);
            drop(files::remove(&path, &segment));
        }
    }
}

/// So many files of a directory are looked at for logs. In a larger one a leftover may stay, which holds nothing.
const LOOKED_AT: usize = 1000;

/// What is called like a log in a directory, whatever the database was called when it was made.
fn logs_in(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).take(LOOKED_AT);
    entries.map(|entry| entry.path()).filter(|path| names::is_log_name(path))
}

/// Makes sure that no log has the plain name, which a new one is to get. What is there and cannot be moved
/// keeps it. Returns what was moved, and where to.
pub(super) fn free_plain_name(
    plain: &Path,
    db: &DatabaseIdentity,
) -> Result<Option<(PathBuf, PathBuf)>, JournalError> {
    let Ok(file) = open_log(plain, false) else { return Ok(None) };
    let Ok(head) = Head::read(plain, &file) else { return Ok(None) };
    if !file.metadata().is_ok_and(|meta| db.trusts(&meta)) {
        return Ok(None);
    }
    // Somebody is about to delete it, by that name.
    if head.is_of(db) && file.try_lock().is_err() {
        return Ok(None);
    }
    let aside = names::aside(plain, head.log_id);
    // The name has the log's id: what has it already is a copy of this very log, and both stay.
    if aside.exists() {
        return Ok(None);
    }
    std::fs::rename(plain, &aside).map_err(|error| JournalError::io("put aside", plain, &error))?;
    Ok(Some((plain.to_path_buf(), aside)))
}

/// Whether a log has been put aside.
pub(super) fn is_aside(path: &Path, head: &Head) -> bool {
    names::aside(path, head.log_id).exists()
}

/// Where a log is that was opened by this path: there, or put aside since, or where people have moved it.
pub(crate) fn where_now(path: &Path, file: &OwnFile, id: LogId) -> Result<Option<PathBuf>, JournalError> {
    let moved = std::fs::read_link(files::own_name(file));
    for name in [Some(path.to_path_buf()), Some(names::aside(path, id)), moved.ok()].into_iter().flatten() {
        if is_in_place(&name, file)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
