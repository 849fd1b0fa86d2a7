//! What is known of the file system that a log is on.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statx};
use rustix::io::Errno;

use crate::MediumError;

/// File systems on which shared memory or locks do not reach every machine or process that has the
/// file, by the names in `/proc/self/mountinfo`.
const REFUSED: [&str; 12] =
    ["nfs", "nfs4", "9p", "virtiofs", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "ncpfs", "coda"];
/// File systems that lose everything with the power.
const VOLATILE: [&str; 4] = ["tmpfs", "ramfs", "devtmpfs", "rootfs"];
/// The types that `statfs` gives those that have one of their own, for when no mount is listed.
const TYPES: [(u32, &str); 11] = [
    (0x6969, "nfs"),
    (0x0102_1997, "9p"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb3"),
    (0x517B, "smbfs"),
    (0x5346_414F, "afs"),
    (0x00C3_6400, "ceph"),
    (0x564C, "ncpfs"),
    (0x7375_7245, "coda"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
];

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
/// The list of mounts tells virtiofs from other FUSE file systems, which `statfs` does not. Where
/// it cannot be read, or has no entry for the path, the type that `statfs` gives decides, and what
/// that does not tell is let pass.
///
/// # Errors
/// [`MediumError::FileSystem`] for one of those; an error of the system.
pub fn check_filesystem(path: &Path) -> Result<FileSystem, MediumError> {
    let failed = |error: std::io::Error| {
        MediumError::from_errno("stat", Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let device = fs::metadata(path).map_err(failed)?.st_dev();
    // The type's width differs between machines; no type needs more than 32 bits.
    let kind = statfs(path).map_err(|errno| MediumError::from_errno("statfs", errno))?.f_type as u32;
    let mount = Mount { id: mount_id(path), device, kind };
    // Reading the list of mounts takes longer than the rest of an open. Only FUSE has file systems that
    // differ under one type.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = known.iter().find(|(other, _)| *other == mount && kind != FUSE) {
        return Ok(found.clone());
    }
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = judge(path, name_of(&mounts, mount.id, &device), kind)?;
    known.truncate(KNOWN_MOUNTS - 1);
    known.insert(0, (mount, found.clone()));
    Ok(found)
}

/// A mount, as far as what is found out about it can be remembered.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mount {
    id: Option<u64>,
    device: u64,
    kind: u32,
}

/// The mounts that were asked for last, newest first.
static KNOWN: Mutex<Vec<(Mount, FileSystem)>> = Mutex::new(Vec::new());
const KNOWN_MOUNTS: usize = 16;
/// What `statfs` says of anything in user space.
const FUSE: u32 = 0x6573_5546;

/// The mount that a path is in; `None` on kernels before 5.8.
fn mount_id(path: &Path) -> Option<u64> {
    let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

/// What follows from a file system's name in the list of mounts and its type.
fn judge(path: &Path, listed: Option<&str>, kind: u32) -> Result<FileSystem, MediumError> {
    let typed = TYPES.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
    let among = |names: &[&str]| listed.or(typed).is_some_and(|name| names.contains(&name));
    let name = listed.or(typed).unwrap_or("unknown").to_owned();
    if among(&REFUSED) {
        return Err(MediumError::FileSystem { path: path.to_owned(), name });
    }
    Ok(FileSystem { name, volatile: among(&VOLATILE) })
}

/// The type of a mounted file system, by the mount's number, else by its device: the files of some
/// file systems have another device than their mount. A line is
/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn name_of<'a>(mounts: &'a str, mount: Option<u64>, device: &str) -> Option<&'a str> {
    let entries = || {
        mounts.lines().filter_map(|line| {
            let (head, tail) = line.split_once(" - ")?;
            let mut head = head.split(' ');
            Some((head.next()?.parse::<u64>().ok()?, head.nth(1)?, tail.split(' ').next()?))
        })
    };
    let by_mount = mount.and_then(|mount| entries().find(|entry| entry.0 == mount));
    by_mount.or_else(|| entries().find(|entry| entry.1 == device)).map(|entry| entry.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                          23 22 0:21 / /proc rw shared:2 - proc proc rw\n\
                          broken line\n\
                          x y - z\n\
                          40 22 0:44 / /data rw shared:3 master:1 - virtiofs share rw\n\
                          41 22 0:45 /@home /with\\040space rw - btrfs /dev/vdb rw,subvol=/@home\n\
                          42 22 0:46 / /ssh rw,nosuid - fuse.sshfs host:/ rw\n\
                          43 22 0:47 / /ntfs rw,nosuid - fuseblk /dev/vdc rw\n\
                          44 22 0:48 / /net rw - nfs4 server:/export rw\n";

    #[test]
    fn mounts_are_found_by_device() {
        assert_eq!(name_of(MOUNTS, None, "254:0"), Some("ext4"));
        assert_eq!(name_of(MOUNTS, None, "0:44"), Some("virtiofs"));
        assert_eq!(name_of(MOUNTS, None, "0:99"), None);
        assert_eq!(name_of("", None, "254:0"), None);
    }

    #[test]
    fn mounts_are_found_by_number_first() {
        // A file of a btrfs subvolume has a device that no mount has.
        assert_eq!(name_of(MOUNTS, Some(41), "0:60"), Some("btrfs"));
        assert_eq!(name_of(MOUNTS, Some(40), "254:0"), Some("virtiofs"));
        assert_eq!(name_of(MOUNTS, Some(99), "254:0"), Some("ext4"), "a mount of another namespace");
        assert_eq!(name_of(MOUNTS, Some(99), "0:99"), None);
    }

    #[test]
    fn file_systems_of_others_are_refused_by_name_or_type() {
        const EXT4: u32 = 0xEF53;
        let judged = |mount, kind| judge(Path::new("/d"), name_of(MOUNTS, mount, "-"), kind);
        for (mount, kind, name) in [
            (Some(40), FUSE, "virtiofs"),
            (Some(42), FUSE, "fuse.sshfs"),
            (Some(44), 0x6969, "nfs4"),
            (None, 0x6969, "nfs"),
            (None, 0x0102_1997, "9p"),
            (None, 0xFF53_4D42, "cifs"),
            (None, 0xFE53_4D42, "smb3"),
        ] {
            let refused = judged(mount, kind).unwrap_err();
            assert_eq!(refused, MediumError::FileSystem { path: "/d".into(), name: name.into() });
            let text = refused.to_string();
            assert!(text.contains(name) && text.contains("/d") && text.contains("local"), "{text}");
        }
        for (mount, kind, name, volatile) in [
            (Some(22), EXT4, "ext4", false),
            (Some(41), 0x9123_683E, "btrfs", false),
            (Some(43), FUSE, "fuseblk", false),
            (None, FUSE, "unknown", false),
            (None, EXT4, "unknown", false),
            (None, 0x0102_1994, "tmpfs", true),
            (None, 0x8584_58F6, "ramfs", true),
        ] {
            assert_eq!(judged(mount, kind), Ok(FileSystem { name: name.into(), volatile }));
        }
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
