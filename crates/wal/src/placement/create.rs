//! Makes a log.

use std::io;
use std::path::{Path, PathBuf};

use duralite_format::guard::HEADER_BYTES;
use duralite_format::{FileIdentity, LogId};

use super::attach::{Found, OpenLog, Place};
use super::{find, names, segment};
use crate::engine::descriptor::{LogHead, LogPlacement, NewLog, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::shared::{identity, log_file};
use crate::{DatabaseIdentity, EngineOptions, LogError};

/// Makes a log for a database that names no log. The log and its directory entry are durable on return, unless the log
/// is provisional, in which case [`Log::harden`](crate::Log::harden) makes them durable later.
///
/// Each file of the log gets its name only when it is complete, and the segment gets its name last. If the process dies
/// during this call, it leaves nothing, or a log without commits, which [`find::collect`] deletes later. A power loss
/// may also leave a part of a log that was not durable yet, which [`find::collect`] deletes too.
pub(crate) fn create(
    database: &dyn DatabaseFile,
    placement: &LogPlacement,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    page_bytes: u32,
) -> Result<OpenLog, LogError> {
    let failed = |error: io::Error| LogError::io("use the log's directory", &placement.dir, &error);
    if !placement.dir.metadata().map_err(failed)?.is_dir() {
        return Err(failed(io::Error::new(
            io::ErrorKind::NotADirectory,
            "it is not a directory; name another",
        )));
    }
    // Reading the directory costs little compared with making a log.
    collect_leftovers(database, placement, db);
    let id = draw_id(db)?;
    let (path, moved) = choose_name(placement, db, id)?;
    let place = Place::new(placement, &path, id, db.device);
    let segment_path = place.segment_path.clone();
    let file = log_file::make_file(&placement.dir, &path, db)?;
    // The file may have a name already, so lock it. Otherwise another process could mistake the file for one that a
    // power loss has left, and delete it.
    file.lock_shared().map_err(|error| LogError::io("lock", &path, &error))?;
    // A log can be provisional only if everything that belongs to the log is in its file. A power loss that destroys
    // the file then leaves nothing else of the log.
    let is_provisional = !placement.engine.rollback_journals;
    let make = || {
        // Make the segment before the log, because the log may take all the space that the file system has left.
        let shared = segment::create(&segment_path, db)?;
        let named = shared.try_clone().map_err(|error| LogError::io("open", &segment_path, &error))?;
        let segment = place.join(shared, true)?;
        let head = head_of(db, page_bytes, id, identity::of_log(&file));
        let file_of_log = OpenFile { path: &path, file: &file };
        (placement.engine.format)(&NewLog { placement, options, file: file_of_log, head })?;
        let publish = if is_provisional { log_file::publish_provisionally } else { log_file::publish };
        publish(&path, &file).map_err(|error| LogError::io("make", &path, &error))?;
        log_file::name(&segment_path, &named).map_err(|error| LogError::io("make", &segment_path, &error))?;
        place.open(
            options,
            database,
            file,
            segment,
            Found { alone: true, is_new: true, of_another: false, left: None },
        )
    };
    make()
        .map_err(|error| at_directory(error, &placement.dir))
        .inspect_err(|_| {
            drop(std::fs::remove_file(&segment_path));
            drop(std::fs::remove_file(&path));
        })
        .map(|log| OpenLog { moved, is_provisional, ..log }.on_file_systems(&db.path))
}

/// Deletes what crashes have left of this database's logs. The database names no log. Before the first deletion, makes
/// the database's header durable, so that the database names no log after a power loss either. The caller excludes
/// processes that would change the header.
pub(crate) fn collect_leftovers(
    database: &dyn DatabaseFile,
    placement: &LogPlacement,
    db: &DatabaseIdentity,
) {
    find::collect(&placement.dir, db, true, &|| settle_header(database).is_ok());
}

/// Makes the database's header durable as it is. The process that lifted the guard may have died before its sync, or
/// its sync may have failed. After a failed sync, a later sync covers only bytes that were written again in between. So
/// this function writes the header again and then syncs.
fn settle_header(database: &dyn DatabaseFile) -> Result<(), LogError> {
    let mut header = [0; HEADER_BYTES];
    let len = database.read(&mut header, 0)?;
    database.write(&header[..len], 0)?;
    database.sync()
}

/// Returns the head of a new log.
fn head_of(db: &DatabaseIdentity, page_bytes: u32, log_id: LogId, made_in: Option<FileIdentity>) -> LogHead {
    let path = db.path_hint().to_vec();
    LogHead { page_bytes, log_id, db_inode: db.inode, db_birth_ns: db.birth_ns, path, made_in }
}

fn draw_id(db: &DatabaseIdentity) -> Result<LogId, LogError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| LogError::Io {
        op: "draw random bytes for",
        path: db.path.clone(),
        message: error.to_string(),
        kind: io::ErrorKind::Other,
    })?;
    Ok(LogId(id))
}

/// Chooses the name of a new log. Also returns the logs that were renamed because they had this name.
fn choose_name(
    placement: &LogPlacement,
    db: &DatabaseIdentity,
    id: LogId,
) -> Result<(PathBuf, Vec<(PathBuf, PathBuf)>), LogError> {
    let with_id = names::with_id(&placement.dir, &db.path, id);
    let is_beside = db.path.parent() == Some(&*placement.dir);
    // If the database is no longer at its path, the plain name may belong to the log of another database, now or soon.
    let plain = names::plain(&placement.dir, &db.path).filter(|_| is_beside && db.is_in_place());
    let Some(plain) = plain else { return Ok((with_id, Vec::new())) };
    let moved = find::free_plain_name(&plain, db)?;
    let path = if is_free(&plain) { plain } else { with_id };
    Ok((path, moved.into_iter().collect()))
}

fn is_free(path: &Path) -> bool {
    matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Returns an error that names the directory instead of the log's file. The error occurred while a log was being made,
/// and the log's file has no name yet.
fn at_directory(error: LogError, dir: &Path) -> LogError {
    match error {
        LogError::Medium { source: duralite_medium::MediumError::NoSpace, .. } => {
            LogError::NoSpace { dir: dir.to_path_buf() }
        }
        LogError::Medium { source, .. } => LogError::Medium { path: dir.to_path_buf(), source },
        error => error,
    }
}
