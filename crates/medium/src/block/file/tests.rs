//! Tests of a block file: writing, flushing, preallocation and truncation.

use super::*;
use crate::block::direct::{told_alignment, tried_alignment};
use crate::block::is_initialised;
use std::fs::OpenOptions;
use std::process::{Command, Stdio};

/// Returns a directory next to the test program, because that is more likely to be on a disk than the
/// directory for temporary files.
fn temporary() -> tempfile::TempDir {
    let test = std::env::current_exe().unwrap();
    tempfile::tempdir_in(test.parent().unwrap()).unwrap()
}

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn open(dir: &Path, options: &BlockOptions) -> Result<FileBlock, MediumError> {
    let path = dir.join("log");
    FileBlock::open(create(&path), &path, options)
}

fn of(block_bytes: u32, access: Access) -> BlockOptions {
    BlockOptions { block_bytes: Some(block_bytes), access, read_only: false }
}

/// Opens a block file with direct I/O, or prints a message if there is no direct I/O.
fn direct(dir: &Path) -> Option<FileBlock> {
    let block = open(dir, &of(4096, Access::Direct));
    if block == Err(MediumError::Unsupported { what: "direct I/O" }) {
        eprintln!("skipped: no direct I/O here");
    }
    block.ok()
}

impl PartialEq for FileBlock {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

fn round_trip(dir: &Path, access: Access) {
    let options = of(4096, access);
    let block = open(dir, &options).unwrap();
    assert_eq!(block.len(), 0);
    block.preallocate(1 << 20).unwrap();
    block.preallocate(4096).unwrap();
    assert_eq!(block.len(), 1 << 20);
    assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
    assert_eq!(block.counters().preallocated_bytes, 1 << 20);
    let before = block.counters();
    // The data is at an odd address, so that it has to be copied for direct I/O.
    let data: Vec<u8> = (0..8193u32).map(|i| i as u8).collect();
    for (i, durability) in [Durability::Full, Durability::Fua, Durability::Normal].into_iter().enumerate() {
        block.write_durably(i as u64 * 8192, &data[1..], durability).unwrap();
    }
    block.write(65536, &data[1..]).unwrap();
    let mut back = vec![0; 8192];
    for at in [0, 8192, 16384, 65536] {
        block.read(at, &mut back).unwrap();
        assert_eq!(back, data[1..], "at {at}");
    }
    let after = block.counters();
    assert_eq!(after.writes - before.writes, 4);
    assert_eq!(after.written_bytes - before.written_bytes, 4 * 8192);
    assert_eq!(after.flushes - before.flushes, 2);
    assert_eq!(after.read_bytes - before.read_bytes, 4 * 8192);
    assert_eq!(after.preallocated_bytes, before.preallocated_bytes);
    // A write past the end fails with every kind of durability.
    for durability in [Durability::Full, Durability::Fua, Durability::Normal] {
        for at in [1 << 20, (1 << 20) - 4096, u64::MAX / 4096 * 4096] {
            let refused = block.write_durably(at, &data[1..], durability);
            assert!(matches!(refused, Err(MediumError::OutOfBounds { .. })), "{refused:?}");
        }
    }
    assert!(matches!(block.write(1 << 20, &data[1..4097]), Err(MediumError::OutOfBounds { .. })));
    assert!(matches!(block.read(u64::MAX, &mut back), Err(MediumError::OutOfBounds { .. })));
    assert_eq!(block.counters(), after, "what is refused is not counted");
    assert_eq!(block.file.metadata().unwrap().len(), 1 << 20);
    // Growing keeps the contents, and another object learns of the new length.
    let other = open(dir, &options).unwrap();
    block.preallocate(2 << 20).unwrap();
    assert_eq!(other.len(), 1 << 20);
    other.refresh_len().unwrap();
    assert_eq!(other.len(), 2 << 20);
    other.read(65536, &mut back).unwrap();
    assert_eq!(back, data[1..]);
    assert!(!block.describe().is_empty());
}

#[test]
fn what_is_given_back_is_zeros_when_it_comes_back() {
    for access in [Access::Auto, Access::Buffered] {
        let dir = temporary();
        let block = open(dir.path(), &of(4096, access)).unwrap();
        let other = open(dir.path(), &of(4096, access)).unwrap();
        block.preallocate(1 << 20).unwrap();
        block.write_durably((1 << 20) - 4096, &[9; 4096], Durability::Full).unwrap();
        other.refresh_len().unwrap();
        block.shrink(1 << 19).unwrap();
        block.shrink(1 << 20).unwrap();
        assert_eq!((block.len(), block.file.metadata().unwrap().len()), (1 << 19, 1 << 19));
        // The object `other` still has the length from before the truncation. In this call it reads the
        // file's present length, and so preallocates the missing part.
        other.preallocate(1 << 20).unwrap();
        let mut back = [1; 4096];
        other.read((1 << 20) - 4096, &mut back).unwrap();
        assert_eq!((other.len(), back), (1 << 20, [0; 4096]));
        assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
        other.shrink(1 << 19).unwrap();
        block.refresh_len().unwrap();
        assert_eq!(block.len(), 1 << 19);
    }
}

#[test]
fn holes_are_told_of_files_that_must_have_some() {
    let dir = temporary();
    let block = open(dir.path(), &of(4096, Access::Buffered)).unwrap();
    block.preallocate(1 << 20).unwrap();
    assert_eq!(block.next_data(5).unwrap(), 5..1 << 20);
    block.file.set_len(1 << 32).unwrap();
    block.file.write_all_at(&[1; 4096], 1 << 31).unwrap();
    block.refresh_len().unwrap();
    let far = block.next_data(1 << 24).unwrap();
    if far != (1 << 24..1 << 32) {
        assert!(far.start <= 1 << 31 && far.end < (1 << 31) + (1 << 20), "{far:?}");
        assert_eq!(block.next_data(far.end).unwrap(), 1 << 32..1 << 32);
    }
    assert_eq!(block.next_data(1 << 33).unwrap(), 1 << 33..1 << 33);
}

#[test]
fn blocks_come_back_whichever_way_they_are_written() {
    for access in [Access::Auto, Access::Direct, Access::Buffered] {
        let dir = temporary();
        match open(dir.path(), &BlockOptions { access, ..BlockOptions::default() }) {
            Err(MediumError::Unsupported { .. }) => eprintln!("skipped: no direct I/O here"),
            other => {
                eprintln!("{}", other.unwrap().describe());
                round_trip(dir.path(), access);
            }
        }
    }
}

#[test]
fn memory_backed_file_systems_work_and_promise_less() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        return;
    }
    let dir = tempfile::tempdir_in(shm).unwrap();
    round_trip(dir.path(), Access::Auto);
    let block = open(dir.path(), &BlockOptions::default()).unwrap();
    assert_eq!(block.guarantee(), Guarantee::ProcessCrash);
    assert!(block.direct.is_none());
}

#[test]
fn a_disk_promises_to_keep_what_is_flushed() {
    let dir = temporary();
    let block = open(dir.path(), &of(4096, Access::Buffered)).unwrap();
    let unsynced = check_filesystem(dir.path()).unwrap().unsynced;
    assert_eq!(block.guarantee() == Guarantee::PowerLoss, unsynced.is_none());
}

#[test]
fn a_read_only_file_is_read() {
    let dir = temporary();
    let path = dir.path().join("log");
    std::fs::write(&path, [5; 8192]).unwrap();
    let file = File::open(&path).unwrap();
    let options = BlockOptions { read_only: true, ..BlockOptions::default() };
    let block = FileBlock::open(file, &path, &options).unwrap();
    let mut byte = [0];
    block.read(8191, &mut byte).unwrap();
    assert_eq!(byte, [5]);
    for refused in [
        block.write(0, &[0; 4096]),
        block.write_durably(0, &[0; 4096], Durability::Fua),
        block.preallocate(4096),
        block.preallocate(1 << 20),
    ] {
        assert!(matches!(refused, Err(MediumError::Unsupported { .. })), "{refused:?}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), [5; 8192]);
}

#[test]
fn preallocation_zeroes_nothing_that_is_there() {
    for access in [Access::Auto, Access::Buffered] {
        let dir = temporary();
        std::fs::write(dir.path().join("log"), [5; 5000]).unwrap();
        // With `Auto` the blocks may be too small for direct I/O.
        let block = open(dir.path(), &of(512, access)).unwrap();
        assert_eq!(block.len(), 4608);
        block.preallocate(3 << 20).unwrap();
        assert_eq!(block.len(), 3 << 20);
        let mut back = vec![1; 3 << 20];
        block.read(0, &mut back).unwrap();
        assert_eq!(back[..5000], [5; 5000]);
        assert!(back[5000..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_is_reserved_reads_as_zeros_and_is_not_written() {
    for access in [Access::Direct, Access::Buffered] {
        let dir = temporary();
        let Ok(block) = open(dir.path(), &of(4096, access)) else { continue };
        block.preallocate(8192).unwrap();
        block.write(4096, &[1; 4096]).unwrap();
        let before = block.counters();
        block.reserve(1 << 20).unwrap();
        block.reserve(4096).unwrap();
        assert_eq!(block.len(), 1 << 20);
        if before == block.counters() {
            // The file's space is nevertheless reserved.
            assert!(block.file.metadata().unwrap().blocks() * 512 >= 1 << 20);
        } else {
            eprintln!("nothing can be reserved here without writing it");
        }
        block.write(65536, &[2; 8192]).unwrap();
        block.flush().unwrap();
        let mut back = vec![9; 1 << 20];
        block.read(0, &mut back).unwrap();
        let expected = |at: usize| match at {
            4096..8192 => 1,
            65536..73728 => 2,
            _ => 0,
        };
        assert!(back.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    }
}

#[test]
fn what_a_crash_cut_short_is_preallocated_again() {
    let dir = temporary();
    // Simulates a crash: blocks are reserved beyond the length, and the length is not a multiple of `STEP`.
    let file = create(&dir.path().join("log"));
    let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20);
    file.write_all_at(&[0; 12288], 0).unwrap();
    let block = open(dir.path(), &of(4096, Access::Auto)).unwrap();
    assert_eq!(block.len(), 12288);
    block.preallocate(8192).unwrap();
    assert_eq!((block.len(), block.counters().preallocated_bytes), (12288, 0));
    block.preallocate(1 << 20).unwrap();
    assert_eq!(block.counters().preallocated_bytes, (1 << 20) - 12288);
    assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
}

#[test]
fn no_block_is_left_to_be_initialised_by_a_commit() {
    let dir = temporary();
    let block = open(dir.path(), &of(4096, Access::Auto)).unwrap();
    // Some of these lengths are not a multiple of `STEP`.
    for len in [4096, 1 << 20, (3 << 20) + 8192] {
        block.preallocate(len).unwrap();
        match is_initialised(&block.file, len) {
            None => eprintln!("skipped: this file system does not tell where blocks are"),
            initialised => assert_eq!(initialised, Some(true)),
        }
    }
    assert_eq!(block.file.metadata().unwrap().len(), (3 << 20) + 8192);
}

#[test]
fn direct_writes_are_seen_by_buffered_reads_and_after_them() {
    let dir = temporary();
    let Some(block) = direct(dir.path()) else { return };
    block.preallocate(1 << 16).unwrap();
    let mut back = vec![0; 4096];
    let mut aligned = AlignedBuf::default();
    aligned.resize(4096);
    for round in 1..20 {
        aligned.as_mut_slice().fill(round);
        // Read first, so that the page cache has the bytes that the next write makes stale.
        block.read(8192, &mut back).unwrap();
        let durability = if round % 2 == 0 { Durability::Fua } else { Durability::Full };
        block.write_durably(8192, aligned.as_slice(), durability).unwrap();
        block.read(8192, &mut back).unwrap();
        assert_eq!(back, [round; 4096]);
    }
}

#[test]
fn parts_are_read_one_after_the_other_and_what_was_written_directly_too() {
    let dir = temporary();
    for access in [Access::Auto, Access::Buffered] {
        let path = dir.path().join(format!("{access:?}"));
        let block = FileBlock::open(create(&path), &path, &of(4096, access)).unwrap();
        block.preallocate(2048 * 4096).unwrap();
        let mut written = AlignedBuf::default();
        written.resize(2048 * 4096);
        for (at, word) in (0_u64..).zip(written.as_mut_slice().chunks_mut(8)) {
            word.copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        }
        block.write_durably(0, written.as_slice(), Durability::Full).unwrap();
        block.will_read(0, 0);
        block.will_read(4096, 1 << 20);
        block.will_read(1 << 40, 4096);
        // The last case needs more buffers than one system call fills.
        for (from, len, count) in [(0, 4096, 1), (4096, 8192, 3), (4000, 100, 40), (4096, 4096, 1500)] {
            let mut found = vec![0; len * count];
            let mut parts: Vec<&mut [u8]> = found.chunks_mut(len).collect();
            let before = block.counters().read_bytes;
            block.read_parts(from as u64, &mut parts).unwrap();
            assert_eq!(block.counters().read_bytes - before, (len * count) as u64);
            assert!(found == written.as_slice()[from..from + len * count], "{access:?}: {count} of {len}");
        }
        let (mut last, mut behind) = ([0; 4096], [0; 4096]);
        let beyond = block.read_parts(2047 * 4096, &mut [&mut last, &mut behind]);
        assert!(matches!(beyond, Err(MediumError::OutOfBounds { .. })), "{beyond:?}");
    }
}

#[test]
fn large_reads_find_the_same_at_every_place_and_into_any_memory() {
    let dir = temporary();
    for access in [Access::Auto, Access::Buffered] {
        let path = dir.path().join(format!("{access:?}"));
        let block = FileBlock::open(create(&path), &path, &of(4096, access)).unwrap();
        block.preallocate(64 * 4096).unwrap();
        let mut written = AlignedBuf::default();
        written.resize(64 * 4096);
        for (at, word) in (0_u64..).zip(written.as_mut_slice().chunks_mut(8)) {
            word.copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        }
        block.write_durably(0, written.as_slice(), Durability::Full).unwrap();
        // The first read is aligned in the file and in memory, so it needs no copy. The second is aligned
        // only in the file, the third only in memory, and the fourth in neither. The last read has a length
        // that is not aligned.
        for (at, shift, len) in [
            (4096, 0, 32 * 4096),
            (4096, 3, 32 * 4096),
            (100, 0, 20 * 4096),
            (100, 3, 70_001),
            (8192, 0, 70_001),
        ] {
            let mut memory = AlignedBuf::default();
            memory.resize(shift + len);
            memory.as_mut_slice().fill(0xEE);
            let found = &mut memory.as_mut_slice()[shift..];
            block.read(at as u64, found).unwrap();
            assert!(found == &written.as_slice()[at..at + len], "{access:?}: {len} from {at} with {shift}");
        }
    }
}

#[test]
fn small_direct_writes_leave_their_neighbours_alone() {
    let dir = temporary();
    let block = match open(dir.path(), &of(512, Access::Direct)) {
        Err(MediumError::Unsupported { what }) => {
            eprintln!("skipped: {what} here");
            return;
        }
        other => other.unwrap(),
    };
    block.preallocate(8192 + 512).unwrap();
    assert_eq!(block.len(), 8192 + 512);
    for durability in [Durability::Full, Durability::Fua, Durability::Normal] {
        block.write_durably(0, &[1; 8192], durability).unwrap();
        block.write_durably(512, &[2; 512], durability).unwrap();
        block.write_durably(8192, &[3; 512], durability).unwrap();
        let mut back = vec![0; 8192 + 512];
        block.read(0, &mut back).unwrap();
        assert_eq!((&back[..512], &back[512..1024]), (&[1; 512][..], &[2; 512][..]));
        assert_eq!((&back[1024..8192], &back[8192..]), (&[1; 7168][..], &[3; 512][..]));
    }
}

#[test]
fn writers_at_once_do_not_mix_up_what_they_write() {
    let dir = temporary();
    let block = open(dir.path(), &of(4096, Access::Auto)).unwrap();
    block.preallocate(1 << 18).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let block = &block;
            scope.spawn(move || {
                let odd = vec![writer + 1; 4097];
                for i in 0..16 {
                    block.write(u64::from(writer) * 65536 + i * 4096, &odd[1..]).unwrap();
                }
            });
        }
    });
    let mut back = vec![0; 65536];
    for writer in 0..4_u8 {
        block.read(u64::from(writer) * 65536, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == writer + 1));
    }
}

#[test]
fn alignment_is_tried_where_it_is_not_told() {
    let dir = temporary();
    let Some(block) = direct(dir.path()) else { return };
    block.preallocate(1 << 16).unwrap();
    let direct = block.direct.as_ref().unwrap();
    let (offset_align, memory_align) = tried_alignment(&direct.file).unwrap();
    if let Some((told_offset, told_memory)) = told_alignment(&direct.file) {
        // The alignment found by trying is at least as coarse as the reported one, so it is safe to use.
        assert_eq!(offset_align, told_offset.max(512));
        assert!(memory_align >= told_memory);
    }
    // An empty file has too few bytes for a trial.
    assert_eq!(tried_alignment(&scratch_of(0)), None);
}

fn scratch_of(len: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    file
}

#[test]
fn block_sizes_that_are_none_are_refused() {
    let dir = temporary();
    for bytes in [0, 1, 256, 513, 4095, 12288] {
        let refused = open(dir.path(), &of(bytes, Access::Buffered));
        assert_eq!(refused, Err(MediumError::Unsupported { what: "this block size" }));
    }
    for bytes in [512, 4096, 65536] {
        let block = open(dir.path(), &of(bytes, Access::Buffered)).unwrap();
        assert_eq!(block.block_bytes(), bytes);
    }
}

#[test]
fn short_and_interrupted_writes_are_finished() {
    let blocks: Vec<u8> = (0..4096_u32).map(|i| (i / 512) as u8).collect();
    let mut file = vec![0xff; 8192];
    let mut replies = [Err(Errno::INTR), Ok(1000), Ok(512), Err(Errno::INTR), Ok(4096)].into_iter();
    let done = write_fully(512, 4096, &blocks, |rest, at| {
        let count = replies.next().unwrap()?.min(rest.len());
        file[at as usize..at as usize + count].copy_from_slice(&rest[..count]);
        assert!(at.is_multiple_of(512), "begins again at a sector");
        Ok(count)
    });
    assert_eq!((done, &file[4096..]), (Ok(()), &blocks[..]));
    assert_eq!(replies.next(), None);
    // A write without progress has to be an error, because otherwise it would be repeated for ever.
    assert_eq!(write_fully(512, 0, &blocks, |_, _| Ok(0)), Err(Errno::IO));
    assert_eq!(write_fully(512, 0, &blocks, |_, _| Ok(511)), Err(Errno::IO));
    assert_eq!(write_fully(512, 0, &blocks, |_, _| Err(Errno::NOSPC)), Err(Errno::NOSPC));
    assert_eq!(write_fully(512, 0, &[], |_, _| Err(Errno::IO)), Ok(()));
}

#[test]
fn devices_without_durable_writes_get_a_write_and_a_flush() {
    let dir = temporary();
    let Some(block) = direct(dir.path()) else { return };
    block.preallocate(1 << 16).unwrap();
    block.no_dsync.store(true, Ordering::Relaxed);
    let before = block.counters();
    block.write_durably(4096, &[9; 4096], Durability::Fua).unwrap();
    let after = block.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
    let mut back = [0; 4096];
    block.read(4096, &mut back).unwrap();
    assert_eq!(back, [9; 4096]);
}

#[test]
fn directories_are_made_durable() {
    let dir = temporary();
    sync_directory(dir.path()).unwrap();
    assert!(matches!(sync_directory(&dir.path().join("none")), Err(MediumError::Io { op: "open", .. })));
}

/// A file system of 1 MiB in memory. Dropping the value unmounts it.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn mount() -> Option<Self> {
        let dir = temporary();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(dir))
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_takes_nothing_and_keeps_what_was_there() {
    let Some(tiny) = Tiny::mount() else {
        eprintln!("skipped: no file system can be mounted");
        return;
    };
    let block = open(tiny.0.path(), &of(4096, Access::Auto)).unwrap();
    block.preallocate(256 << 10).unwrap();
    block.write_durably(0, &[7; 4096], Durability::Full).unwrap();
    for _ in 0..3 {
        assert_eq!(block.preallocate(4 << 20), Err(MediumError::NoSpace));
        assert_eq!(block.reserve(4 << 20), Err(MediumError::NoSpace));
        assert_eq!(block.len(), 256 << 10);
        block.refresh_len().unwrap();
        assert_eq!(block.len(), 256 << 10);
        assert_eq!(block.file.metadata().unwrap().len(), 256 << 10);
    }
    // Write zeros without reserving space first, so that the space runs out in the middle.
    assert_eq!(block.write_zeros(256 << 10, 4 << 20, true), Err(MediumError::NoSpace));
    rustix::fs::ftruncate(&block.file, 256 << 10).unwrap();
    let mut back = [0; 4096];
    block.read(0, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    // The failed preallocation has given its space back.
    block.preallocate(768 << 10).unwrap();
    assert_eq!(block.len(), 768 << 10);
}

#[test]
fn a_length_that_may_be_taken_back_is_not_learnt() {
    let dir = temporary();
    let block = open(dir.path(), &of(4096, Access::Buffered)).unwrap();
    block.preallocate(8192).unwrap();
    *block.sure.lock().unwrap() = Some(8192);
    block.file.set_len(1 << 20).unwrap();
    block.refresh_len().unwrap();
    assert_eq!(block.len(), 8192);
    *block.sure.lock().unwrap() = None;
    block.refresh_len().unwrap();
    assert_eq!(block.len(), 1 << 20);
}
