//! A store with any changed bytes in its pages and its log, with or without corrected checksums. The store
//! must be refused, or serve rows and be usable. Recovery must never panic, read outside the media, or run
//! without end.
#![no_main]

use std::sync::{Arc, OnceLock};

use duralite_crashmodel::{RecordingBlock, RecordingNvm};
use duralite_medium::{Nvm, block::Block};
use duralite_store::format::{
    BATCH_HEADER_BYTES, Batch, DISK_DATA_OFFSET, DISK_SLOT_OFFSETS, DiskHead, NvHead, OBJECT_ALIGNMENT,
    PageFileHead, RINGS_OFFSET, RingsHead, page_id, seal, seal_object,
};
use duralite_store::{Error, LogMedium, Media, Options, Scheme, Store, WhichLog};
use libfuzzer_sys::fuzz_target;

const PAGE: usize = 4096;
const SCHEMES: [Scheme; 3] = [Scheme::Auto, Scheme::FlushOnCommit, Scheme::Distributed];
const LOG_BYTES: u64 = 4 << 20;
/// The number of further rows. Their pages are ten times as many as the smallest cache has frames.
const BULK: u32 = 5200;
/// The most bytes of the page file. A damaged map may ask for a large file.
const MOST_PAGES: u64 = 8 << 20;

#[derive(Debug)]
struct InMemory {
    pages: Arc<RecordingBlock>,
    log: Arc<RecordingBlock>,
    memory: Arc<RecordingNvm>,
}

impl Media for InMemory {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        Ok(self.pages.clone())
    }
    fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> {
        Ok(self.log.clone())
    }
    fn memory_log(&self, _: WhichLog, _bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        Ok(self.memory.clone())
    }
}

#[derive(Clone)]
struct Images {
    pages: Vec<u8>,
    log: Vec<u8>,
    memory: Vec<u8>,
}

impl Images {
    fn media(&self) -> InMemory {
        let pages = RecordingBlock::from_bytes(self.pages.clone(), 4096);
        pages.set_limit(MOST_PAGES);
        InMemory {
            pages: Arc::new(pages),
            log: Arc::new(RecordingBlock::from_bytes(self.log.clone(), 4096)),
            memory: Arc::new(RecordingNvm::from_bytes(self.memory.clone(), LOG_BYTES * 4)),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((first, changes)) = data.split_first() else { return };
    let which = usize::from(first % 3);
    // With ten times as many pages as the smallest cache has frames, pages are evicted and written home,
    // during recovery and after it.
    let is_large = first & 64 != 0;
    let mut images = good(which, is_large).clone();
    for change in changes.chunks_exact(6) {
        apply(&mut images, which, change.try_into().unwrap());
    }
    if first & 128 != 0 {
        repair_log(&mut images, which);
    }
    use_all(&images, which);
});

fn options(which: usize) -> Options {
    let log = if which == 0 { LogMedium::Disk } else { LogMedium::Emulated };
    Options::default()
        .log(log)
        .scheme(SCHEMES[which])
        .log_bytes(LOG_BYTES)
        .cache_bytes(Options::smallest_cache_bytes(PAGE as u32))
        .page_bytes(PAGE as u32)
}

/// Rows in the page file and in the log, long rows, a deleted row, and a transaction that did not commit.
fn good(which: usize, is_large: bool) -> &'static Images {
    static GOOD: [OnceLock<Images>; 6] = [const { OnceLock::new() }; 6];
    GOOD[which * 2 + usize::from(is_large)].get_or_init(|| {
        let empty = Images { pages: vec![], log: vec![], memory: vec![] };
        let media = empty.media();
        let (pages, log, memory) = (media.pages.clone(), media.log.clone(), media.memory.clone());
        let store = Store::open_on(media, options(which)).unwrap();
        let table = store.table("t").unwrap();
        let put = |n: u8| {
            let len = if n % 20 == 7 { 9000 } else { 100 };
            store.run(|tx| tx.put(&table, &[n], &vec![n; len])).unwrap();
        };
        (0..60).for_each(put);
        let bulk = store.table("bulk").unwrap();
        let rows = |first: u32, count: u32, by: u8| {
            let most = if is_large { BULK } else { 0 };
            (first..most.min(first + count)).map(move |n| (n.to_be_bytes(), [by; 500]))
        };
        for first in (0..BULK).step_by(100) {
            store.run(|tx| tx.put_all(&bulk, rows(first, 100, 1))).unwrap();
        }
        store.checkpoint().unwrap();
        (50..90).for_each(put);
        store.run(|tx| tx.delete(&table, &[7])).unwrap();
        let mut open = store.begin();
        open.put(&table, &[9], b"never committed").unwrap();
        // Changes rows all over the table. Most of their pages are written home before the end.
        for first in (0..BULK).step_by(25) {
            open.put_all(&bulk, rows(first, 1, 2)).unwrap();
        }
        store.run(|tx| tx.put(&table, &[99], b"last")).unwrap();
        Images { pages: pages.to_bytes(), log: log.to_bytes(), memory: memory.to_bytes() }
    })
}

/// Makes a change: to the pages or to the log, with or without a corrected page checksum, at the place and by
/// the amount that the bytes say.
fn apply(images: &mut Images, which: usize, change: [u8; 6]) {
    let [how, at @ .., by] = change;
    let at = u32::from_le_bytes(at) as usize;
    let Ok(head) =
        PageFileHead::decode(&images.pages).or_else(|_| PageFileHead::decode(&images.pages[PAGE..]))
    else {
        return;
    };
    let bytes = match (how % 2, which) {
        (0, _) => &mut images.pages,
        (_, 0) => &mut images.log,
        _ => &mut images.memory,
    };
    // Most bytes are zeros, so half of the changes skip to the next byte that is not zero.
    let mut at = at % bytes.len();
    if how & 2 != 0 {
        at = bytes.iter().skip(at).position(|byte| *byte != 0).map_or(at, |more| at + more);
    }
    bytes[at] = bytes[at].wrapping_add(by);
    if how % 2 == 0 && how & 4 != 0 {
        let page = at / PAGE;
        let bytes = &mut images.pages[page * PAGE..(page + 1) * PAGE];
        if page_id(bytes) == page as u64 {
            seal(bytes, page as u64, head.seed());
        }
    }
}

/// Corrects the checksums of the log's objects.
fn repair_log(images: &mut Images, which: usize) {
    match which {
        0 => repair_batches(&mut images.log),
        1 => {
            if let Ok(head) = NvHead::decode(&images.memory) {
                repair_objects(&mut images.memory, head.extent_at(0) as usize, |_| head.seed);
            }
        }
        _ => {
            let Ok(head) = RingsHead::decode(&images.memory) else { return };
            // The seed of an object that the first pass over the ring wrote.
            let seed = |at: usize| {
                let (ring, place) = ((at as u64) / head.ring_bytes, (at as u64) % head.ring_bytes);
                head.seed ^ place.rotate_left(20) ^ ring.rotate_left(56)
            };
            repair_objects(&mut images.memory, RINGS_OFFSET as usize, seed);
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().unwrap()) as usize)
}

/// Corrects the checksum of everything that looks like an object, with a number and a length.
fn repair_objects(bytes: &mut [u8], begin: usize, seed: impl Fn(usize) -> u64) {
    let mut at = begin;
    while at + 48 <= bytes.len() {
        let len = u32_at(bytes, at + 36);
        let lsn = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap());
        if lsn == 0 || len < 48 || at + len > bytes.len() {
            at += OBJECT_ALIGNMENT as usize;
            continue;
        }
        let epoch = u32_at(bytes, at + 32) as u32;
        seal_object(&mut bytes[at..at + len], lsn, epoch, seed(at - begin));
        at += len.next_multiple_of(OBJECT_ALIGNMENT as usize);
    }
}

fn repair_batches(log: &mut [u8]) {
    let Ok(head) = DiskHead::decode(log) else { return };
    for at in DISK_SLOT_OFFSETS {
        let at = at as usize;
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&log[at..at + 40], head.seed);
        log[at + 40..at + 48].copy_from_slice(&sum.to_le_bytes());
    }
    let mut at = DISK_DATA_OFFSET as usize;
    while at + BATCH_HEADER_BYTES <= log.len() {
        let Some(batch) = Batch::claimed(&log[at..], at as u64 - DISK_DATA_OFFSET) else { return };
        let end = (at + BATCH_HEADER_BYTES).saturating_add(batch.bytes as usize);
        let Some(bytes) = log.get_mut(at..end) else { return };
        let mut object = BATCH_HEADER_BYTES;
        for lsn in (batch.first_lsn..).take(batch.objects as usize) {
            let len = u32_at(bytes, object + 36);
            if len < 48 || object + len > bytes.len() {
                break;
            }
            seal_object(&mut bytes[object..object + len], lsn, batch.epoch, head.seed);
            object += len;
        }
        batch.seal(bytes, head.seed);
        at = end.next_multiple_of(4096);
    }
}

/// Uses the whole store. Errors are allowed.
fn use_all(images: &Images, which: usize) {
    let media = images.media();
    let Ok(store) = Store::open_on(media, options(which)) else { return };
    let _ = store.verify();
    let Ok(table) = store.table("t") else { return };
    let _ = store.run(|tx| tx.scan(&table, ..).rev().collect::<Result<Vec<_>, _>>());
    for n in (0..99_u8).step_by(9) {
        let _ = store.run(|tx| tx.put(&table, &[n], &[1; 900]));
        let _ = store.run(|tx| tx.delete(&table, &[n + 1]));
    }
    let _ = store.run(|tx| tx.put(&table, b"long", &[2; 9000]));
    let Ok(bulk) = store.table("bulk") else { return };
    for first in (0..BULK).step_by(600) {
        let _ = store.run(|tx| tx.put_all(&bulk, (first..first + 3).map(|n| (n.to_be_bytes(), [3; 700]))));
    }
    let _ = store.run(|tx| tx.scan(&bulk, ..).try_fold(0, |count, row| row.map(|_| count + 1)));
    let _ = store.checkpoint();
}
