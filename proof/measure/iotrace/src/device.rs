//! Finds the device of a file system, and the place of the file system's journal on it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::ranges::{Range, normalise};

/// A block device, and the part of it that holds the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The major number of the whole device. Requests name the whole device and not the partition.
    pub major: u32,
    pub minor: u32,
    /// The file system's range of bytes: the first byte, and the end.
    pub part: Range,
    /// Whether the device takes requests. Other devices (device mapper, md, zram) take only bios.
    pub has_requests: bool,
    /// The number of the device or partition that holds the file system.
    pub number: u64,
    mount: Option<Mount>,
}

/// The directory where a device is mounted, and the kind of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    place: PathBuf,
    kind: String,
}

impl Device {
    /// If `place` is the node of a device, finds that device. Otherwise finds the device that holds the file
    /// or directory `place`.
    pub fn of(place: &Path) -> Result<Self> {
        let meta = fs::metadata(place).with_context(|| format!("cannot examine {}", place.display()))?;
        let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let mount = mount_of(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(), major, minor);
        let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if !sys.exists() {
            let kind = mount.map_or_else(|| "memory, network or overlay".to_owned(), |mount| mount.kind);
            bail!(
                "{} is on no block device of its own ({kind}): nothing to trace. Put the database on a disk, or \
                 on a loop device",
                place.display()
            );
        }
        let read = |name: &str| fs::read_to_string(sys.join(name)).map(|text| text.trim().to_owned());
        let sectors = |name: &str| -> Result<u64> { Ok(read(name)?.parse::<u64>()?.saturating_mul(512)) };
        let size = sectors("size").context("the size of the device")?;
        if !sys.join("partition").exists() {
            let has_requests = sys.join("mq").exists();
            return Ok(Self { major, minor, part: (0, size), has_requests, number, mount });
        }
        let start = sectors("start").context("the partition's start")?;
        let has_requests = sys.join("../mq").exists();
        let whole = read("../dev")?;
        let (major, minor) = whole.split_once(':').context("the disk of a partition")?;
        let (major, minor) = (major.parse()?, minor.parse()?);
        Ok(Self { major, minor, part: (start, start + size), has_requests, number, mount })
    }

    #[cfg(test)]
    pub fn for_test(part: Range) -> Self {
        Self { major: 7, minor: 0, part, has_requests: true, number: 0, mount: None }
    }

    /// Returns whether `self` and `other` are the same device or partition.
    pub fn same(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Returns the block size of the mounted file system if it is ext4, ext3 or ext2.
    pub fn ext4_block(&self) -> Option<u64> {
        let kinds = ["ext4", "ext3", "ext2"];
        let mount = self.mount.as_ref().filter(|mount| kinds.contains(&mount.kind.as_str()))?;
        u64::try_from(rustix::fs::statfs(&mount.place).ok()?.f_bsize).ok()
    }

    /// Returns the parts of the device that hold ext4's journal; `None` if they cannot be determined.
    pub fn journal(&self) -> Option<Vec<Range>> {
        let block = self.ext4_block()?;
        let path = node_of(self.number)?;
        // If the journal is inside the file system, it is inode 8.
        let run = |program: &str| {
            let mut command = Command::new(program);
            command.args(["-c", "-R", "stat <8>"]).arg(&path).stdin(Stdio::null()).stderr(Stdio::null());
            command.output().ok().filter(|output| output.status.success())
        };
        let output = ["debugfs", "/usr/sbin/debugfs", "/sbin/debugfs"].iter().find_map(|name| run(name))?;
        let blocks = parse_debugfs(&String::from_utf8_lossy(&output.stdout));
        let bytes = |at: u64| self.part.0 + at * block;
        let ranges = blocks.into_iter().map(|(from, to)| (bytes(from), bytes(to))).collect();
        Some(normalise(ranges)).filter(|ranges| !ranges.is_empty())
    }

    /// Returns whether a thread of the kernel may write a journal to the device.
    pub fn has_journal(&self) -> bool {
        if self.mount.is_some() && self.ext4_block().is_none() {
            return false;
        }
        // This directory has one entry for each journal, named after the journal's device.
        let Some(node) = node_of(self.number) else { return true };
        let name = format!("{}-", node.file_name().unwrap_or_default().to_string_lossy());
        let Ok(entries) = fs::read_dir("/proc/fs/jbd2") else { return true };
        let mut names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
        names.any(|entry| entry.to_string_lossy().starts_with(&name))
    }

    /// Makes the kernel write dirty data to the device, so that the trace does not contain earlier writes.
    pub fn settle(&self) {
        let opened = self.mount.as_ref().and_then(|mount| fs::File::open(&mount.place).ok());
        if let Some(dir) = opened {
            let _ = rustix::fs::syncfs(&dir);
        }
    }
}

/// Returns the device node for a device number, such as `/dev/sda1`.
fn node_of(number: u64) -> Option<PathBuf> {
    let sys = format!("/sys/dev/block/{}:{}/uevent", rustix::fs::major(number), rustix::fs::minor(number));
    let text = fs::read_to_string(sys).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    let node = Path::new("/dev").join(name);
    let meta = fs::metadata(&node).ok()?;
    (meta.file_type().is_block_device() && meta.rdev() == number).then_some(node)
}

/// Returns the first mount of a device, from a line such as `36 35 7:0 / /mnt rw,relatime shared:1 - ext4
/// /dev/loop0 rw`
fn mount_of(mountinfo: &str, major: u32, minor: u32) -> Option<Mount> {
    let number = format!("{major}:{minor}");
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut words = left.split(' ').skip(2);
        let (device, _root, place) = (words.next()?, words.next()?, words.next()?);
        let kind = right.split(' ').next()?.to_owned();
        (device == number).then(|| Mount { place: PathBuf::from(unescape(place)), kind })
    })
}

/// Replaces the octal escapes that `mountinfo` writes for spaces and similar characters.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Returns the blocks that `debugfs` lists in its description of an inode, each range as its first block and
/// its end. `debugfs` prints them in this form:
///
/// `EXTENTS:` and then `(0-9):23-32, (ETB0):33, (10-4095):2083-6168`
fn parse_debugfs(text: &str) -> Vec<Range> {
    let list = text.split_once("EXTENTS:").or_else(|| text.split_once("BLOCKS:")).map_or("", |pair| pair.1);
    let words = list.split(|letter: char| letter == ',' || letter.is_whitespace());
    let blocks = words.filter_map(|word| {
        let (logical, physical) = word.strip_prefix('(')?.split_once("):")?;
        // Blocks of the extent tree itself have names instead of numbers. The result leaves them out.
        if !logical.starts_with(|letter: char| letter.is_ascii_digit()) {
            return None;
        }
        let (first, last) = physical.split_once('-').unwrap_or((physical, physical));
        Some((first.parse().ok()?, last.parse::<u64>().ok()? + 1))
    });
    blocks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_found_in_what_debugfs_says() {
        let text = "Inode: 8   Type: regular\nSize of extra inode fields: 32\nEXTENTS:\n\
                    (0-9):23-32, (ETB0):33, (10-24[u]):34-48, (25):2098\n";
        assert_eq!(parse_debugfs(text), [(23, 33), (34, 49), (2098, 2099)]);
        let text = "BLOCKS:\n(0-11):500-511, (IND):512, (12-1023):513-1524\nTOTAL: 1025\n";
        assert_eq!(parse_debugfs(text), [(500, 512), (513, 1525)]);
        assert_eq!(parse_debugfs("stat: not found"), []);
        assert_eq!(parse_debugfs("EXTENTS:\n(0-1):x-2, (1, ):2, (3) 4"), []);
    }

    #[test]
    fn mounts_are_found_by_their_device() {
        let text = "24 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                    36 24 7:0 / /mnt/a\\040b rw shared:1 - xfs /dev/loop0 rw\n\
                    37 24 0:40 / /tmp rw - tmpfs tmpfs rw\n";
        let found = mount_of(text, 7, 0).unwrap();
        assert_eq!((found.place.to_str(), found.kind.as_str()), (Some("/mnt/a b"), "xfs"));
        assert_eq!(mount_of(text, 7, 1), None);
    }

    #[test]
    fn memory_is_no_block_device() {
        if Path::new("/dev/shm").is_dir() {
            let error = Device::of(Path::new("/dev/shm")).unwrap_err().to_string();
            assert!(error.contains("no block device") && error.contains("tmpfs"), "{error}");
        }
    }
}
