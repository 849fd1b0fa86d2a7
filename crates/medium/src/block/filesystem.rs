//! What is known about the file system that holds a log.

use std::ffi::OsString;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statx};
use rustix::io::Errno;

use crate::MediumError;

/// File systems on which two processes, perhaps on two machines, may open the same file but not share its
/// locks or its memory mappings. The names are those in `/proc/self/mountinfo`.
const REFUSED: [&str; 12] =
    ["nfs", "nfs4", "9p", "virtiofs", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "ncpfs", "coda"];
/// File systems that lose everything at a power loss.
const VOLATILE: [&str; 4] = ["tmpfs", "ramfs", "devtmpfs", "rootfs"];
/// Mount options with which a sync does nothing, each with the type of its file system.
const WITHOUT_SYNC: [(&str, &str); 2] = [("overlay", "volatile"), ("overlay", "fsync=volatile")];
/// Mount options (of any file system) with which a sync returns while the data is still in the disk's cache.
const WITHOUT_BARRIER: [&str; 4] = ["nobarrier", "barrier=0", "barrier=none", "fsync_mode=nobarrier"];
/// The types that `statfs` reports, as far as each stands for only one file system. This list is used only if
/// the list of mounts has no entry for the path.
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
    /// The file system's name in the list of mounts.
    pub name: String,
    /// Whether the file system is in memory only.
    pub volatile: bool,
    /// The reason, in words, why synced data does not survive a power loss on this file system; `None` if no
    /// reason is known. There may be a reason that this library cannot know: the disk may report a flush that
    /// it has not made, or the file system may be inside a file of another file system.
    pub unsynced: Option<String>,
}

/// Finds the file system of an existing path, and refuses file systems that are known to break a write-ahead
/// log.
///
/// This function reads the list of mounts, because the list distinguishes virtiofs from other FUSE file
/// systems, and `statfs` does not. If the list cannot be read, or has no entry for the path, the type that
/// `statfs` reports decides. An unknown type is accepted.
///
/// # Errors
/// [`MediumError::FileSystem`] for a refused file system; an error of the system.
pub fn check_filesystem(path: &Path) -> Result<FileSystem, MediumError> {
    let failed = |error: std::io::Error| {
        MediumError::from_errno("stat", Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let device = fs::metadata(path).map_err(failed)?.st_dev();
    // The width of the type differs between machines, but no type needs more than 32 bits.
    let kind = statfs(path).map_err(|errno| MediumError::from_errno("statfs", errno))?.f_type as u32;
    let mount = Mount { id: mount_id(path), unique: unique_mount_id(path), device, kind };
    // If an earlier call has examined this mount, use its result, because reading the list of mounts takes
    // longer than everything else that an open does. But if the type is FUSE, always read the list, because
    // different file systems have that type.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = known.iter().find(|(other, _)| *other == mount && kind != FUSE) {
        return Ok(found.clone());
    }
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = judge(path, find(&mounts, mount.id, &device, path), kind)?;
    known.truncate(KNOWN_MOUNTS - 1);
    known.insert(0, (mount, found.clone()));
    Ok(found)
}

/// The identity of a mount. [`KNOWN`] remembers what was found out about the file systems of recent mounts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mount {
    id: Option<u64>,
    /// A number that no other mount ever gets. The `id` and `device` would not be enough, because a later
    /// mount may get the `id` and `device` of a mount that is gone.
    unique: Option<u64>,
    device: u64,
    kind: u32,
}

/// The mounts that were looked up last, newest first.
static KNOWN: Mutex<Vec<(Mount, FileSystem)>> = Mutex::new(Vec::new());
const KNOWN_MOUNTS: usize = 16;
/// The type that `statfs` reports for every file system in user space.
const FUSE: u32 = 0x6573_5546;

/// Returns the number of the mount that a path is in, or `None` on kernels before 5.8.
fn mount_id(path: &Path) -> Option<u64> {
    let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Returns a number of this mount that no other mount has had since the system started. Returns `None` on
/// kernels before 6.8.
fn unique_mount_id(path: &Path) -> Option<u64> {
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let stat = statx(CWD, path, AtFlags::empty(), MNT_ID_UNIQUE).ok()?;
    (stat.stx_mask & MNT_ID_UNIQUE.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Judges a file system by its entry in the list of mounts and the type that `statfs` reports.
fn judge(path: &Path, listed: Option<Listed<'_>>, kind: u32) -> Result<FileSystem, MediumError> {
    let typed = TYPES.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
    let known = listed.map(|mount| mount.kind).or(typed);
    let among = |names: &[&str]| known.is_some_and(|name| names.contains(&name));
    let name = known.unwrap_or("unknown").to_owned();
    if among(&REFUSED) {
        return Err(MediumError::FileSystem { path: path.to_owned(), name });
    }
    let volatile = among(&VOLATILE);
    let unsynced = if volatile {
        Some(format!("{name} is in memory only"))
    } else {
        listed.and_then(|mount| why_unsynced(&name, mount.options))
    };
    Ok(FileSystem { name, volatile, unsynced })
}

/// Returns in words why a sync does not suffice on a file system with these options.
fn why_unsynced(name: &str, options: &str) -> Option<String> {
    options.split(',').find_map(|option| {
        let what = if WITHOUT_SYNC.contains(&(name, option)) {
            "a sync does nothing there"
        } else if WITHOUT_BARRIER.contains(&option) {
            "a sync leaves the data in the disk's cache"
        } else {
            return None;
        };
        Some(format!("{name} is mounted with {option}: {what}"))
    })
}

/// The fields that this module uses of a line in the list of mounts. An example of a line:
/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed<'a> {
    number: u64,
    device: &'a str,
    /// The directory at which the file system is mounted, with blanks and similar characters in octal
    /// (`\040`).
    point: &'a str,
    kind: &'a str,
    /// The options of the file system, which all its mounts share.
    options: &'a str,
}

impl<'a> Listed<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (head, tail) = line.split_once(" - ")?;
        let (mut head, mut tail) = (head.split(' '), tail.split(' '));
        let (number, device) = (head.next()?.parse().ok()?, head.nth(1)?);
        let point = head.nth(1)?;
        let kind = tail.next()?;
        Some(Self { number, device, point, kind, options: tail.nth(1).unwrap_or_default() })
    }

    fn point(&self) -> PathBuf {
        let mut bytes = Vec::new();
        let mut rest = self.point.as_bytes();
        while let [byte, after @ ..] = rest {
            let digits = after.get(..3).filter(|_| *byte == b'\\');
            let code = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
            bytes.push(code.unwrap_or(*byte));
            rest = if code.is_some() { &after[3..] } else { after };
        }
        PathBuf::from(OsString::from_vec(bytes))
    }
}

/// Finds the mount of a path by the mount's number, else by its device, else by the path itself. The path is
/// the last resort, because on some file systems a file has another device number than its mount.
fn find<'a>(mounts: &'a str, mount: Option<u64>, device: &str, path: &Path) -> Option<Listed<'a>> {
    let entries = || mounts.lines().filter_map(Listed::parse);
    let by_mount = mount.and_then(|mount| entries().find(|entry| entry.number == mount));
    by_mount.or_else(|| entries().find(|entry| entry.device == device)).or_else(|| {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        // Of several mounts at the same place, the last one is on top.
        let above = entries().filter(|entry| path.starts_with(entry.point()));
        above.max_by_key(|entry| entry.point().as_os_str().len())
    })
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

    fn name_of(mount: Option<u64>, device: &str) -> Option<&'static str> {
        find(MOUNTS, mount, device, Path::new("relative")).map(|mount| mount.kind)
    }

    #[test]
    fn mounts_are_found_by_device() {
        assert_eq!(name_of(None, "254:0"), Some("ext4"));
        assert_eq!(name_of(None, "0:44"), Some("virtiofs"));
        assert_eq!(name_of(None, "0:99"), None);
        assert_eq!(find("", None, "254:0", Path::new("/")), None);
    }

    #[test]
    fn mounts_are_found_by_number_first() {
        // A file of a btrfs subvolume has a device number that no mount has.
        assert_eq!(name_of(Some(41), "0:60"), Some("btrfs"));
        assert_eq!(name_of(Some(40), "254:0"), Some("virtiofs"));
        assert_eq!(name_of(Some(99), "254:0"), Some("ext4"), "a mount of another namespace");
        assert_eq!(name_of(Some(99), "0:99"), None);
    }

    #[test]
    fn mounts_are_found_by_the_longest_path_last() {
        const MORE: &str = "50 22 0:50 / /with\\040space/low rw - tmpfs a rw\n\
                            51 22 0:51 / /with\\040space/low rw - overlay b rw,fsync=volatile\n\
                            52 22 0:52 / /back\\134slash rw - xfs c rw\n";
        let mounts = format!("{MOUNTS}{MORE}");
        let of = |path: &str| find(&mounts, None, "-", Path::new(path)).map(|mount| mount.kind);
        assert_eq!(of("/does/not/exist"), Some("ext4"));
        assert_eq!(of("/with space/file"), Some("btrfs"));
        assert_eq!(of("/with spaces/file"), Some("ext4"));
        assert_eq!(of("/with space/lower"), Some("btrfs"));
        assert_eq!(of("/with space/low/er"), Some("overlay"), "the one on top");
        assert_eq!(of("/back\\slash/x"), Some("xfs"));
        assert_eq!(of("relative"), None);
    }

    #[test]
    fn options_with_which_a_sync_does_nothing_are_told() {
        let judged = |mounts: &str, number| {
            let listed = find(mounts, Some(number), "-", Path::new("/d"));
            judge(Path::new("/d"), listed, 0).unwrap()
        };
        let one = |options: &str, kind: &str| {
            let line =
                format!("7 1 0:9 /part /d rw,relatime shared:2 - {kind} /dev/some\\040thing {options}");
            judged(&line, 7).unsynced
        };
        for (kind, options, word) in [
            ("overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w,uuid=on,volatile", "volatile"),
            ("overlay", "rw,lowerdir=/l,fsync=volatile", "fsync=volatile"),
            ("ext4", "rw,nobarrier,data=ordered", "nobarrier"),
            ("ext3", "rw,barrier=0", "barrier=0"),
            ("xfs", "rw,attr2,nobarrier", "nobarrier"),
            ("btrfs", "rw,nobarrier,subvol=/@", "nobarrier"),
            ("reiserfs", "rw,barrier=none", "barrier=none"),
            ("f2fs", "rw,fsync_mode=nobarrier", "fsync_mode=nobarrier"),
        ] {
            let why = one(options, kind).unwrap();
            assert!(why.starts_with(&format!("{kind} is mounted with {word}: a sync ")), "{why}");
        }
        for (kind, options) in [
            // A comma inside a value is written as an octal number.
            ("overlay", "rw,lowerdir=/l\\054volatile,upperdir=/volatile,fsync=auto"),
            ("ext4", "rw,volatile"),
            ("ext4", "rw,barrier=1"),
            ("xfs", ""),
        ] {
            assert_eq!(one(options, kind), None, "{kind} {options}");
        }
        // A bind mount at another place belongs to the same file system.
        let bound =
            "8 1 0:40 / /over rw - overlay o rw,volatile\n9 1 0:40 /sub /d ro - overlay o rw,volatile\n";
        assert!(judged(bound, 9).unsynced.is_some() && !judged(bound, 9).volatile);
        assert_eq!(judged(MOUNTS, 22).unsynced, None);
    }

    #[test]
    fn file_systems_of_others_are_refused_by_name_or_type() {
        const EXT4: u32 = 0xEF53;
        let judged =
            |mount, kind| judge(Path::new("/d"), find(MOUNTS, mount, "-", Path::new("relative")), kind);
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
            let unsynced = volatile.then(|| format!("{name} is in memory only"));
            assert_eq!(judged(mount, kind), Ok(FileSystem { name: name.into(), volatile, unsynced }));
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
