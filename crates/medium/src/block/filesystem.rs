//! What is known of the file system that a log is on.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use crate::MediumError;

/// File systems on which shared memory or locks do not reach every machine or process that has the
/// file, by the names in `/proc/self/mountinfo`.
const REFUSED: [&str; 12] =
    ["nfs", "nfs4", "9p", "virtiofs", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "ncpfs", "coda"];
/// File systems that lose everything with the power.
const VOLATILE: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];

/// The file system of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its name, as mounts are listed by.
    pub name: String,
    /// Whether it is in memory only.
    pub volatile: bool,
}

/// Finds the file system of an existing path, and refuses those known to break a write-ahead log.
///
/// # Errors
/// [`MediumError::FileSystem`] for one of those; an error of the system.
pub fn check_filesystem(path: &Path) -> Result<FileSystem, MediumError> {
    let failed = |error: &std::io::Error| {
        MediumError::from_errno("stat", Errno::from_io_error(error).unwrap_or(Errno::IO))
    };
    let device = fs::metadata(path).map_err(|error| failed(&error))?.st_dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // Without /proc nothing is known, and nothing refused.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let name = name_of(&mounts, &device).unwrap_or("unknown").to_owned();
    if REFUSED.contains(&name.as_str()) {
        return Err(MediumError::FileSystem { path: path.to_owned(), name });
    }
    let volatile = VOLATILE.contains(&name.as_str());
    Ok(FileSystem { name, volatile })
}

/// The type of the mounted file system with this device number. A line is
/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn name_of<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        (head.split(' ').nth(2)? == device).then(|| tail.split(' ').next())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_device() {
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      23 22 0:21 / /proc rw shared:2 - proc proc rw\n\
                      40 22 0:44 / /data rw shared:3 master:1 - virtiofs share rw\n\
                      broken line\n";
        assert_eq!(name_of(mounts, "254:0"), Some("ext4"));
        assert_eq!(name_of(mounts, "0:44"), Some("virtiofs"));
        assert_eq!(name_of(mounts, "0:99"), None);
        assert!(REFUSED.contains(&"virtiofs"));
    }

    #[test]
    fn shared_memory_is_volatile() {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() && Path::new("/proc/self/mountinfo").exists() {
            assert!(check_filesystem(shm).unwrap().volatile);
        }
        assert!(check_filesystem(Path::new("/does/not/exist")).is_err());
    }
}
