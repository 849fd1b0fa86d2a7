//! Finding out how a durable write is fastest on a device.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::OFlags;

use super::Access;
use super::buffer::AlignedBuf;
use super::file::Direct;

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The faster way to write.
    pub access: Access,
    /// The block size to use.
    pub block_bytes: u32,
    /// Why, with the medians in microseconds.
    pub reason: String,
}

/// Durable writes per way; the median counts.
const ROUNDS: usize = 7;
const SPACE: usize = 64 << 10;

/// Probes are remembered by device: opening many databases costs one.
static KNOWN: LazyLock<Mutex<HashMap<u64, Probe>>> = LazyLock::new(Mutex::default);

/// Measures durable overwrites in a directory, once per device and process.
#[must_use]
pub fn probe(dir: &Path) -> Probe {
    let Ok(device) = fs::metadata(dir).map(|meta| meta.dev()) else { return unknown("not examined") };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(device).or_insert_with(|| measure(dir, device)).clone()
}

fn unknown(why: &str) -> Probe {
    Probe { access: Access::Buffered, block_bytes: 4096, reason: format!("not probed, {why}") }
}

/// A file without a name, with initialised blocks.
fn scratch(dir: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(dir).ok()?;
    file.write_all_at(&vec![0; SPACE], 0).ok()?;
    file.sync_all().ok()?;
    Some(file)
}

fn measure(dir: &Path, device: u64) -> Probe {
    let Some(file) = scratch(dir) else { return unknown("no space or no unnamed files") };
    let buffered = median(&file, 4096, &file);
    let Some(direct) = Direct::open(&file, dir) else {
        let reason = format!("no direct I/O; a durable 4096-byte write takes {}", us(buffered));
        return Probe { access: Access::Buffered, block_bytes: 4096, reason };
    };
    let large = median(&direct.file, 4096, &file);
    let isolated = direct.offset_align == 512 && physical_block(device) == Some(512);
    let small = if isolated { median(&direct.file, 512, &file) } else { None };
    // The noise of a shared disk is larger than what the two ways differ by on most.
    let access = match (large, buffered) {
        (Some(large), Some(buffered)) if large > buffered + buffered / 5 => Access::Buffered,
        (None, _) => Access::Buffered,
        _ => Access::Direct,
    };
    let small_is_good = small.zip(large).is_some_and(|(small, large)| small <= large + large / 10);
    let block_bytes = if access == Access::Direct && small_is_good { 512 } else { 4096 };
    let sectors = match small {
        Some(_) => format!(", of 512 bytes {}", us(small)),
        None => String::from(", and 512 bytes are not a sector of their own"),
    };
    let reason =
        format!("a durable 4096-byte write takes direct {}, buffered {}{sectors}", us(large), us(buffered));
    Probe { access, block_bytes, reason }
}

fn us(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or_else(|| "?".to_owned(), |ns| format!("{} us", ns / 1000))
}

/// Median of durable overwrites in nanoseconds; `None` when one fails.
fn median(file: &File, bytes: usize, sync: &File) -> Option<u64> {
    let mut buffer = AlignedBuf::default();
    buffer.resize(bytes);
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        buffer.as_mut_slice().fill(round as u8);
        let start = Instant::now();
        file.write_all_at(buffer.as_slice(), (round * bytes % SPACE) as u64).ok()?;
        sync.sync_data().ok()?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    times.get(ROUNDS / 2).copied()
}

/// The device's physical block: what it writes without touching a neighbour.
fn physical_block(device: u64) -> Option<u32> {
    let sys = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no queue of its own.
    let of = |dir: &str| fs::read_to_string(format!("{sys}{dir}/queue/physical_block_size")).ok();
    of("").or_else(|| of("/.."))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_taken_once_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let first = probe(dir.path());
        assert_eq!(first, probe(dir.path()));
        assert!([512, 4096].contains(&first.block_bytes));
        assert!(first.access != Access::Auto && !first.reason.is_empty());
        eprintln!("{first:?}");
        assert_eq!(probe(Path::new("/does/not/exist")).block_bytes, 4096);
    }
}
