//! Measures the latency of durable writes in a directory. An overwriting method writes to blocks that are allocated
//! already, as Duralite does in its logs. An appending method makes a file longer, as stock SQLite does when it commits
//! to a new WAL.
//!
//! The methods take turns, one write at a time. So other load on the device slows down all methods alike, and their
//! medians can be compared.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

/// How many writes are measured for each method. The method's result is the median of their latencies.
const ROUNDS: usize = 11;
/// The size in bytes of the file that the overwriting methods use.
const FILE_BYTES: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// The call that makes a write durable.
type Sync = fn(&File) -> io::Result<()>;

/// A method of writing durably.
struct Way {
    name: &'static str,
    file: File,
    bytes: usize,
    /// The call after each write; `None` if the file's open flags make each write durable by itself.
    sync: Option<Sync>,
    /// The offset of the next write. When an overwriting method reaches the end of the file, it continues at the
    /// beginning.
    at: u64,
    is_append: bool,
    times: Vec<u64>,
}

/// Returns the median latency of each method in microseconds, without the methods that do not work here.
pub(super) fn measure(dir: &Path) -> Map<String, Value> {
    let mut ways = ways(dir);
    let memory = vec![1_u8; 2 * BLOCK];
    // Direct I/O requires that the memory is aligned to the block size.
    let skip = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
    let block = &memory[skip..skip + BLOCK];
    for _ in 0..ROUNDS {
        ways.retain_mut(|way| way.write(block).is_ok());
    }
    let median = |mut way: Way| {
        way.times.sort_unstable();
        Some((way.name.to_owned(), json!(way.times.get(ROUNDS / 2)? / 1000)))
    };
    ways.into_iter().filter_map(median).collect()
}

fn ways(dir: &Path) -> Vec<Way> {
    let direct = OFlags::DIRECT;
    let all: [(_, _, _, Option<Sync>, _); 6] = [
        ("overwrite_4096_buffered_fdatasync", OFlags::empty(), BLOCK, Some(File::sync_data), false),
        ("overwrite_4096_direct_fdatasync", direct, BLOCK, Some(File::sync_data), false),
        ("overwrite_4096_direct_dsync", direct | OFlags::DSYNC, BLOCK, None, false),
        ("overwrite_512_direct_fdatasync", direct, 512, Some(File::sync_data), false),
        ("append_4096_fdatasync", OFlags::empty(), BLOCK, Some(File::sync_data), true),
        ("append_4096_fsync", OFlags::empty(), BLOCK, Some(File::sync_all), true),
    ];
    let open = |(name, flags, bytes, sync, is_append)| {
        let file = scratch(dir, flags, is_append).ok()?;
        Some(Way { name, file, bytes, sync, at: 0, is_append, times: Vec::new() })
    };
    all.into_iter().filter_map(open).collect()
}

/// Opens a new file and deletes its name at once. If the file is for overwriting, first writes all of its blocks.
fn scratch(dir: &Path, flags: OFlags, is_append: bool) -> io::Result<File> {
    let named = tempfile::Builder::new().prefix(".duralite-doctor-").tempfile_in(dir)?;
    if !is_append {
        named.as_file().write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
    }
    named.as_file().sync_all()?;
    let flags = flags.bits().cast_signed();
    OpenOptions::new().write(true).custom_flags(flags).open(named.path())
}

impl Way {
    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let block = block.get(..self.bytes).unwrap_or(block);
        let start = Instant::now();
        self.file.write_all_at(block, self.at)?;
        self.sync.map_or(Ok(()), |sync| sync(&self.file))?;
        self.times.push(start.elapsed().as_nanos() as u64);
        self.at += self.bytes as u64;
        if !self.is_append {
            self.at %= FILE_BYTES;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use super::*;

    #[test]
    fn every_way_takes_as_many_turns_and_only_appends_make_files_longer() {
        let dir = tempfile::tempdir().unwrap();
        let mut found = ways(dir.path());
        assert!(found.len() >= 3);
        for _ in 0..ROUNDS {
            found.retain_mut(|way| way.write(&vec![1; BLOCK]).is_ok());
        }
        for way in found {
            assert_eq!(way.times.len(), ROUNDS, "{}", way.name);
            let expected = if way.is_append { (ROUNDS * BLOCK) as u64 } else { FILE_BYTES };
            assert_eq!(way.file.metadata().unwrap().len(), expected, "{}", way.name);
        }
        assert!(measure(dir.path()).contains_key("append_4096_fdatasync"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
