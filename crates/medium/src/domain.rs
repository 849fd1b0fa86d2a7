//! The point on its way to the memory that a store has to reach to survive a power loss. The platform reports
//! this point.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The point that a store has to reach to survive a power loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PersistenceDomain {
    /// The processor's caches: a store is durable without a flush.
    CpuCache,
    /// The memory controller: lines have to be flushed.
    MemoryController,
    /// The platform does not say, or the file system is not on persistent memory: lines have to be flushed.
    #[default]
    Unknown,
}

impl PersistenceDomain {
    /// Returns `"cpu_cache"`, `"memory_controller"` or `"unknown"`. The first two are the kernel's words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CpuCache => "cpu_cache",
            Self::MemoryController => "memory_controller",
            Self::Unknown => "unknown",
        }
    }
}

/// Returns the persistence domain of the memory that holds the file system of `dir`.
#[must_use]
pub fn persistence_domain(dir: &Path) -> PersistenceDomain {
    fs::metadata(dir).map_or(PersistenceDomain::Unknown, |metadata| {
        let device = metadata.dev();
        of_device(Path::new("/sys"), rustix::fs::major(device), rustix::fs::minor(device))
    })
}

/// Returns the persistence domain of a block device, as reported by the sysfs that is mounted at `sysfs`. A
/// partition or a namespace is a directory below its region
/// (`/sys/devices/.../regionN/namespaceN.M/block/pmemN`). A device-mapper device has the domain of the least
/// safe of its parts.
fn of_device(sysfs: &Path, major: u32, minor: u32) -> PersistenceDomain {
    let device = sysfs.join(format!("dev/block/{major}:{minor}"));
    fs::canonicalize(device).map_or(PersistenceDomain::Unknown, |device| of_block(&device))
}

fn of_block(device: &Path) -> PersistenceDomain {
    let below: Vec<PathBuf> = fs::read_dir(device.join("slaves"))
        .map(|entries| entries.flatten().filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect())
        .unwrap_or_default();
    if below.is_empty() {
        return of_region(device);
    }
    // This recursion ends, because no device-mapper device contains itself.
    let domains = below.iter().map(|device| of_block(device));
    domains.reduce(least).unwrap_or_default()
}

fn least(one: PersistenceDomain, other: PersistenceDomain) -> PersistenceDomain {
    use PersistenceDomain::{CpuCache, MemoryController, Unknown};
    match (one, other) {
        (CpuCache, CpuCache) => CpuCache,
        (Unknown, _) | (_, Unknown) => Unknown,
        _ => MemoryController,
    }
}

fn of_region(device: &Path) -> PersistenceDomain {
    let is_region =
        |path: &&Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"region"));
    let Some(region) = device.ancestors().find(is_region) else { return PersistenceDomain::Unknown };
    match fs::read_to_string(region.join("persistence_domain")).as_deref().map(str::trim) {
        Ok("cpu_cache") => PersistenceDomain::CpuCache,
        Ok("memory_controller") => PersistenceDomain::MemoryController,
        _ => PersistenceDomain::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a sysfs with two namespaces (each in a region of its own), a partition, and a device-mapper
    /// device on top of the devices `mapped_to`.
    fn sysfs(domains: [&str; 2], mapped_to: &[usize]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let block = sys.path().join("dev/block");
        fs::create_dir_all(&block).unwrap();
        for (nth, domain) in domains.iter().enumerate() {
            let region = sys.path().join(format!("devices/ndbus0/region{nth}"));
            let device = region.join(format!("namespace{nth}.0/block/pmem{nth}"));
            fs::create_dir_all(device.join("part")).unwrap();
            fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
            symlink(&device, block.join(format!("259:{nth}"))).unwrap();
            symlink(device.join("part"), block.join(format!("259:1{nth}"))).unwrap();
        }
        let mapper = sys.path().join("devices/virtual/block/dm-0");
        fs::create_dir_all(mapper.join("slaves")).unwrap();
        for nth in mapped_to {
            symlink(block.join(format!("259:{nth}")), mapper.join(format!("slaves/pmem{nth}"))).unwrap();
        }
        symlink(mapper, block.join("253:0")).unwrap();
        sys
    }

    #[test]
    fn the_region_above_a_device_says_its_domain() {
        use PersistenceDomain::{CpuCache, MemoryController, Unknown};
        let sys = sysfs(["cpu_cache", "memory_controller"], &[]);
        let found = [(259, 0), (259, 1), (259, 10), (259, 11), (8, 1), (253, 0)]
            .map(|(major, minor)| of_device(sys.path(), major, minor));
        assert_eq!(found, [CpuCache, MemoryController, CpuCache, MemoryController, Unknown, Unknown]);
        assert_eq!(of_device(sysfs(["new", ""], &[]).path(), 259, 0), Unknown);
    }

    #[test]
    fn a_mapped_device_is_as_safe_as_its_parts() {
        use PersistenceDomain::{CpuCache, MemoryController, Unknown};
        let of = |domains| of_device(sysfs(domains, &[0, 1]).path(), 253, 0);
        assert_eq!(of(["cpu_cache", "cpu_cache"]), CpuCache);
        assert_eq!(of(["cpu_cache", "memory_controller"]), MemoryController);
        assert_eq!(of(["cpu_cache", "?"]), Unknown);
        assert_eq!(persistence_domain(Path::new("/nowhere")), Unknown);
        assert_eq!(CpuCache.as_str(), "cpu_cache");
    }
}
