//! How a device makes a write with [`Durability::Fua`](super::Durability::Fua) durable.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::sysfs;

/// What makes a write with the flag `RWF_DSYNC` durable. With this flag, a write is durable when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fua {
    /// The write bypasses the device's cache (forced unit access, FUA). No flush is needed.
    Device,
    /// The device has no FUA. So the kernel emulates it: after the write it flushes the device's whole cache,
    /// as with [`Durability::Full`](super::Durability::Full).
    Flush,
    /// The device has no cache that a power loss could empty, so every write is durable.
    NoCache,
}

impl Fua {
    /// Returns what makes a write with `RWF_DSYNC` durable on a device, judging by the files `fua` and
    /// `write_cache` of the device's queue. Returns `None` if the two files do not say that.
    #[must_use]
    pub fn of_queue(fua: Option<&str>, write_cache: Option<&str>) -> Option<Self> {
        match (write_cache?.trim(), fua?.trim()) {
            ("write through", _) => Some(Self::NoCache),
            ("write back", "1") => Some(Self::Device),
            ("write back", "0") => Some(Self::Flush),
            _ => None,
        }
    }

    /// Returns a phrase for people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Device => "by the device itself",
            Self::Flush => "emulated by a write and a flush",
            Self::NoCache => "by any write: the device has no write cache",
        }
    }

    pub(super) fn of_device(device: u64) -> Option<Self> {
        let read = |name: &str| sysfs::read(device, name);
        Self::of_queue(read("queue/fua").as_deref(), read("queue/write_cache").as_deref())
    }
}

/// Returns how the device that holds a directory makes a write with `RWF_DSYNC` durable, if the file system
/// has direct I/O. Returns `None` if that is not known, for example because the file system has no block
/// device of its own.
#[must_use]
pub fn fua(dir: &Path) -> Option<Fua> {
    Fua::of_device(fs::metadata(dir).ok()?.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_says_so_has_fua() {
        let of = |fua, cache| Fua::of_queue(Some(fua), Some(cache));
        assert_eq!(of("1\n", "write back\n"), Some(Fua::Device));
        assert_eq!(of("0\n", "write back\n"), Some(Fua::Flush));
        assert_eq!(of("0\n", "write through\n"), Some(Fua::NoCache));
        assert_eq!(of("1\n", "write through\n"), Some(Fua::NoCache));
        assert_eq!(of("0\n", "unheard of\n"), None);
        assert_eq!((Fua::of_queue(None, Some("write back")), Fua::of_queue(Some("1"), None)), (None, None));
        // A file system in memory has a device, but no disk.
        assert_eq!(Fua::of_device(rustix::fs::makedev(0, 1)), None);
        assert_eq!(fua(Path::new("/does/not/exist")), None);
    }
}
