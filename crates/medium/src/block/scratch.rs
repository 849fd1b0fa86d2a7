//! Files for experiments. They are gone when they are closed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;

/// The size of these files in bytes.
pub(super) const SPACE: usize = 64 << 10;

/// Makes a file without a name, with initialised blocks.
pub(super) fn scratch(dir: &Path) -> Option<File> {
    let file = unnamed(dir).or_else(|| unlinked(dir))?;
    file.write_all_at(&vec![0; SPACE], 0).ok()?;
    file.sync_all().ok()?;
    Some(file)
}

fn unnamed(dir: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE.bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(dir).ok()
}

/// Makes a named scratch file and deletes its name, for a file system that cannot make a file without a name.
fn unlinked(dir: &Path) -> Option<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!(".duralite-probe-{}-{next}", process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).ok()?;
    fs::remove_file(&path).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_a_name_does_where_unnamed_ones_are_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = unlinked(dir.path()).unwrap();
        file.write_all_at(&[1; 10], 0).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(scratch(dir.path()).unwrap().metadata().unwrap().len(), SPACE as u64);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
