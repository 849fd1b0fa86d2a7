//! Determines the fastest way to make a durable write on a device.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{Errno, ReadWriteFlags};

use super::direct::{Access, Direct};
use super::remembered::{Remembered, Times};
use super::scratch::{SPACE, scratch};
use super::sysfs;
use crate::block::AlignedBuf;

/// The result of a probe. Times are medians of durable overwrites in nanoseconds. A time is `None` if that
/// kind of write does not exist on the device or was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The faster way to write.
    pub access: Access,
    /// The block size to use.
    pub block_bytes: u32,
    /// The time of a buffered write of 4096 bytes and `fdatasync`.
    pub buffered_ns: Option<u64>,
    /// The time of a direct write of 4096 bytes and `fdatasync`.
    pub direct_ns: Option<u64>,
    /// The time of a direct write of 4096 bytes that is itself durable (`RWF_DSYNC`).
    pub direct_dsync_ns: Option<u64>,
    /// The time of a direct write of 512 bytes and `fdatasync`.
    pub small_ns: Option<u64>,
    /// The reason for the choice, with the medians in microseconds.
    pub reason: String,
}

/// The number of durable writes that are measured for each way. The median is the result.
const ROUNDS: usize = 9;
/// The time after which no further round begins.
const PATIENCE: Duration = Duration::from_millis(30);

/// The results of the probes that this process has made, by device. A process that opens many databases on
/// one device probes the device only once.
static KNOWN: LazyLock<Mutex<HashMap<u64, Probe>>> = LazyLock::new(Mutex::default);

/// Determines the fastest way to make a durable overwrite in a directory. The measurement takes about 30 ms.
/// The result is remembered in shared memory, for each device and user, for a day or until the machine is
/// restarted. Without shared memory, each process measures each device once.
///
/// If nothing can be measured, for lack of space or permission, the answer is the cautious choice, namely
/// buffered blocks of 4096 bytes. This choice is not remembered, so the next call measures again.
#[must_use]
pub fn probe(dir: &Path) -> Probe {
    let Ok(device) = fs::metadata(dir).map(|meta| meta.dev()) else { return unknown("not examined") };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(probe) = known.get(&device) {
        return probe.clone();
    }
    let remembered = Remembered::own();
    let times = remembered.times(device).or_else(|| {
        let times = measure(dir)?;
        remembered.remember(device, times);
        Some(times)
    });
    let Some(times) = times else { return unknown("no temporary file can be made") };
    let probe = choose(times, physical_block(device));
    known.insert(device, probe.clone());
    probe
}

fn unknown(why: &str) -> Probe {
    Probe {
        access: Access::Buffered,
        block_bytes: 4096,
        buffered_ns: None,
        direct_ns: None,
        direct_dsync_ns: None,
        small_ns: None,
        reason: format!("not probed, {why}"),
    }
}

fn measure(dir: &Path) -> Option<Times> {
    let start = Instant::now();
    let file = scratch(dir)?;
    let direct = Direct::open(&file, dir, dir);
    let mut buffered = Way::new(4096);
    let mut large = Way::new(4096);
    let mut dsync = Way::new(4096);
    let mut small = Way::new(512);
    // Measure the ways in turn, so that other load on the device slows them all down equally.
    for round in 0..ROUNDS {
        if round > 0 && start.elapsed() > PATIENCE {
            break;
        }
        buffered.time(round, |block, at| write_and_sync(&file, &file, block, at));
        let Some(direct) = &direct else { continue };
        large.time(round, |block, at| write_and_sync(&direct.file, &file, block, at));
        dsync.time(round, |block, at| {
            rustix::io::pwritev2(&direct.file, &[IoSlice::new(block)], at, ReadWriteFlags::DSYNC)
        });
        if direct.offset_align <= 512 {
            small.time(round, |block, at| write_and_sync(&direct.file, &file, block, at));
        }
    }
    Some([buffered.median(), large.median(), dsync.median(), small.median()])
}

/// Chooses the better way from the medians in nanoseconds and the device's physical block size in bytes.
fn choose(times: Times, physical: Option<u32>) -> Probe {
    let [buffered_ns, direct_ns, direct_dsync_ns, small_ns] = times;
    let access = match (direct_ns, buffered_ns) {
        (None, _) => Access::Buffered,
        // Prefer direct writes unless they are clearly slower, because on most disks the noise of other load
        // is larger than the difference between direct and buffered writes.
        (Some(direct), Some(buffered)) if direct > buffered + buffered / 5 => Access::Buffered,
        _ => Access::Direct,
    };
    // If the device writes units that are larger than a sector, a power loss during a write of one sector can
    // damage the sectors beside it.
    let isolated = physical == Some(512);
    let as_fast = small_ns.zip(direct_ns).is_some_and(|(small, large)| small <= large + large / 10);
    let small_is_good = access == Access::Direct && isolated && as_fast;
    let mut reason = format!("a durable 4096-byte write takes {} buffered", us(buffered_ns));
    if direct_ns.is_none() {
        reason.push_str(", and there is no direct I/O");
    } else {
        reason += &format!(", {} direct, {} with RWF_DSYNC", us(direct_ns), us(direct_dsync_ns));
    }
    if small_ns.is_some() {
        reason += &format!("; of 512 bytes {}", us(small_ns));
    }
    if direct_ns.is_some() && !isolated {
        reason += match physical {
            Some(_) => "; 512 bytes are not a sector of the device's own",
            None => "; the device's sector is not known",
        };
    }
    let block_bytes = if small_is_good { 512 } else { 4096 };
    Probe { access, block_bytes, buffered_ns, direct_ns, direct_dsync_ns, small_ns, reason }
}

fn us(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or_else(|| "?".to_owned(), |ns| format!("{} us", ns / 1000))
}

fn write_and_sync(file: &File, sync: &File, block: &[u8], at: u64) -> Result<usize, Errno> {
    let count = rustix::io::pwrite(file, block, at)?;
    rustix::fs::fdatasync(sync)?;
    Ok(count)
}

/// One way to make a durable write, and the times that it took.
struct Way {
    buffer: AlignedBuf,
    times: Vec<u64>,
    failed: bool,
}

impl Way {
    fn new(bytes: usize) -> Self {
        let mut buffer = AlignedBuf::default();
        buffer.resize(bytes);
        Self { buffer, times: Vec::with_capacity(ROUNDS), failed: false }
    }

    /// Times one durable write. After a failure it does nothing.
    fn time(&mut self, round: usize, write: impl FnOnce(&[u8], u64) -> Result<usize, Errno>) {
        if self.failed {
            return;
        }
        let bytes = self.buffer.as_slice().len();
        self.buffer.as_mut_slice().fill(round as u8);
        let start = Instant::now();
        let written = write(self.buffer.as_slice(), (round * bytes % SPACE) as u64);
        let taken = start.elapsed().as_nanos() as u64;
        self.times.push(taken);
        self.failed = written != Ok(bytes);
    }

    fn median(mut self) -> Option<u64> {
        self.times.sort_unstable();
        if self.failed { None } else { self.times.get(self.times.len() / 2).copied() }
    }
}

/// Returns the device's physical block size, namely the number of bytes that the device can write without
/// rewriting bytes beside them. Returns `None` if it is not known.
fn physical_block(device: u64) -> Option<u32> {
    let read = |name: &str| sysfs::read(device, name);
    let own = read("queue/physical_block_size")?.trim().parse().ok()?;
    // A loop device knows nothing about the disk that its file is on. So look at that disk.
    match read("loop/backing_file") {
        None => Some(own),
        Some(path) => {
            let below = fs::metadata(path.trim_end_matches('\n')).ok()?.dev();
            physical_block(below).map(|below| below.max(own))
        }
    }
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

    #[test]
    fn small_blocks_need_a_sector_of_their_own_and_no_loss() {
        let us = |us: u64| Some(us * 1000);
        let small = |small_ns, physical| choose([us(120), us(100), us(90), small_ns], physical).block_bytes;
        assert_eq!(small(us(100), Some(512)), 512);
        assert_eq!(small(us(110), Some(512)), 512);
        assert_eq!(small(us(111), Some(512)), 4096, "slower by more than a tenth");
        assert_eq!(small(us(50), Some(4096)), 4096, "would tear its neighbours");
        assert_eq!(small(us(50), None), 4096);
        assert_eq!(small(None, Some(512)), 4096);
    }

    #[test]
    fn the_way_is_direct_unless_much_slower() {
        let way = |direct, buffered| choose([buffered, direct, None, Some(1)], Some(512));
        assert_eq!(way(Some(100), Some(100)).access, Access::Direct);
        assert_eq!(way(Some(120), Some(100)).access, Access::Direct);
        let buffered = way(Some(121), Some(100));
        assert_eq!((buffered.access, buffered.block_bytes), (Access::Buffered, 4096));
        assert_eq!(way(Some(100), None).access, Access::Direct);
        let none = way(None, Some(100));
        assert_eq!((none.access, none.block_bytes), (Access::Buffered, 4096));
        assert!(none.reason.contains("no direct I/O"), "{}", none.reason);
    }

    #[test]
    fn a_way_that_fails_has_no_median() {
        let mut way = Way::new(512);
        way.time(0, |_, _| Ok(512));
        way.time(1, |_, at| Ok(at as usize));
        way.time(2, |_, _| Err(Errno::IO));
        way.time(3, |_, _| unreachable!());
        assert_eq!(way.median(), None);
        let mut short = Way::new(512);
        short.time(0, |_, _| Ok(511));
        assert_eq!(short.median(), None);
        assert_eq!(Way::new(512).median(), None);
    }

    #[test]
    fn a_probe_does_not_take_long() {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let [buffered, ..] = measure(dir.path()).unwrap();
        eprintln!("{:?}: {buffered:?}", start.elapsed());
        assert!(buffered.is_some());
    }

    #[test]
    fn the_physical_block_of_a_disk_is_known_and_that_of_nothing_is_not() {
        let device = fs::metadata(std::env::current_exe().unwrap()).unwrap().dev();
        match physical_block(device) {
            None => eprintln!("skipped: not on a disk"),
            Some(bytes) => assert!(bytes >= 512 && bytes.is_power_of_two()),
        }
        // A file system in memory has a device, but no disk.
        assert_eq!(physical_block(rustix::fs::makedev(0, 1)), None);
    }
}
