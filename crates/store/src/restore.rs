//! A backup becomes a store, as it was at some moment.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use duralite_logfmt::store::{Lsn, Object, ObjectKind};

use crate::archive::list;
use crate::backup::{MARK, PAGES, prepare};
use crate::error::Error;
use crate::media::{Directory, Media};
use crate::opening::{assemble, make_log, open_made};
use crate::options::Options;
use crate::poison::Poison;
use crate::recovery::Analysis;

/// Up to when a store is restored.
///
/// ```
/// use duralite_store::RestoreTo;
/// assert_ne!(RestoreTo::End, RestoreTo::Lsn(7));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoreTo {
    /// The last moment that backup and archive know of.
    #[default]
    End,
    /// Up to a log object, with it.
    Lsn(u64),
    /// What had committed by then.
    Time(SystemTime),
}

/// What a restore came to.
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
    /// The last log object that the store has.
    pub last: u64,
    /// Transactions that had not committed by then.
    pub taken_back: u64,
}

/// Where a backup begins, and what comes after it.
fn range_of(backup: &Path) -> Result<(Lsn, Lsn), Error> {
    let not = |why: &str| Error::NotAStore { path: backup.to_owned(), why: why.to_owned() };
    let text = fs::read_to_string(backup.join(MARK))
        .map_err(|_| not("it is no backup, or one that was not finished"))?;
    let parse = || {
        let (begin, end) = text.trim().split_once(' ')?;
        Some((begin.parse().ok()?, end.parse().ok()?))
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
    let (begin, end) = range_of(backup)?;
    prepare(dir)?;
    let media = Directory::open(dir, options)?;
    media.put_pages(&backup.join(PAGES))?;
    let file = Arc::new(open_made(&media, dir)?);
    let mut segments = list(backup)?;
    if let Some(archive) = archive {
        segments.extend(list(archive)?);
    }
    segments.retain(|segment| segment.head.store_id == file.head().store_id);
    segments.sort_by_key(|segment| segment.head.first);
    let after = last_wanted(&segments, begin, end, to)?;
    let poison = Arc::new(Poison::default());
    let log = make_log(&media, &file, after, options, &poison)?;
    let engine = assemble(&file, log, &poison, options);
    let mut analysis = Analysis::default();
    scan(&segments, begin, after, &mut |lsn, object| analysis.repeat(&engine, lsn, object))?;
    let report = analysis.finish(&engine)?;
    engine.checkpoint(&|| false)?;
    file.write_head(|head| head.last_tx = head.last_tx.max(report.last_tx))?;
    media.made()?;
    Ok(Restored { last: after - 1, taken_back: report.taken_back })
}

/// The object after the last one that is to be repeated.
fn last_wanted(
    segments: &[crate::archive::Segment],
    begin: Lsn,
    end: Lsn,
    to: RestoreTo,
) -> Result<Lsn, Error> {
    let mut next = begin;
    for segment in segments {
        if (segment.head.first..segment.head.end).contains(&next) {
            next = segment.head.end;
        }
    }
    let limit = match to {
        RestoreTo::End => next,
        RestoreTo::Lsn(lsn) if lsn < next => lsn + 1,
        RestoreTo::Lsn(_) => {
            let what = format!("the log goes up to {} only, and not without a gap to there", next - 1);
            return Err(Error::Invalid { what });
        }
        RestoreTo::Time(time) => {
            let limit = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let mut found = next;
            scan(segments, begin, next, &mut |lsn, object| {
                if object.header.kind == ObjectKind::Commit && u128::from(object.time_ns()) > limit {
                    found = found.min(lsn);
                }
                Ok(())
            })?;
            found
        }
    };
    if limit < end {
        return Err(Error::Invalid {
            what: format!("the backup is of a later moment (log object {}); take an older one", end - 1),
        });
    }
    Ok(limit)
}

/// Shows objects `from..to`, each once, in order.
fn scan(
    segments: &[crate::archive::Segment],
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
