//! Only the medium limits the size of a transaction or a log. These tests use numbers that need more than 32 bits, on a
//! medium that stores a block of equal bytes as one byte.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use duralite_format::sqlite_wal::{WalHeader, make_wal_header};
use duralite_format::waldio::{Layout, Superblock};
use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, LocalSegment, MediumError};
use duralite_wal::engine::Commit;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::{HeapMode, NvwalOptions, WaldioOptions};

const PAGE: u32 = 65536;
const UNIT: usize = 512;

/// A medium whose blocks mostly repeat one byte.
#[derive(Debug, Default)]
struct UniformBlock(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    fill: Vec<u8>,
    odd: HashMap<u64, Box<[u8]>>,
    largest_write: usize,
    largest_read: usize,
}

impl UniformBlock {
    fn with<T>(&self, work: impl FnOnce(&mut Content) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Block for UniformBlock {
    fn block_bytes(&self) -> u32 {
        UNIT as u32
    }
    fn len(&self) -> u64 {
        self.with(|content| content.fill.len() as u64) * UNIT as u64
    }
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        let blocks = len as usize / UNIT;
        self.with(|content| content.fill.resize(blocks.max(content.fill.len()), 0));
        Ok(())
    }
    fn refresh_len(&self) -> Result<(), MediumError> {
        Ok(())
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.with(|content| {
            content.largest_read = content.largest_read.max(buf.len());
            let mut at = at as usize;
            let mut rest = buf;
            while !rest.is_empty() {
                let (number, within) = (at / UNIT, at % UNIT);
                let count = rest.len().min(UNIT - within);
                let (here, behind) = rest.split_at_mut(count);
                match content.odd.get(&(number as u64)) {
                    Some(odd) => here.copy_from_slice(&odd[within..within + count]),
                    None => here.fill(content.fill[number]),
                }
                at += count;
                rest = behind;
            }
        });
        Ok(())
    }
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.with(|content| {
            content.largest_write = content.largest_write.max(blocks.len());
            for (number, block) in (at as usize / UNIT..).zip(blocks.chunks(UNIT)) {
                if block[1..] == block[..block.len() - 1] {
                    content.odd.remove(&(number as u64));
                    content.fill[number] = block[0];
                } else {
                    content.odd.insert(number as u64, block.into());
                }
            }
        });
        Ok(())
    }
    fn write_durably(&self, at: u64, blocks: &[u8], _durability: Durability) -> Result<(), MediumError> {
        self.write(at, blocks)
    }
    fn flush(&self) -> Result<(), MediumError> {
        Ok(())
    }
    fn counters(&self) -> BlockCounters {
        BlockCounters::default()
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }
    fn describe(&self) -> String {
        "uniform blocks".to_owned()
    }
}

fn attach(block: Arc<dyn Block>, superblock: &Superblock) -> Waldio {
    let options = WaldioOptions { layout: superblock.layout, cache_bytes: 0, ..WaldioOptions::default() };
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    Waldio::attach(block, superblock.clone(), Path::new("log"), &options, segment, 0, true).expect("attach")
}

fn fill_of(frame: u32) -> u8 {
    (frame % 251) as u8 + 1
}

/// Commits a transaction of this many frames, and then a small transaction.
fn commit(log: &mut Waldio, frames: u32) {
    let header = WalHeader::parse(&make_wal_header(PAGE, 1, [1, 2])).expect("header");
    log.begin_generation(&NoDatabase, Some(&header)).expect("restart");
    let mut page = vec![0; PAGE as usize];
    let mut first_frame = 1;
    for last_frame in [frames, frames + 1] {
        for frame in first_frame..=last_frame {
            page.fill(fill_of(frame));
            log.stage(&NoDatabase, frame, frame, &page).expect("stage");
        }
        let commit = Commit { first_frame, last_frame, db_pages: frames + 1, checksum: [3, 4] };
        let ticket = log.seal(&NoDatabase, &commit).expect("seal");
        let waiter = log.durability_waiter().expect("a waiter");
        ticket.into_iter().for_each(|ticket| waiter.wait(ticket).expect("durable"));
        first_frame = last_frame + 1;
    }
}

fn check(log: &mut Waldio, frames: u32) {
    let mut page = vec![0; PAGE as usize];
    assert_eq!((log.committed(), log.transactions()), (frames + 1, 2));
    for frame in (1..=frames + 1).step_by(997).chain(frames - 3..=frames + 1) {
        log.read_page(&NoDatabase, frame, &mut page).expect("read");
        assert!(page == vec![fill_of(frame); PAGE as usize], "frame {frame}");
    }
}

#[test]
fn inv10_a_transaction_of_more_than_four_gibibytes_is_one_transaction() {
    let frames = ((1_u64 << 32) / u64::from(PAGE)) as u32 + 300;
    let superblock = common::waldio_superblock(Layout::Delta, PAGE, u64::MAX);
    let block = Arc::new(UniformBlock::default());
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let mut log = attach(block.clone(), &superblock);
    commit(&mut log, frames);
    assert!(log.used_bytes() > 1 << 32);
    check(&mut log, frames);
    drop(log);
    check(&mut attach(block.clone(), &superblock), frames);
    // Neither a writer nor a reader holds more than a small piece of the log in memory.
    let (read, written) = block.with(|content| (content.largest_read, content.largest_write));
    assert!(read <= 2 << 20 && written <= 2 << 20, "{read} read, {written} written at once");
}

#[test]
fn a_large_transaction_of_frames_goes_out_piece_by_piece() {
    let frames = 100;
    let superblock = common::waldio_superblock(Layout::Embedded, PAGE, u64::MAX);
    let block = Arc::new(UniformBlock::default());
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let mut log = attach(block.clone(), &superblock);
    commit(&mut log, frames);
    check(&mut log, frames);
    check(&mut attach(block.clone(), &superblock), frames);
    assert!(block.with(|content| content.largest_write) < 2 << 20);
}

/// A log's table of block states has its full size from the beginning. So the table has to be small, however large the
/// log may become.
#[test]
fn inv10_without_a_limit_the_file_system_is_the_limit() {
    for size in [1_u64 << 30, 1 << 36, 1 << 40, 1 << 44, 1 << 47] {
        let options = NvwalOptions { limit_bytes: size, ..NvwalOptions::default() };
        for page_bytes in [512, 4096, 65536] {
            let (block_bytes, blocks) = Nvwal::shape(&options, page_bytes);
            let most = u64::from(block_bytes) * u64::from(blocks);
            assert!(most <= size && most > size - size / 8, "{most} of {size}");
            assert!(blocks <= 1 << 20, "a table of {blocks} bytes");
            assert!(block_bytes == 65536 || size > 1 << 36 || page_bytes == 65536);
        }
    }
    let none = NvwalOptions { limit_bytes: 0, ..NvwalOptions::default() };
    let (block_bytes, blocks) = Nvwal::shape(&none, 4096);
    assert!(u64::from(block_bytes) * u64::from(blocks) >= 1 << 40);
    for given in [
        NvwalOptions { block_bytes: 8192, ..none.clone() },
        NvwalOptions { heap: HeapMode::System, ..none.clone() },
    ] {
        assert_eq!(Nvwal::shape(&given, 4096), (8192, 4 << 20));
    }
    assert_eq!(WaldioOptions::default().limit(), u64::MAX);
}
