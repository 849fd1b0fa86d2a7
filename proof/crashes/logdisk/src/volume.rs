//! A file system on a loop device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::error::Error;
use crate::loop_device::LoopDevice;

/// The kind of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// ext4 with 4-KiB blocks and a journal of 4 MiB. A disk of 8 MiB is enough.
    Ext4,
    /// xfs with one allocation group. Needs a disk of at least 16 MiB.
    Xfs,
    /// btrfs with data and metadata in the same block groups, without duplicates. Needs a disk of at least 16
    /// MiB.
    Btrfs,
}

impl FromStr for FileSystemKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("{name} is none of the file systems, ext4, xfs and btrfs"))
    }
}

impl FileSystemKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// Returns the name that `mount` knows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    pub(crate) fn mkfs(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
            Self::Btrfs => "mkfs.btrfs",
        }
    }

    /// Returns options that make the file system as small as possible. With them `mkfs` leaves nothing for
    /// the kernel to initialise in the background.
    fn mkfs_options(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-N",
                "128",
                "-m",
                "0",
                "-J",
                "size=4",
                "-O",
                "^resize_inode",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            ],
            // mkfs.xfs refuses less than 300 MiB without this option.
            Self::Xfs => &["--unsupported", "-q", "-f", "-K", "-d", "agcount=1", "-m", "reflink=0"],
            Self::Btrfs => &["-q", "-f", "-K", "--mixed", "-m", "single", "-d", "single"],
        }
    }

    /// Returns the options with which the rig always mounts this kind of file system.
    fn mount_options(self) -> &'static str {
        match self {
            // btrfs can tell devices apart even if they have the same UUID.
            Self::Ext4 | Self::Btrfs => "",
            // The rig mounts images of a volume beside the volume and beside each other, and all of them have
            // the volume's UUID.
            Self::Xfs => "nouuid",
        }
    }
}

/// Creates a directory on which to mount a file system.
pub fn mount_point() -> Result<TempDir, Error> {
    let dir = tempfile::Builder::new().prefix("logdisk-").tempdir();
    dir.map_err(Error::io("make a directory in", &std::env::temp_dir()))
}

/// A mounted file system that is unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    mounted: bool,
}

impl Mount {
    /// Mounts a device at a directory. `options` are as for `mount -o`.
    pub fn new(device: &Path, dir: &Path, kind: FileSystemKind, options: &str) -> Result<Self, Error> {
        let mut flags = MountFlags::empty();
        let mut data = Vec::new();
        for option in [options, kind.mount_options()].iter().flat_map(|list| list.split(',')) {
            match option {
                "" | "rw" | "defaults" => {}
                "ro" => flags |= MountFlags::RDONLY,
                "noatime" => flags |= MountFlags::NOATIME,
                "sync" => flags |= MountFlags::SYNCHRONOUS,
                other => data.push(other),
            }
        }
        let failed = |source| Error::Mount { device: device.to_owned(), kind: kind.name(), source };
        let data = std::ffi::CString::new(data.join(",")).map_err(|error| failed(error.into()))?;
        mount(device, dir, kind.name(), flags, data.as_c_str()).map_err(|error| failed(error.into()))?;
        Ok(Self { dir: dir.to_owned(), mounted: true })
    }

    /// Returns the directory where the file system is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Unmounts the file system. If that fails, detaches the file system from the directory, and the kernel
    /// unmounts it when its last file is closed.
    pub fn unmount(mut self) -> Result<(), Error> {
        self.take_down().map_err(Error::io("unmount", &self.dir))
    }

    fn take_down(&mut self) -> Result<(), Errno> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        // If another thread has just forked a child process, the child holds this process's files open until
        // it executes its program.
        for wait in [1, 4, 16, 64, 256] {
            match unmount(&self.dir, UnmountFlags::empty()) {
                Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(wait)),
                result => return result,
            }
        }
        unmount(&self.dir, UnmountFlags::DETACH)?;
        Err(Errno::BUSY)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.take_down();
    }
}

/// A mounted file system on a loop device over a file. Dropping this value unmounts the file system and
/// detaches the device. If files on it are still open, both happen when the last of them is closed.
#[derive(Debug)]
pub struct Volume {
    // This field comes first, because it must be dropped before the device and the directory.
    mount: Mount,
    device: LoopDevice,
    _dir: TempDir,
}

impl Volume {
    /// Makes a file system on a file and mounts it. `mkfs_options` come after the options that make the file
    /// system small. `mount_options` are as for `mount -o`, such as `nobarrier`.
    ///
    /// # Errors
    /// An error if the loop device, `mkfs` or mounting fails.
    pub fn make(
        file: &Path,
        kind: FileSystemKind,
        mkfs_options: &[&str],
        mount_options: &str,
    ) -> Result<Self, Error> {
        let device = attach(file)?;
        let program = kind.mkfs();
        let failed = |message: String| Error::Program { program, message };
        let output = Command::new(program)
            .args(kind.mkfs_options())
            .args(mkfs_options)
            .arg(device.path())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Self::on(device, kind, mount_options)
    }

    /// Mounts the file system that a file holds.
    ///
    /// # Errors
    /// An error if the loop device or mounting fails.
    pub fn mount_existing(file: &Path, kind: FileSystemKind, mount_options: &str) -> Result<Self, Error> {
        Self::on(attach(file)?, kind, mount_options)
    }

    fn on(device: LoopDevice, kind: FileSystemKind, options: &str) -> Result<Self, Error> {
        let dir = mount_point()?;
        Ok(Self { mount: Mount::new(device.path(), dir.path(), kind, options)?, device, _dir: dir })
    }

    /// Returns the directory where the volume is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the path of the volume's loop device.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        self.device.path().to_owned()
    }

    /// Unmounts the file system and reports whether that succeeded.
    ///
    /// # Errors
    /// An error if files on the file system are open. It is then unmounted when the last of them is closed.
    pub fn unmount(self) -> Result<(), Error> {
        self.mount.unmount()
    }
}

fn attach(file: &Path) -> Result<LoopDevice, Error> {
    let backing = File::options().read(true).write(true).open(file).map_err(Error::io("open", file))?;
    LoopDevice::attach(&backing, file)
}
