//! How long a durable write takes that makes a file longer, as each commit of stock SQLite to a new log does.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

/// Appends of each kind; the median counts.
const ROUNDS: usize = 9;

/// Medians in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Appends {
    /// 4096 bytes, then `fdatasync`.
    pub(super) fdatasync_ns: u64,
    /// 4096 bytes, then `fsync`.
    pub(super) fsync_ns: u64,
}

/// `None` where no file can be made, written or synced.
pub(super) fn measure(dir: &Path) -> Option<Appends> {
    let mut file = tempfile::tempfile_in(dir).ok()?;
    let fdatasync_ns = median(&mut file, File::sync_data)?;
    let fsync_ns = median(&mut file, File::sync_all)?;
    Some(Appends { fdatasync_ns, fsync_ns })
}

fn median(file: &mut File, sync: fn(&File) -> std::io::Result<()>) -> Option<u64> {
    let mut times = [0; ROUNDS];
    for time in &mut times {
        let start = Instant::now();
        file.write_all(&[1; 4096]).ok()?;
        sync(file).ok()?;
        *time = start.elapsed().as_nanos() as u64;
    }
    times.sort_unstable();
    times.get(ROUNDS / 2).copied()
}
