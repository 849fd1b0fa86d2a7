//! Where the files of a database are on their device.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use duralite_medium::block::extents;

use crate::{Class, directory_of};

/// A block device, and where on it the file system begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Of the whole device, not the partition: requests name that.
    pub major: u32,
    pub minor: u32,
    /// First byte of the file system.
    start: u64,
}

impl Device {
    /// The device of the file system that a directory is on.
    pub fn of(dir: &Path) -> Result<Self> {
        let number = fs::metadata(dir).with_context(|| format!("cannot examine {}", dir.display()))?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if !sys.exists() {
            bail!("{} is on no block device (memory, network or overlay): nothing to trace", dir.display());
        }
        let read = |name: &str| fs::read_to_string(sys.join(name)).map(|text| text.trim().to_owned());
        if !sys.join("partition").exists() {
            return Ok(Self { major, minor, start: 0 });
        }
        let start = read("start")?.parse::<u64>().context("the partition's start")? * 512;
        let whole = read("../dev")?;
        let (major, minor) = whole.split_once(':').context("the disk of a partition")?;
        Ok(Self { major: major.parse()?, minor: minor.parse()?, start })
    }
}

/// The extents of the watched files, as far as they were ever seen.
pub struct Watched {
    databases: Vec<PathBuf>,
    start: u64,
    /// By first byte on the device: the end, and what it is. A place that changed hands belongs to
    /// who had it last.
    places: BTreeMap<u64, (u64, Class)>,
}

impl Watched {
    pub fn new(databases: &[PathBuf], device: &Device) -> Self {
        Self { databases: databases.to_vec(), start: device.start, places: BTreeMap::new() }
    }

    /// Looks where the files are now.
    pub fn look(&mut self) {
        for (path, class) in self.databases.iter().flat_map(|database| files_of(database)) {
            let Ok(file) = File::open(&path) else { continue };
            let Ok(length) = file.metadata().map(|meta| meta.len()) else { continue };
            for extent in extents(&file, length.next_multiple_of(4096)).unwrap_or_default() {
                let from = self.start + extent.device_at;
                self.places.insert(from, (from + extent.len, class));
            }
        }
    }

    /// What is at a byte of the device.
    pub fn class_of(&self, offset: u64) -> Option<Class> {
        let (_, (end, class)) = self.places.range(..=offset).next_back()?;
        (offset < *end).then_some(*class)
    }
}

/// The database and what stands beside it.
fn files_of(database: &Path) -> Vec<(PathBuf, Class)> {
    let beside = |end: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let mut files = vec![
        (database.to_path_buf(), Class::Database),
        (beside("-wal"), Class::Log),
        (beside("-journal"), Class::Log),
        (beside("-shm"), Class::Other),
    ];
    let entries = fs::read_dir(directory_of(database)).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("duralite-") {
            let class = if name.ends_with(".shm") { Class::Other } else { Class::Log };
            files.push((path, class));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_belong_to_the_extent_around_them() {
        let mut watched = Watched { databases: Vec::new(), start: 0, places: BTreeMap::new() };
        watched.places.insert(4096, (8192, Class::Log));
        watched.places.insert(8192, (12288, Class::Database));
        let classes = [0, 4096, 8191, 8192, 12287, 12288].map(|at| watched.class_of(at));
        let (log, database) = (Some(Class::Log), Some(Class::Database));
        assert_eq!(classes, [None, log, log, database, database, None]);
    }

    #[test]
    fn memory_is_no_block_device() {
        if Path::new("/dev/shm").is_dir() {
            let error = Device::of(Path::new("/dev/shm")).unwrap_err().to_string();
            assert!(error.contains("no block device"), "{error}");
        }
    }
}
