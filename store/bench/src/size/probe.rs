//! Measures the disk itself: random page reads by one thread and by many, and sequential writes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use duralite_medium::block::{Access, AlignedBuf, Block, BlockOptions, FileBlock};
use rustix::fs::{Mode, OFlags};

const FILE_BYTES: u64 = 256 << 20;
const PAGE_BYTES: u64 = 8192;
const TIME: Duration = Duration::from_millis(700);

/// The rates of the disk per second, without the system's cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disk {
    pub(super) reads_of_one: f64,
    pub(super) reads_of_16: f64,
    pub(super) write_bytes: f64,
}

impl Disk {
    /// Returns how many pages per second `threads` threads can read.
    pub(super) fn reads(&self, threads: u64) -> f64 {
        if threads > 1 { self.reads_of_16 } else { self.reads_of_one }
    }
}

fn reads(path: &Path, threads: u64) -> Result<f64> {
    let count = AtomicU64::new(0);
    let begun = Instant::now();
    let one = |seed: u64| -> Result<()> {
        let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?);
        let (mut rng, mut page) = (fastrand::Rng::with_seed(seed), AlignedBuf::default());
        page.resize(PAGE_BYTES as usize);
        while begun.elapsed() < TIME {
            file.read_exact_at(page.as_mut_slice(), rng.u64(0..FILE_BYTES / PAGE_BYTES) * PAGE_BYTES)?;
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let one = &one;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|seed| scope.spawn(move || one(seed))).collect();
        all.into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })?;
    Ok(count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

/// Measures the disk, with a file in this directory.
pub(super) fn probe(dir: &Path) -> Result<Disk> {
    let path = dir.join("probe");
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let options = BlockOptions { access: Access::Direct, ..BlockOptions::default() };
    let block = FileBlock::open(file, &path, &options)?;
    block.preallocate(FILE_BYTES)?;
    let blocks = vec![7; 1 << 20];
    let begun = Instant::now();
    for at in 0..FILE_BYTES >> 20 {
        block.write(at << 20, &blocks)?;
    }
    block.flush()?;
    let write_bytes = FILE_BYTES as f64 / begun.elapsed().as_secs_f64();
    let disk = Disk { reads_of_one: reads(&path, 1)?, reads_of_16: reads(&path, 16)?, write_bytes };
    std::fs::remove_file(&path)?;
    Ok(disk)
}
