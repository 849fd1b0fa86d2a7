//! Makes a backup of an open store: copies the pages one after another, and adds the log objects that bring all pages
//! to the same moment.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use duralite_medium::block::sync_directory;

use crate::archive::{SegmentHead, write_segment};
use crate::engine::Engine;
use crate::error::Error;
use crate::format::Lsn;

/// The name of the file that marks the backup as complete.
pub(crate) const MARK: &str = "backup";
/// The name of the file with the pages.
pub(crate) const PAGES: &str = "pages";
const SEGMENT_BYTES: usize = 16 << 20;

/// Makes a backup in `dir`, which must be empty or not exist. Returns the last log object in the backup. The backup is
/// durable on return.
pub(crate) fn backup(engine: &Engine, dir: &Path) -> Result<Lsn, Error> {
    prepare(dir)?;
    let (begin, start) = {
        // While this thread holds the mutex, no bulk load can commit. If a load committed earlier, all of its pages are
        // in the page file before the backup copies the first page. If a load commits later, it sees that a backup has
        // begun, and logs images of its pages.
        let mut backups = engine.backups.lock();
        *backups += 1;
        let mut pinned = engine.pinned.lock();
        let begin = engine.pager.log.head();
        pinned.push(begin);
        (begin, engine.pager.log.next())
    };
    let done = copy(engine, dir, (begin, start));
    let mut pinned = engine.pinned.lock();
    if let Some(at) = pinned.iter().position(|pin| *pin == begin) {
        pinned.swap_remove(at);
    }
    done
}

/// Makes the directory if it does not exist, and checks that it is empty.
pub(crate) fn prepare(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|error| Error::io("making", dir, error))?;
    let mut entries = fs::read_dir(dir).map_err(|error| Error::io("reading", dir, error))?;
    if entries.next().is_some() { Err(not_empty(dir)) } else { Ok(()) }
}

/// Returns the error for a directory that has to be empty, but is not.
pub(crate) fn not_empty(dir: &Path) -> Error {
    Error::Invalid { what: format!("{} is not empty; name a new directory", dir.display()) }
}

fn copy(engine: &Engine, dir: &Path, (begin, start): (Lsn, Lsn)) -> Result<Lsn, Error> {
    let writing = |error| Error::io("writing the backup", dir, error);
    let pages = File::create(dir.join(PAGES)).map_err(writing)?;
    let pool = &engine.pager.pool;
    let mut write = |bytes: &[u8]| (&pages).write_all(bytes).map_err(writing);
    pool.file().copy_to(&mut write, &|id| {
        let is_whole = engine.space.is_whole(&engine.pager, id)?;
        if is_whole {
            // The page is in use, but its version in the file may date from the time when the page was free. The
            // current version is then only in the cache. So write dirty pages into the file before `copy_to` reads the
            // page again.
            pool.clean_before(engine.pager.log.next(), &|| false)?;
        }
        Ok(is_whole)
    })?;
    pages.sync_all().map_err(writing)?;
    // The copied pages contain only changes with log object numbers below `end`, because a page goes to the file only
    // after the log objects of its changes are durable. So redoing the log up to `end` brings all copied pages to the
    // same moment.
    let log = &engine.pager.log;
    let end = log.next();
    engine.force(end - 1)?;
    let mut objects = Vec::new();
    let (mut first, mut previous) = (begin, 0);
    let head = |first, end, previous| {
        let (store_id, seed) = (engine.store_id, log.seed());
        SegmentHead { store_id, seed, first, end, previous }
    };
    log.scan(begin, end, &mut |lsn, object| {
        objects.extend_from_slice(object);
        if objects.len() >= SEGMENT_BYTES {
            write_segment(dir, &head(first, lsn + 1, previous), &objects)?;
            (previous, first) = (first, lsn + 1);
            objects.clear();
        }
        Ok(())
    })?;
    if first < end {
        write_segment(dir, &head(first, end, previous), &objects)?;
    }
    let mut mark = File::create(dir.join(MARK)).map_err(writing)?;
    mark.write_all(format!("{begin} {end} {start}\n").as_bytes()).map_err(writing)?;
    mark.sync_all().map_err(writing)?;
    sync_directory(dir).map_err(|error| Error::medium("writing the backup", error))?;
    Ok(end - 1)
}
