//! Test rigs that only some machines can run.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Returns whether a test must fail instead of skipping a rig. The variable `DURALITE_REQUIRE_RIGS` decides.
#[must_use]
pub fn require_rigs() -> bool {
    std::env::var_os("DURALITE_REQUIRE_RIGS").is_some_and(|value| value == "1")
}

/// Says that a test skips a rig, and why.
///
/// # Panics
/// Panics if `DURALITE_REQUIRE_RIGS` is set and this user is root, because root can run every rig.
pub fn skip(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
    let root = rustix::process::geteuid().is_root();
    assert!(!(root && require_rigs()), "DURALITE_REQUIRE_RIGS is set, and {what}: {why}");
}

/// A log directory on a small file system of its own, so that it can be full.
pub struct TinyDirectory {
    dir: TempDir,
}

impl TinyDirectory {
    /// Mounts a tmpfs of this size. If this user may not mount one, prints a note and returns `None`.
    ///
    /// # Panics
    /// Panics if the mount fails although the user is root and `DURALITE_REQUIRE_RIGS` is set.
    #[must_use]
    pub fn new(kibibytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={kibibytes}k,mode=0755");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "duralite-test"])
            .arg(dir.path())
            .output();
        let why = match mount {
            Ok(output) if output.status.success() => return Some(Self { dir }),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        skip("cannot mount a small tmpfs", &why);
        None
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes the file system read-only, or writable again.
    pub fn set_read_only(&self, read_only: bool) {
        let option = if read_only { "remount,ro" } else { "remount,rw" };
        let output = Command::new("mount").args(["-o", option]).arg(self.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for TinyDirectory {
    fn drop(&mut self) {
        // Unmount lazily, because a failed test may still have a file open there.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

/// An overlay of two directories in memory. Dropping this value unmounts it.
pub struct Overlay {
    memory: TinyDirectory,
}

impl Overlay {
    /// Mounts an overlay with these additional options (`""` for none). If this user may not mount one,
    /// prints a note and returns `None`.
    ///
    /// # Panics
    /// Panics if the mount fails although the user is root and `DURALITE_REQUIRE_RIGS` is set.
    #[must_use]
    pub fn new(options: &str) -> Option<Self> {
        let memory = TinyDirectory::new(16 << 10)?;
        let part = |name: &str| memory.path().join(name).display().to_string();
        for name in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir(part(name)).unwrap();
        }
        let mut all =
            format!("lowerdir={},upperdir={},workdir={}", part("lower"), part("upper"), part("work"));
        if !options.is_empty() {
            all = format!("{all},{options}");
        }
        let mount = Command::new("mount")
            .args(["-t", "overlay", "-o", &all, "duralite-test", &part("merged")])
            .output();
        let why = match mount {
            Ok(output) if output.status.success() => return Some(Self { memory }),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        skip(&format!("cannot mount an overlay with \"{options}\""), &why);
        None
    }

    /// Returns the path of the merged directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.memory.path().join("merged")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // Unmount the overlay lazily. After this, the memory below it is unmounted lazily too.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
