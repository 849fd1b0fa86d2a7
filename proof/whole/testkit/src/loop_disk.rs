//! Makes a file system on a loop device, and reads the kernel's counts of that device's operations.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::skip;

/// A mounted ext4 file system. Dropping this value unmounts it.
pub struct LoopDisk {
    dir: TempDir,
    device: String,
}

/// The operations that a device has performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCounts {
    /// The number of write requests that carry data.
    pub writes: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
    /// The number of flushes of the device's cache.
    pub flushes: u64,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl LoopDisk {
    /// Makes a disk of this size. If this user may not make one, prints a note and returns `None`.
    ///
    /// # Panics
    /// Panics if the disk cannot be made although the user is root and `DURALITE_REQUIRE_RIGS` is set.
    #[must_use]
    pub fn new(mebibytes: u64) -> Option<Self> {
        match Self::make(mebibytes) {
            Ok(disk) => Some(disk),
            Err(why) => {
                skip("cannot make a loop device with ext4", &why);
                None
            }
        }
    }

    fn make(mebibytes: u64) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let image = dir.path().join("image");
        let mount = dir.path().join("mount");
        std::fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(mebibytes << 20).map_err(|error| error.to_string())?;
        let path = |path: &Path| path.display().to_string();
        // Make `mkfs` initialise the whole file system, so that no later count includes the kernel's
        // initialisation.
        let eager = "lazy_itable_init=0,lazy_journal_init=0";
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", eager, &path(&image)])?;
        let device = run("losetup", &["--find", "--show", &path(&image)])?;
        let disk = Self { dir, device };
        // Mount without access times, because updates of access times would count as writes.
        run("mount", &["-o", "noatime", &disk.device, &path(&mount)])?;
        Ok(disk)
    }

    /// Returns the directory where the disk is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    /// Returns the operations that the device has done so far.
    ///
    /// # Panics
    /// Panics if the kernel does not report them.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        let name = self.device.trim_start_matches("/dev/");
        let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        // The kernel also counts a flush as a write of no bytes.
        let (writes, flushes) = (numbers[4] - numbers[15], numbers[15]);
        DeviceCounts { writes, written_bytes: numbers[6] * 512, flushes }
    }

    /// Writes out all data that waits for this disk, so that later counts do not include it. Syncs only this
    /// file system, because other tests count operations on theirs.
    pub fn settle(&self) {
        let settled = std::fs::File::open(self.path()).and_then(|mount| Ok(rustix::fs::syncfs(&mount)?));
        assert!(settled.is_ok(), "{settled:?}");
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", &self.path().display().to_string()]);
        let _ = run("losetup", &["--detach", &self.device]);
    }
}
