//! Finds the file to which a byte of the device belonged at a given time.
//!
//! The collector scans the files repeatedly while the command runs, because logs appear, grow and disappear,
//! and other files get their blocks. Each scan is called a look. For each piece of a file, the [`Atlas`]
//! keeps the times when a look first and last saw the piece. A rollback journal may exist for less than the
//! time between two looks. For such a file, ext4 reports the inode and its blocks, and a look finds the
//! file's name by the inode.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use duralite_medium::block::extents;

use crate::Class;
use crate::parse::Mapping;
use crate::ranges::{Range, common, normalise, without};

/// The longest time in seconds between a request and a look that identifies its file. A request belongs to a
/// file if a look saw the file at the request's place within this time before or after the request. The limit
/// is not 0, because between two looks a file may appear or disappear, and an inode may get another name.
const NEAR: f64 = 1.0;

/// Database files that this process may have open elsewhere. The atlas keeps them open, because closing *any*
/// descriptor of a file drops the process's `fcntl` locks on the file, on which SQLite relies.
static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A target to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A database, and the logs beside it.
    Database(PathBuf),
    /// A log, or a directory of logs.
    Log(PathBuf),
}

/// A place on the device where a file was.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sighting {
    place: Range,
    first: f64,
    last: f64,
    /// The file; `None` if it is not watched.
    file: Option<usize>,
    /// Whether ext4 reported that it put the file here at the time `first`, so that the file was not here
    /// before. Otherwise a look saw the file here.
    placed: bool,
}

struct Watched {
    path: PathBuf,
    class: Class,
    /// All ranges in which the last look found the file. The next field divides these ranges into pieces, and
    /// has for each piece the time when a look first saw the file there.
    latest: Vec<Range>,
    pieces: Vec<(Range, f64)>,
    seen: f64,
}

/// The watched files and the places where they were.
pub struct Atlas {
    targets: Vec<Target>,
    /// The number of the file system's device. The next field is the file system's first byte on the whole
    /// device.
    number: u64,
    start: u64,
    files: Vec<Watched>,
    by_path: HashMap<PathBuf, usize>,
    /// For each inode, the files to which it belonged. Each file has the first and the last time at which a
    /// look saw it with this inode.
    inodes: HashMap<u64, Vec<(f64, f64, usize)>>,
    past: Vec<Sighting>,
    open: HashMap<(u64, u64), File>,
}

impl Atlas {
    pub fn new(targets: Vec<Target>, number: u64, start: u64) -> Self {
        Self {
            targets,
            number,
            start,
            files: Vec::new(),
            by_path: HashMap::new(),
            inodes: HashMap::new(),
            past: Vec::new(),
            open: HashMap::new(),
        }
    }

    /// Records where the files are at time `now`.
    pub fn look(&mut self, now: f64) {
        let there = self.glance(now);
        for index in 0..self.files.len() {
            let inode = there.iter().find(|(file, _)| *file == index).map(|(_, inode)| *inode);
            let places = inode.map_or_else(Vec::new, |inode| self.places(index, inode));
            self.note(index, places, now);
        }
        self.open.retain(|_, file| file.metadata().is_ok_and(|meta| meta.nlink() > 0));
    }

    /// Records which files exist, and which inodes they have. Opens no file. Returns the files that have
    /// blocks, with their inodes.
    pub fn glance(&mut self, now: f64) -> Vec<(usize, u64)> {
        let mut there = Vec::new();
        let found: Vec<(PathBuf, Class)> = self.targets.iter().flat_map(files_of).collect();
        for (path, class) in found {
            // Leaves out a file on another file system, because its addresses belong to another device.
            let Ok(meta) = fs::metadata(&path) else { continue };
            if !meta.is_file() || meta.dev() != self.number {
                continue;
            }
            let next = self.files.len();
            let index = *self.by_path.entry(path.clone()).or_insert(next);
            if index == next {
                let (latest, pieces) = (Vec::new(), Vec::new());
                self.files.push(Watched { path, class, latest, pieces, seen: now });
            }
            let owners = self.inodes.entry(meta.ino()).or_default();
            match owners.last_mut() {
                Some((_, last, file)) if *file == index => *last = now,
                _ => owners.push((now, now, index)),
            }
            if meta.blocks() > 0 {
                there.push((index, meta.ino()));
            }
        }
        there
    }

    /// Returns the directories in which files appear and disappear.
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut directories: Vec<PathBuf> = self
            .targets
            .iter()
            .map(|target| match target {
                Target::Log(path) if path.is_dir() => path.clone(),
                Target::Database(path) | Target::Log(path) => directory_of(&resolve(path)).to_path_buf(),
            })
            .collect();
        directories.sort();
        directories.dedup();
        directories
    }

    /// Returns the ranges of the device in which a file lies; none if the file is gone.
    fn places(&mut self, index: usize, inode: u64) -> Vec<Range> {
        let Some(watched) = self.files.get(index) else { return Vec::new() };
        let found = if watched.class == Class::Database {
            let file = match self.open.entry((self.number, inode)) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(vacant) => match File::open(&watched.path) {
                    Ok(file) => vacant.insert(file),
                    Err(_) => return Vec::new(),
                },
            };
            extents(file, u64::MAX)
        } else {
            // Neither SQLite nor Duralite holds `fcntl` locks on logs, so closing the descriptor is harmless.
            File::open(&watched.path).ok().and_then(|file| extents(&file, u64::MAX))
        };
        let placed = found.unwrap_or_default().into_iter();
        let placed = placed.filter_map(|extent| extent.device_at.map(|at| (at, at + extent.len)));
        normalise(placed.map(|(from, to)| (from + self.start, to + self.start)).collect())
    }

    fn note(&mut self, index: usize, places: Vec<Range>, now: f64) {
        let Some(watched) = self.files.get_mut(index) else { return };
        if places != watched.latest {
            let last = watched.seen;
            let mut pieces = Vec::new();
            for (piece, first) in &watched.pieces {
                pieces.extend(common(*piece, &places).into_iter().map(|place| (place, *first)));
                let gone = without(*piece, &places).into_iter();
                let file = Some(index);
                self.past.extend(gone.map(|place| Sighting {
                    place,
                    first: *first,
                    last,
                    file,
                    placed: false,
                }));
            }
            let added = places.iter().flat_map(|place| without(*place, &watched.latest));
            pieces.extend(added.map(|place| (place, now)));
            watched.pieces = pieces;
            watched.latest = places;
        }
        watched.seen = now;
    }

    /// Ends the recording, and returns the map. `journal` is the place of the file system's journal.
    /// `mappings` are the places that ext4 reported, in blocks of `block` bytes.
    pub fn finish(mut self, journal: &[Range], mappings: &[Mapping], block: u64) -> Map {
        for (file, watched) in self.files.iter().enumerate() {
            let (last, file) = (watched.seen, Some(file));
            let pieces = watched.pieces.iter();
            self.past.extend(pieces.map(|(place, first)| Sighting {
                place: *place,
                first: *first,
                last,
                file,
                placed: false,
            }));
        }
        for mapping in mappings {
            let at = self.start.saturating_add(mapping.block.saturating_mul(block));
            let place = (at, at.saturating_add(mapping.blocks.saturating_mul(block)));
            let first = mapping.seconds;
            let file = self.owner(mapping.inode, first);
            self.past.push(Sighting { place, first, last: first, file, placed: true });
        }
        let files = std::mem::take(&mut self.files).into_iter().map(|watched| (watched.path, watched.class));
        Map::new(files.collect(), std::mem::take(&mut self.past), journal.to_vec())
    }

    /// Returns the file to which the inode belonged at this time.
    fn owner(&self, inode: u64, seconds: f64) -> Option<usize> {
        let owners = self.inodes.get(&inode)?.iter();
        let near = owners.map(|(first, last, file)| (distance(*first, *last, seconds), *file));
        let nearest = near.filter(|(far, _)| *far <= NEAR).min_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map(|(_, file)| file)
    }
}

impl Drop for Atlas {
    fn drop(&mut self) {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(std::mem::take(&mut self.open).into_values());
        kept.retain(|file| file.metadata().is_ok_and(|meta| descriptors((meta.dev(), meta.ino())) > 1));
    }
}

/// Returns the number of descriptors of this process that refer to a file.
fn descriptors(file: (u64, u64)) -> usize {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return usize::MAX };
    let names = entries.filter_map(Result::ok).filter_map(|entry| fs::metadata(entry.path()).ok());
    names.filter(|meta| (meta.dev(), meta.ino()) == file).count()
}

/// Returns the files to watch for a target.
fn files_of(target: &Target) -> Vec<(PathBuf, Class)> {
    match target {
        Target::Log(path) if path.is_dir() => logs_in(path, |_| true),
        Target::Log(path) => vec![(resolve(path), Class::Log)],
        Target::Database(path) => {
            let path = resolve(path);
            let beside = |end: &str| {
                let mut name = path.as_os_str().to_owned();
                name.push(end);
                PathBuf::from(name)
            };
            let mut files = vec![
                (path.clone(), Class::Database),
                (beside("-wal"), Class::Log),
                (beside("-journal"), Class::Log),
            ];
            let own = beside("-duralite");
            let own = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.extend(logs_in(directory_of(&path), |name| name.starts_with(&own)));
            files
        }
    }
}

/// Returns the logs in a directory. The tracer never watches shared memory, because SQLite holds locks on it.
/// Writes of shared memory to the device count as `other`.
fn logs_in(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<(PathBuf, Class)> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        wanted(&name) && !name.ends_with("-shm")
    });
    names.map(|entry| (entry.path(), Class::Log)).collect()
}

/// Resolves symbolic links of a file that need not exist yet. SQLite follows links too, and creates its files
/// beside the target.
fn resolve(path: &Path) -> PathBuf {
    let in_directory = || Some(fs::canonicalize(directory_of(path)).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(in_directory).unwrap_or_else(|| path.to_path_buf())
}

/// Returns the directory of a file that exists or that a program will create.
pub fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The places of all files over the whole trace.
pub struct Map {
    pub files: Vec<(PathBuf, Class)>,
    /// The sightings, sorted by their first byte. Each is paired with the largest end among it and all
    /// earlier sightings, so that a search knows where to stop.
    sightings: Vec<(Sighting, u64)>,
    journal: Vec<Range>,
}

/// A part of a request whose bytes have the same owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub bytes: u64,
    /// The class of these bytes; `None` if no file or journal is known to have them.
    pub class: Option<Class>,
    pub file: Option<usize>,
}

impl Map {
    fn new(files: Vec<(PathBuf, Class)>, mut sightings: Vec<Sighting>, journal: Vec<Range>) -> Self {
        sightings.sort_by_key(|sighting| sighting.place);
        let mut end = 0;
        let sightings = sightings.into_iter().map(|sighting| {
            end = end.max(sighting.place.1);
            (sighting, end)
        });
        Self { files, sightings: sightings.collect(), journal }
    }

    #[cfg(test)]
    pub fn for_test(places: &[(u64, u64, Class)], journal: &[Range]) -> Self {
        let files = places.iter().map(|(from, _, class)| (PathBuf::from(from.to_string()), *class));
        let sightings = places.iter().enumerate().map(|(file, (from, to, _))| Sighting {
            place: (*from, *to),
            first: 0.0,
            last: f64::INFINITY,
            file: Some(file),
            placed: false,
        });
        Self::new(files.collect(), sightings.collect(), journal.to_vec())
    }

    /// Divides a request into parts, each with one owner at the time of the request.
    pub fn parts(&self, range: Range, seconds: f64) -> Vec<Part> {
        let before = self.sightings.partition_point(|(sighting, _)| sighting.place.0 < range.1);
        let reaching = self.sightings[..before].iter().rev().take_while(|(_, end)| *end > range.0);
        let here: Vec<&Sighting> =
            reaching.map(|(sighting, _)| sighting).filter(|sighting| sighting.place.1 > range.0).collect();
        let journal = common(range, &self.journal);
        let mut cuts: Vec<u64> = vec![range.0, range.1];
        let edges = here.iter().map(|sighting| sighting.place).chain(journal.iter().copied());
        cuts.extend(edges.flat_map(|(from, to)| [from, to]).filter(|at| range.0 < *at && *at < range.1));
        cuts.sort_unstable();
        cuts.dedup();
        let mut parts: Vec<Part> = Vec::new();
        for (from, to) in cuts.iter().zip(cuts.iter().skip(1)) {
            let inside = |place: &Range| place.0 <= *from && *from < place.1;
            let file = owner_of(here.iter().filter(|sighting| inside(&sighting.place)), seconds);
            let class = match file {
                _ if journal.iter().any(inside) => Some(Class::Journal),
                Some(file) => self.files.get(file).map(|(_, class)| *class),
                None => None,
            };
            match parts.last_mut() {
                Some(last) if (last.class, last.file) == (class, file) => last.bytes += to - from,
                _ => parts.push(Part { bytes: to - from, class, file }),
            }
        }
        parts
    }
}

/// Chooses the owner of a place among the files that were seen there.
fn owner_of<'a>(seen: impl Iterator<Item = &'a &'a Sighting>, seconds: f64) -> Option<usize> {
    // The best choice is a file that a look saw there both before and after the time. The next best is the
    // file that ext4 put there most recently. After that comes the file that a look saw there closest in
    // time.
    let rank = |sighting: &Sighting| {
        let far = distance(sighting.first, sighting.last, seconds);
        match sighting.placed {
            true if sighting.first > seconds => None,
            true => Some((1, far)),
            false if far > 0.0 => Some((2, far)),
            false => Some((0, far)),
        }
    };
    let ranked = seen.filter_map(|sighting| rank(sighting).map(|rank| (rank, sighting.file)));
    let near = ranked.filter(|((_, far), _)| *far <= NEAR);
    near.min_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).and_then(|(_, file)| file)
}

/// Returns the seconds between a time and the period in which something was seen; 0 within the period.
fn distance(first: f64, last: f64, seconds: f64) -> f64 {
    (first - seconds).max(seconds - last).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn atlas() -> Atlas {
        let mut atlas = Atlas::new(Vec::new(), 0, 0);
        for (name, class) in [("x.db", Class::Database), ("x.db-wal", Class::Log)] {
            let (latest, pieces) = (Vec::new(), Vec::new());
            atlas.files.push(Watched { path: name.into(), class, latest, pieces, seen: 0.0 });
        }
        atlas
    }

    fn class_at(map: &Map, block: u64, seconds: f64) -> Option<Class> {
        map.parts((block * BLOCK, (block + 1) * BLOCK), seconds)[0].class
    }

    #[test]
    fn blocks_that_change_hands_belong_to_who_had_them_then() {
        let mut atlas = atlas();
        // A log in blocks 10..12 grows to 10..14, and is deleted. After that the database gets blocks 11..13.
        atlas.note(1, vec![(10 * BLOCK, 12 * BLOCK)], 1.0);
        atlas.note(1, vec![(10 * BLOCK, 14 * BLOCK)], 2.0);
        atlas.note(1, vec![(10 * BLOCK, 14 * BLOCK)], 3.0);
        atlas.note(1, vec![], 3.1);
        atlas.note(0, vec![(11 * BLOCK, 13 * BLOCK)], 3.2);
        atlas.note(0, vec![(11 * BLOCK, 13 * BLOCK)], 9.0);
        let map = atlas.finish(&[(0, 2 * BLOCK)], &[], BLOCK);
        assert_eq!(class_at(&map, 11, 1.5), Some(Class::Log));
        assert_eq!(class_at(&map, 13, 1.9), Some(Class::Log), "seen a moment later");
        assert_eq!(class_at(&map, 13, 0.5), None, "seen much later");
        assert_eq!(class_at(&map, 11, 3.0), Some(Class::Log));
        assert_eq!(class_at(&map, 11, 3.15), Some(Class::Database));
        assert_eq!(class_at(&map, 12, 8.0), Some(Class::Database));
        assert_eq!(class_at(&map, 10, 3.5), Some(Class::Log), "written just before it went");
        assert_eq!(class_at(&map, 10, 8.0), None, "long gone");
        assert_eq!(class_at(&map, 1, 8.0), Some(Class::Journal));
        assert_eq!(class_at(&map, 2, 8.0), None);
    }

    #[test]
    fn a_request_across_files_is_divided() {
        let mut atlas = atlas();
        atlas.note(0, vec![(8 * BLOCK, 10 * BLOCK)], 1.0);
        atlas.note(1, vec![(10 * BLOCK, 13 * BLOCK)], 1.0);
        let map = atlas.finish(&[], &[], BLOCK);
        let part = |blocks, class, file| Part { bytes: blocks * BLOCK, class, file };
        assert_eq!(
            map.parts((7 * BLOCK, 14 * BLOCK), 1.0),
            [
                part(1, None, None),
                part(2, Some(Class::Database), Some(0)),
                part(3, Some(Class::Log), Some(1)),
                part(1, None, None)
            ]
        );
    }

    #[test]
    fn a_file_that_no_look_met_is_known_by_its_inode() {
        let mut atlas = atlas();
        // The collector has seen the log's inode, but never its blocks. Inode 77 belongs to a file that is
        // not watched.
        atlas.inodes.insert(5, vec![(1.0, 2.0, 1)]);
        let mapping = |seconds, inode, block| Mapping { seconds, inode, block, blocks: 2 };
        atlas.note(0, vec![(20 * BLOCK, 22 * BLOCK)], 1.0);
        atlas.note(0, vec![(20 * BLOCK, 22 * BLOCK)], 1.2);
        atlas.note(0, vec![], 1.4);
        let mappings = [
            mapping(1.5, 5, 30),
            mapping(1.502, 77, 30),
            mapping(1.505, 5, 30),
            mapping(1.25, 5, 20),
            mapping(9.0, 5, 40),
        ];
        let map = atlas.finish(&[], &mappings, BLOCK);
        assert_eq!(class_at(&map, 31, 1.4999), None, "not placed yet");
        assert_eq!(class_at(&map, 31, 1.501), Some(Class::Log));
        assert_eq!(class_at(&map, 30, 1.503), None, "another file's for a while");
        assert_eq!(class_at(&map, 30, 1.6), Some(Class::Log));
        assert_eq!(class_at(&map, 20, 1.1), Some(Class::Database));
        assert_eq!(class_at(&map, 20, 1.21), Some(Class::Database), "before it was placed anew");
        assert_eq!(class_at(&map, 20, 1.26), Some(Class::Log));
        assert_eq!(class_at(&map, 40, 9.0), None, "the inode may be anybody's by then");
    }

    #[test]
    fn blocks_are_counted_from_where_the_partition_begins() {
        let mut atlas = Atlas::new(Vec::new(), 0, 7 * BLOCK);
        let (latest, pieces) = (Vec::new(), Vec::new());
        atlas.files.push(Watched { path: "x.db".into(), class: Class::Database, latest, pieces, seen: 0.0 });
        atlas.inodes.insert(5, vec![(1.0, 1.0, 0)]);
        let mapping = Mapping { seconds: 1.0, inode: 5, block: 3, blocks: 1 };
        let map = atlas.finish(&[], &[mapping], BLOCK);
        assert_eq!((class_at(&map, 10, 1.0), class_at(&map, 3, 1.0)), (Some(Class::Database), None));
    }

    #[test]
    fn files_beside_a_database_are_watched_too_and_shared_memory_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        for name in ["x.db", "x.db-duralite", "x.db-duralite-1-shm", "x.db-shm", "unrelated"] {
            fs::write(at(name), [1; 5000]).unwrap();
        }
        std::os::unix::fs::symlink(at("x.db"), at("link.db")).unwrap();
        let mut expected = vec![
            (at("x.db"), Class::Database),
            (at("x.db-wal"), Class::Log),
            (at("x.db-journal"), Class::Log),
            (at("x.db-duralite"), Class::Log),
        ];
        assert_eq!(files_of(&Target::Database(at("link.db"))), expected);
        let logs = files_of(&Target::Log(dir.path().to_path_buf()));
        assert!(logs.len() == 4 && logs.iter().all(|(_, class)| *class == Class::Log), "{logs:?}");
        let number = fs::metadata(at("x.db")).unwrap().dev();
        let mut atlas = Atlas::new(vec![Target::Database(at("x.db"))], number, 0);
        atlas.look(1.0);
        atlas.look(2.0);
        expected.retain(|(path, _)| path.exists());
        expected.sort();
        let mut files = atlas.finish(&[], &[], BLOCK).files;
        files.sort();
        assert_eq!(files, expected);
    }

    #[test]
    fn a_database_that_this_process_has_open_is_not_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        fs::write(&path, [1; 5000]).unwrap();
        let own = File::open(&path).unwrap();
        own.sync_all().unwrap();
        let meta = own.metadata().unwrap();
        let key = (meta.dev(), meta.ino());
        let mut atlas = Atlas::new(vec![Target::Database(path.clone())], meta.dev(), 0);
        atlas.look(1.0);
        atlas.look(2.0);
        assert_eq!(descriptors(key), 2, "looked at through one descriptor");
        drop(atlas);
        assert_eq!(descriptors(key), 2, "kept, with the locks");
        drop(own);
        drop(Atlas::new(Vec::new(), 0, 0));
        assert_eq!(descriptors(key), 0);
    }
}
