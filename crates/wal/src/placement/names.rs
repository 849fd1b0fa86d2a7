//! The names of a log's files.
//!
//! A log beside its database is named after the database: `app.db-duralite`. In any other directory, or if that name is
//! taken, the log's id follows: `app.db-duralite-0123…`. The segment, the memory that the processes using the log
//! share, is always named after database and id, `app.db-duralite-0123…-shm`, so that it never has to be renamed. `ls`
//! lists these files together, and `rm app.db*` and backups include all of them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use duralite_format::LogId;

use crate::LogError;
use crate::shared::log_file;

const SUFFIX: &str = "-duralite";
const SEGMENT_SUFFIX: &str = "-shm";
const ID_CHARS: usize = 32;
/// The largest number of bytes of the database's name in the name of a log. The rest is cut off, because a file name
/// has at most 255 bytes.
const LONGEST_NAME: usize = 200;

/// Returns the beginning of the names of a database's logs, and whether the database's own name had to be cut.
fn stem(database: &Path) -> (OsString, bool) {
    let name = database.file_name().unwrap_or(OsStr::new("database")).as_bytes();
    let mut end = name.len().min(LONGEST_NAME);
    // Do not cut in the middle of a character.
    while end > 0 && end < name.len() && name[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let mut stem = OsString::from_vec(name[..end].to_vec());
    stem.push(SUFFIX);
    (stem, end < name.len())
}

/// Returns the name of a log beside its database; `None` if the database's name is too long.
pub(super) fn plain(dir: &Path, database: &Path) -> Option<PathBuf> {
    let (stem, cut) = stem(database);
    (!cut).then(|| dir.join(stem))
}

/// Returns the name of a log in any directory.
pub(super) fn with_id(dir: &Path, database: &Path, id: LogId) -> PathBuf {
    let (mut name, _) = stem(database);
    name.push(format!("-{id}"));
    dir.join(name)
}

/// Returns the path of a log's segment, which is beside the log. The path is the same for both names of a log.
pub(crate) fn segment(log: &Path, id: LogId) -> PathBuf {
    let mut name = aside(log, id).into_os_string();
    name.push(SEGMENT_SUFFIX);
    name.into()
}

/// Returns the path of a log with its longer name, which contains the id.
pub(super) fn aside(log: &Path, id: LogId) -> PathBuf {
    let mut name = log.to_path_buf().into_os_string();
    if !matches!(log.file_name().and_then(kind_of), Some(Kind::WithId(_))) {
        name.push(format!("-{id}"));
    }
    name.into()
}

/// What a file is, according to its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A log whose name contains only the database's name.
    Plain,
    /// A log whose name contains its id.
    WithId(LogId),
    /// The segment of the log with this id.
    Segment(LogId),
}

/// Classifies a file by its name. Returns `None` if no log has such a name.
pub(super) fn kind_of(name: &OsStr) -> Option<Kind> {
    let name = name.as_bytes();
    if name.ends_with(SUFFIX.as_bytes()) {
        return Some(Kind::Plain);
    }
    let (rest, is_segment) = match name.strip_suffix(SEGMENT_SUFFIX.as_bytes()) {
        Some(rest) => (rest, true),
        None => (name, false),
    };
    let (stem, id) = rest.split_at_checked(rest.len().checked_sub(ID_CHARS)?)?;
    if !stem.strip_suffix(b"-").is_some_and(|stem| stem.ends_with(SUFFIX.as_bytes())) {
        return None;
    }
    let id = parse_id(id)?;
    Some(if is_segment { Kind::Segment(id) } else { Kind::WithId(id) })
}

fn parse_id(text: &[u8]) -> Option<LogId> {
    let mut id = [0; ID_CHARS / 2];
    for (byte, digits) in id.iter_mut().zip(text.chunks(2)) {
        let digits = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_hexdigit))?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(LogId(id))
}

/// Returns whether a file with this name may belong to this database's logs.
pub(super) fn belongs_to(name: &OsStr, database: &Path) -> bool {
    name.as_bytes().starts_with(stem(database).0.as_bytes())
}

/// Returns whether a path has the name of a log.
#[must_use]
pub fn is_log_name(path: &Path) -> bool {
    path.file_name().and_then(kind_of).is_some_and(|kind| matches!(kind, Kind::Plain | Kind::WithId(_)))
}

/// Makes the names in a file's directory durable.
///
/// # Errors
/// `Io`.
pub fn sync_names(path: &Path) -> Result<(), LogError> {
    log_file::sync_names(path).map_err(|error| LogError::io("sync the directory of", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let (dir, database, id) = (Path::new("/logs"), Path::new("/data/app.db"), LogId([0xab; 16]));
        let plain = plain(dir, database).unwrap();
        assert_eq!(plain, Path::new("/logs/app.db-duralite"));
        let with_id = with_id(dir, database, id);
        let segment = segment(&plain, id);
        assert_eq!(segment, super::segment(&with_id, id));
        assert_eq!((aside(&plain, id), aside(&with_id, id)), (with_id.clone(), with_id.clone()));
        let kind = |path: &Path| kind_of(path.file_name().unwrap());
        assert_eq!(kind(&plain), Some(Kind::Plain));
        assert_eq!(kind(&with_id), Some(Kind::WithId(id)));
        assert_eq!(kind(&segment), Some(Kind::Segment(id)));
        for other in ["app.db", "app.db-wal", "app.db-duralite-12", "app.db-shm", "-shm", ""] {
            assert_eq!(kind_of(OsStr::new(other)), None, "{other}");
        }
        assert!(is_log_name(&plain) && is_log_name(&with_id) && !is_log_name(&segment));
    }

    #[test]
    fn names_of_any_length_fit() {
        let (dir, id) = (Path::new("/d"), LogId([1; 16]));
        for character in ["x", "é", "漢"] {
            for count in [60, 67, 100, 200, 250] {
                let name = character.repeat(count);
                let database = Path::new("/d").join(&name);
                let segment = segment(&with_id(dir, &database, id), id);
                assert!(segment.file_name().unwrap().len() <= 255);
                assert!(segment.to_str().is_some());
                assert_eq!(plain(dir, &database).is_some(), name.len() <= LONGEST_NAME);
            }
        }
    }
}
