//! Restores a store from a backup, as of a chosen moment.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::archive::{Segment, list, name_of, read_reached};
use crate::backup::{MARK, PAGES};
use crate::error::Error;
use crate::format::{Lsn, Object, ObjectKind};
use crate::media::{Directory, Media, prepare_store};
use crate::opening::{assemble, make_from, make_log};
use crate::options::Options;
use crate::poison::Poison;
use crate::recovery::Analysis;

/// The moment to which a store is restored.
///
/// ```
/// use duralite_store::RestoreTo;
/// assert_ne!(RestoreTo::End, RestoreTo::Lsn(7));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoreTo {
    /// The last moment that the backup and the archive contain.
    #[default]
    End,
    /// The moment right after this log object.
    Lsn(u64),
    /// The state with everything that had committed by this time.
    Time(SystemTime),
}

/// The result of a restore.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use duralite_store::{Options, RestoreTo, Store};
/// let store = Store::open(dir.path().join("store"), Options::default())?;
/// let last = store.backup(dir.path().join("backup"))?;
/// let target = dir.path().join("again");
/// let restored = Store::restore(dir.path().join("backup"), None, target, RestoreTo::End, Options::default())?;
/// assert_eq!(restored.last, last);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The last log object in the restored store.
    pub last: u64,
    /// The number of transactions that had not committed at that moment, and were rolled back.
    pub undone: u64,
}

/// The part of the log that a backup contains.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: Lsn,
    /// The number after the last object.
    end: Lsn,
    /// The backup has the pages of all bulk loads that committed before this log object. A bulk load writes its pages
    /// home without logging them.
    start: Lsn,
}

fn span_of(backup: &Path) -> Result<Span, Error> {
    let not = |why: &str| Error::NotAStore { path: backup.to_owned(), why: why.to_owned() };
    let text = fs::read_to_string(backup.join(MARK))
        .map_err(|_| not("it is not a backup, or the backup was not finished"))?;
    let parse = || {
        let mut numbers = text.split_whitespace().map(|number| number.parse::<Lsn>().ok());
        let (begin, end) = (numbers.next()??, numbers.next()??);
        // Backups of versions without bulk loads lack this number.
        let start = numbers.next().unwrap_or(Some(begin))?;
        Some(Span { begin, end, start })
    };
    parse().ok_or_else(|| not("its mark is damaged"))
}

pub(crate) fn restore(
    backup: &Path,
    archive: Option<&Path>,
    dir: &Path,
    to: RestoreTo,
    options: &Options,
) -> Result<Restored, Error> {
    options.check()?;
    let span = span_of(backup)?;
    prepare_store(dir)?;
    restore_into((backup, span), archive, dir, to, options)
}

fn restore_into(
    from: (&Path, Span),
    archive: Option<&Path>,
    dir: &Path,
    to: RestoreTo,
    options: &Options,
) -> Result<Restored, Error> {
    let options = &Options { create: true, ..options.clone() };
    Directory::open(dir, options)?.make(|media| restore_on(media, from, archive, dir, to, options))
}

fn restore_on(
    media: &Directory,
    (backup, span): (&Path, Span),
    archive: Option<&Path>,
    dir: &Path,
    to: RestoreTo,
    options: &Options,
) -> Result<Restored, Error> {
    let (file, head) = make_from(media, &backup.join(PAGES), dir)?;
    let file = Arc::new(file);
    options.check_cache(head.page_bytes)?;
    let history = History::of(backup, archive, head.store_id)?;
    let after = last_wanted(&history, span, to)?;
    let poison = Arc::new(Poison::default());
    let log = make_log(media, &file, after, options, &poison)?;
    let engine = assemble(&file, log, &poison, options);
    let mut analysis = Analysis::default();
    scan(&history.segments, span.begin, after, &mut |lsn, object| {
        if lsn >= span.start && object.leads_to_pages_at_home() {
            return Err(not_in_log(lsn));
        }
        analysis.repeat(&engine, lsn, object)
    })?;
    let report = analysis.finish(&engine)?;
    engine.checkpoint(&|| false)?;
    file.write_head(|head| head.last_tx = head.last_tx.max(report.last_tx))?;
    media.made()?;
    Ok(Restored { last: after - 1, undone: report.undone })
}

/// Returns the error for a bulk load whose pages are neither in the log nor in the backup.
fn not_in_log(commit: Lsn) -> Error {
    let what = format!(
        "the archive lacks the rows of a bulk load that committed with log object {commit}: the store was \
         open without the archive at that time"
    );
    Error::Gap { what, last: commit - 1 }
}

/// Returns the number of the first object that the restore leaves out.
fn last_wanted(history: &History, Span { begin, end, .. }: Span, to: RestoreTo) -> Result<Lsn, Error> {
    let next = history.end_of_run(begin);
    let limit = match to {
        RestoreTo::End => match history.gap_at(next) {
            Some(gap) => return Err(gap),
            None => next,
        },
        RestoreTo::Lsn(lsn) if lsn < next => lsn + 1,
        RestoreTo::Lsn(lsn) => {
            let beyond = || Error::Invalid {
                what: format!(
                    "log object {lsn} is not in the backup or the archive, which end with {}",
                    next - 1
                ),
            };
            return Err(history.gap_at(next).unwrap_or_else(beyond));
        }
        RestoreTo::Time(time) => {
            let limit = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let mut found = next;
            scan(&history.segments, begin, next, &mut |lsn, object| {
                if object.header.kind == ObjectKind::Commit && u128::from(object.time_ns()) > limit {
                    found = found.min(lsn);
                }
                Ok(())
            })?;
            // No commit after the requested time was found, but log objects are missing at the end. Commits from before
            // the requested time may be among them. So report the gap as an error.
            match history.gap_at(next).filter(|_| found == next) {
                Some(gap) => return Err(gap),
                None => found,
            }
        }
    };
    if limit < end {
        return Err(Error::Invalid {
            what: format!(
                "the backup is of a later moment (log object {}); restore an older backup",
                end - 1
            ),
        });
    }
    Ok(limit)
}

/// The part of a store's log that a backup and an archive contain together.
struct History {
    /// The segments, ordered by their first objects.
    segments: Vec<Segment>,
    /// The store is known to have had every object below this number.
    reached: Lsn,
}

impl History {
    fn of(backup: &Path, archive: Option<&Path>, store_id: [u8; 16]) -> Result<Self, Error> {
        let mut segments = list(backup)?;
        let mut reached = 0;
        if let Some(archive) = archive {
            let archived = list(archive)?;
            if archived.iter().any(|segment| segment.head.store_id != store_id) {
                let what = format!("{} is the archive of another store", archive.display());
                return Err(Error::Invalid { what });
            }
            segments.extend(archived);
            reached = read_reached(archive)?;
        }
        segments.retain(|segment| segment.head.store_id == store_id);
        segments.sort_by_key(|segment| segment.head.first);
        Ok(Self { segments, reached })
    }

    /// Returns the first missing object from `begin` on.
    fn end_of_run(&self, begin: Lsn) -> Lsn {
        let mut next = begin;
        for segment in &self.segments {
            if (segment.head.first..segment.head.end).contains(&next) {
                next = segment.head.end;
            }
        }
        next
    }

    /// Returns the error that reports which objects are missing from `next` on. Returns `None` if nothing shows that
    /// the store ever had such an object.
    fn gap_at(&self, next: Lsn) -> Option<Error> {
        let last = next - 1;
        let what = match self.segments.iter().find(|segment| segment.head.first > next) {
            Some(Segment { head, .. }) if head.previous == 0 => format!(
                "the archive has no log objects {next} to {}: the store was open without this archive at \
                 that time, or the archive was begun again",
                head.first - 1
            ),
            Some(Segment { head, .. }) => format!(
                "the archive lacks log objects {next} to {}; the segment before {} was {}",
                head.first - 1,
                name_of(head.first),
                name_of(head.previous)
            ),
            None if self.reached > next => format!(
                "the archive lacks log objects {next} to {}: segments are missing at its end, or the store was \
                 open without this archive at that time",
                self.reached - 1
            ),
            None => return None,
        };
        Some(Error::Gap { what, last })
    }
}

/// Passes the objects in `from..to` to `visit`: in order, and each only once.
fn scan(
    segments: &[Segment],
    from: Lsn,
    to: Lsn,
    visit: &mut dyn FnMut(Lsn, &Object<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut next = from;
    for segment in segments {
        if !(segment.head.first..segment.head.end).contains(&next) || next >= to {
            continue;
        }
        segment.scan(&mut |lsn, object| {
            if lsn == next && lsn < to {
                visit(lsn, object)?;
                next += 1;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed helper is a failed test

    use super::*;
    use crate::store::Store;

    /// Another process makes a store in the directory after the restore has found it empty.
    #[test]
    fn a_restore_removes_nothing_of_a_store_that_came_first() {
        let dir = tempfile::tempdir().unwrap();
        let (backup, other) = (dir.path().join("backup"), dir.path().join("other"));
        let options = Options::default();
        Store::open(dir.path().join("store"), options.clone()).unwrap().backup(&backup).unwrap();
        let from = (&*backup, span_of(&backup).unwrap());
        let store = Store::open(&other, options.clone()).unwrap();
        let restored = restore_into(from, None, &other, RestoreTo::End, &options);
        assert!(matches!(restored, Err(Error::Locked { .. })), "{restored:?}");
        assert!(other.join("lock").exists() && other.join("log").exists());
        drop(store);
        let restored = restore_into(from, None, &other, RestoreTo::End, &options);
        assert!(matches!(restored, Err(Error::Invalid { .. })), "{restored:?}");
        Store::open(&other, options).unwrap().verify().unwrap();
    }
}
