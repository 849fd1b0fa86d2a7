//! Tests of the interleaving of merges, recovery and several processes. Each test provokes one fault that a code review
//! has found.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod between;

use std::path::Path;
use std::sync::{Arc, Mutex};

use duralite_crashmodel::{Crashes as _, RecordingNvm};
use duralite_format::ppl::{Extent, NO_LIMIT_CHUNKS, SECTORS_PER_CHUNK, Superblock, TRANSACTIONS};
use duralite_format::{LogHead, LogId};
use duralite_medium::{LocalSegment, Nvm, Segment};

use super::area::State;
use super::merge::Cause;
use super::words::{OPEN, SEALED, SECTORS_USED};
use super::{Ppl, PplOptions, SHARED_BYTES};
use crate::LogError;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::{Commit, Engine as _};
use between::{Between, Memory, Shared, Step};

const PAGE: usize = 512;
const PAGES: u32 = 9;

type Meanwhile = Box<dyn FnOnce(&Database) + Send>;

/// A database file in memory. A test can make something happen before a write or during a sync of the file.
#[derive(Default)]
struct Database {
    bytes: Mutex<Vec<u8>>,
    before_write: Mutex<Option<Meanwhile>>,
    meanwhile: Mutex<Option<Meanwhile>>,
    /// The memory of the log, if a test crashes it.
    crashing: Option<Arc<RecordingNvm>>,
    /// The file as it was when the crash came.
    at_crash: Mutex<Option<Vec<u8>>>,
}

impl Database {
    /// If the crash has come, keeps a copy of the file as it is now. Later calls keep the first copy.
    fn keep_if_crashed(&self) {
        if self.crashing.as_ref().is_some_and(|nvm| nvm.has_crashed()) {
            self.at_crash.lock().unwrap().get_or_insert_with(|| self.bytes.lock().unwrap().clone());
        }
    }

    /// Returns the file that the crash has left.
    fn left(&self) -> Self {
        self.keep_if_crashed();
        Self { bytes: Mutex::new(self.at_crash.lock().unwrap().clone().unwrap()), ..Self::default() }
    }

    /// Returns a page of the file.
    fn page(&self, page_number: u32) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        self.read(&mut page, u64::from(page_number - 1) * PAGE as u64).unwrap();
        page
    }
}

impl DatabaseFile for Database {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let bytes = self.bytes.lock().unwrap();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&self, new: &[u8], offset: u64) -> Result<(), LogError> {
        self.keep_if_crashed();
        let before_write = self.before_write.lock().unwrap().take();
        if let Some(before_write) = before_write {
            before_write(self);
        }
        let mut bytes = self.bytes.lock().unwrap();
        let end = offset as usize + new.len();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[offset as usize..end].copy_from_slice(new);
        Ok(())
    }

    fn sync(&self) -> Result<(), LogError> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile(self);
        }
        Ok(())
    }

    fn size(&self) -> Result<u64, LogError> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.keep_if_crashed();
        self.bytes.lock().unwrap().truncate(bytes as usize);
        Ok(())
    }
}

/// A log, and its users, each of which stands for a separate process.
struct Rig {
    nvm: Arc<RecordingNvm>,
    segment: Arc<LocalSegment>,
    file: Database,
}

impl Rig {
    /// Makes a log with a limit.
    fn new(chunks: u32) -> Self {
        Self::with(chunks, chunks)
    }

    /// Makes a log without a limit.
    fn usually(chunks: u32) -> Self {
        Self::with(chunks, NO_LIMIT_CHUNKS)
    }

    fn with(usual_chunks: u32, limit_chunks: u32) -> Self {
        let superblock = Superblock {
            head: LogHead {
                page_bytes: PAGE as u32,
                log_id: LogId([3; 16]),
                db_inode: 1,
                db_birth_ns: 2,
                path: Vec::new(),
                made_in: None,
            },
            sector_bytes: 4096,
            limit_chunks,
            usual_chunks,
            slots: 8,
            buckets: 8,
        };
        let nvm = Arc::new(RecordingNvm::new(0, superblock.geometry().file_bytes(limit_chunks)));
        Ppl::format(nvm.as_ref(), &superblock).unwrap();
        let rig = Self { nvm, segment: Arc::new(LocalSegment::new(SHARED_BYTES)), file: Database::default() };
        rig.file.write(&[0; PAGE * PAGES as usize], 0).unwrap();
        rig
    }

    fn attach(&self, alone: bool) -> Ppl {
        attach(&self.nvm, &self.segment, alone)
    }

    /// Attaches the log as a process. Other processes may act between two of its steps.
    fn attach_between(&self, between: &Arc<Between>) -> Ppl {
        let shared = Shared { below: Arc::clone(&self.segment), between: Arc::clone(between) };
        let memory = Memory { below: Arc::clone(&self.nvm), between: Arc::clone(between) };
        attach_to(Arc::new(memory), Arc::new(shared), true)
    }

    /// Returns the page as seen by a process that attaches the log after all other processes have ended.
    fn recovered(&self, page_number: u32) -> Vec<u8> {
        let log = attach(&Arc::new(self.nvm.survive()), &Arc::new(LocalSegment::new(SHARED_BYTES)), true);
        home_page(&log, &self.file, page_number)
    }
}

fn attach(nvm: &Arc<RecordingNvm>, segment: &Arc<LocalSegment>, alone: bool) -> Ppl {
    attach_to(nvm.clone(), segment.clone(), alone)
}

fn attach_to(nvm: Arc<dyn Nvm>, segment: Arc<dyn Segment>, alone: bool) -> Ppl {
    let options = PplOptions { overflow_bytes: 0, cache_bytes: 0, ..PplOptions::default() };
    Ppl::attach(nvm, Path::new("tests"), &options, segment, 0, alone).unwrap()
}

fn home_page(log: &Ppl, file: &Database, page_number: u32) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    log.home().unwrap().read(file, &mut page, u64::from(page_number - 1) * PAGE as u64).unwrap();
    page
}

/// Returns the image of a version, which differs from the images of all other versions.
fn image(version: u32) -> Vec<u8> {
    (0..PAGE as u32).map(|at| (version.wrapping_mul(2_654_435_761).wrapping_add(at * 7) >> 8) as u8).collect()
}

/// Commits pages as one transaction.
fn commit(log: &mut Ppl, file: &Database, pages: &[(u32, u32)], db_pages: u32) -> Result<(), LogError> {
    log.refresh()?;
    commit_at(log, file, log.committed() + 1, pages, db_pages)
}

fn commit_at(
    log: &mut Ppl,
    file: &Database,
    first_frame: u32,
    pages: &[(u32, u32)],
    db_pages: u32,
) -> Result<(), LogError> {
    for (frame, (page_number, version)) in (first_frame..).zip(pages) {
        log.stage(file, frame, *page_number, &image(*version))?;
    }
    let last_frame = first_frame + pages.len() as u32 - 1;
    log.seal(file, &Commit { first_frame, last_frame, db_pages, checksum: [0; 2] }).map(drop)
}

/// Checkpoints the committed version of a page, as SQLite does.
fn checkpoint(log: &Ppl, file: &Database, page_number: u32, version: u32) -> Result<(), LogError> {
    log.home().unwrap().write(file, &image(version), u64::from(page_number - 1) * PAGE as u64)
}

fn slots_used(log: &Ppl) -> u64 {
    let metrics = log.metrics();
    metrics.iter().find(|(name, _)| *name == "slots_used").unwrap().1.parse().unwrap()
}

fn first_extent(log: &Ppl, page_number: u32) -> Extent {
    log.store.area.find_chain(page_number).unwrap().unwrap()
}

/// Returns the offset of a byte in the payload of a page's newest record; the page has two records.
fn newest_payload(log: &Ppl, page_number: u32) -> u64 {
    let chain = first_extent(log, page_number);
    let tail = log.store.area.state(chain, State::TailOffset) as u32;
    log.store.area.at(chain, tail - 9)
}

fn flip(nvm: &RecordingNvm, at: u64) {
    let mut byte = [0];
    nvm.read(at, &mut byte);
    nvm.store(at, &[byte[0] ^ 0x55]);
}

/// While two pages are merged, a transaction changes both again, and the new record of one page is damaged. The merge
/// fails at that record, after it has moved the log of the other page. Later changes of that other page have to go to
/// its old log.
#[test]
fn inv17_a_merge_whose_end_fails_leaves_no_moved_log() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1), (3, 2)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    checkpoint(&log, &rig.file, 3, 2).unwrap();
    let mut other = rig.attach(false);
    let nvm = rig.nvm.clone();
    let damaged = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let place = Arc::clone(&damaged);
    *rig.file.meanwhile.lock().unwrap() = Some(Box::new(move |file| {
        commit(&mut other, file, &[(2, 3), (3, 4)], PAGES).unwrap();
        let at = newest_payload(&other, 3);
        flip(&nvm, at);
        place.store(at, std::sync::atomic::Ordering::Relaxed);
    }));
    assert!(log.store.merge(&rig.file, &[2, 3], Cause::Full).is_err());
    flip(&rig.nvm, damaged.load(std::sync::atomic::Ordering::Relaxed));
    commit(&mut log, &rig.file, &[(2, 5)], PAGES).unwrap();
    assert!(rig.recovered(2) == image(5) && rig.recovered(3) == image(4));
    // The failed merge gives up the ownership of its slots, so the next merge, in this or any other process, continues
    // with them.
    assert_eq!(slots_used(&log), 2);
    log.home().unwrap().checkpointed(&rig.file).unwrap();
    assert_eq!(slots_used(&log), 0);
    assert!(rig.recovered(2) == image(5) && rig.recovered(3) == image(4));
}

/// The merge cannot read the second page of its batch, and gives up. It must erase the slot of the first page.
/// Otherwise recovery would take that slot for the image of the first page.
#[test]
fn inv17_images_of_a_batch_that_is_given_up_are_erased() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1), (3, 2)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    checkpoint(&log, &rig.file, 3, 2).unwrap();
    let at = newest_payload(&log, 3);
    flip(&rig.nvm, at);
    assert!(log.store.merge(&rig.file, &[2, 3], Cause::Full).is_err());
    assert_eq!(slots_used(&log), 0);
    flip(&rig.nvm, at);
    commit(&mut log, &rig.file, &[(2, 3)], PAGES).unwrap();
    assert!(rig.recovered(2) == image(3) && rig.recovered(3) == image(2));
}

/// Records newer than a merge move to a new log sector, or stay where they are if the file cannot grow.
#[test]
fn inv17_a_merge_ends_where_there_is_no_room_to_move_a_log() {
    let rig = Rig::new(20);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    // Use all sectors that the file has.
    let sectors = (log.store.area.known_chunks() * SECTORS_PER_CHUNK) as usize;
    let pages: Vec<(u32, u32)> = (3..).zip(100..).take(sectors - 1).collect();
    commit(&mut log, &rig.file, &pages, 400).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    let mut other = rig.attach(false);
    *rig.file.meanwhile.lock().unwrap() =
        Some(Box::new(move |file| commit(&mut other, file, &[(2, 3)], 400).unwrap()));
    rig.nvm.set_grow_limit(Some(rig.nvm.len()));
    log.store.merge(&rig.file, &[2], Cause::Full).unwrap();
    assert_eq!(slots_used(&log), 0);
    assert!(rig.recovered(2) == image(3));
}

/// A process has ended a merge, and is stopped right after it released the lock. Another process takes the free slot
/// for a merge of its own, and is stopped before it writes its page. The first process must not take over that second
/// merge. Otherwise the slot could be used for a third page before both processes have written.
#[test]
fn inv17_a_slot_that_another_process_takes_at_once_stays_its_own() {
    let between = Arc::new(Between::default());
    let mut rig = Rig::new(2);
    let mut log = rig.attach_between(&between);
    commit(&mut log, &rig.file, &[(2, 1), (3, 2)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    checkpoint(&log, &rig.file, 3, 2).unwrap();
    let other = rig.attach(false);
    let file = Arc::new(std::mem::take(&mut rig.file));
    let (same_file, last_step) = (Arc::clone(&file), Arc::clone(&between));
    *file.meanwhile.lock().unwrap() = Some(Box::new(move |_| {
        last_step.at(Step::Released, move || {
            other.store.publish(&*same_file, &[3], Cause::Full).unwrap();
        });
    }));
    assert_eq!(log.store.merge(&*file, &[2], Cause::Full).unwrap().pages, 1);
    assert!(between.is_over() && slots_used(&log) == 1);
    let merged = log.store.merge(&*file, &[3], Cause::Full).unwrap();
    assert!(merged.pages == 0 && merged.is_other_merging, "two processes merge page 3");
    assert!(file.page(2) == image(1) && file.page(3) == [0; PAGE]);
}

/// Returns the offset of a word in the state of an extent.
fn state_at(log: &Ppl, extent: Extent, state: State) -> u64 {
    log.store.area.geometry.state_offset(extent) + 8 * state as u64
}

/// A process walks a list of the page table, to find the pages that have logs. When it is at the log of a page, another
/// process frees the log's sector, and takes the sector for a page in another list. If the first process continued from
/// that sector, it would leave its own list, miss the rest of it, and find the pages of the other list twice.
#[test]
fn inv17_a_list_of_pages_is_made_anew_if_a_sector_was_taken_again_meanwhile() {
    const MISSED: u32 = 2;
    const FREED: u32 = 10;
    const NEW: u32 = 5;
    let between = Arc::new(Between::default());
    let mut rig = Rig::new(2);
    let mut log = rig.attach_between(&between);
    let list = |page| log.store.area.geometry.bucket_offset(page);
    assert!(list(MISSED) == list(FREED) && list(FREED) != list(NEW));
    commit(&mut log, &rig.file, &[(MISSED, 1), (FREED, 2)], FREED).unwrap();
    checkpoint(&log, &rig.file, MISSED, 1).unwrap();
    checkpoint(&log, &rig.file, FREED, 2).unwrap();
    let mut other = rig.attach(false);
    let file = Arc::new(std::mem::take(&mut rig.file));
    let (same_file, sector) = (Arc::clone(&file), first_extent(&log, FREED));
    between.at(Step::Loads(state_at(&log, sector, State::Bucket)), move || {
        other.store.merge(&*same_file, &[FREED], Cause::Full).unwrap();
        commit(&mut other, &same_file, &[(NEW, 3)], FREED).unwrap();
        assert_eq!(first_extent(&other, NEW), sector);
    });
    assert_eq!(log.store.relieve(&*file, Cause::Room).unwrap().pages, 1);
    assert!(between.is_over() && file.page(MISSED) == image(1));
    let found = [MISSED, FREED, NEW].map(|page| home_page(&after_all(&rig), &file, page));
    assert!(found == [1, 2, 3].map(image));
}

/// A list of pages to merge contains a page twice, and the page is changed during the merge.
#[test]
fn inv17_a_page_that_is_listed_twice_is_merged_once() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1), (3, 2)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    checkpoint(&log, &rig.file, 3, 2).unwrap();
    let mut other = rig.attach(false);
    *rig.file.meanwhile.lock().unwrap() =
        Some(Box::new(move |file| commit(&mut other, file, &[(2, 3)], PAGES).unwrap()));
    assert_eq!(log.store.merge(&rig.file, &[2, 3, 2], Cause::Full).unwrap().pages, 2);
    assert_eq!(slots_used(&log), 0);
    commit(&mut log, &rig.file, &[(2, 4)], PAGES).unwrap();
    assert!(rig.recovered(2) == image(4) && rig.recovered(3) == image(2));
}

/// While a process merges two pages, others change both, and the merge moves the new records. Then damage breaks the
/// list of the page table in which the first page is. Later commits of both pages have to go to the logs that recovery
/// finds.
#[test]
fn inv17_a_page_whose_merge_fails_last_does_not_stop_the_others() {
    let between = Arc::new(Between::default());
    let rig = Rig::new(2);
    let mut log = rig.attach_between(&between);
    commit(&mut log, &rig.file, &[(2, 1), (3, 2)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    checkpoint(&log, &rig.file, 3, 2).unwrap();
    let list = log.store.area.geometry.bucket_offset(2);
    assert_ne!(list, log.store.area.geometry.bucket_offset(3));
    let begins = rig.nvm.load_u64(list);
    let (mut other, nvm, first) = (rig.attach(false), rig.nvm.clone(), between.clone());
    *rig.file.meanwhile.lock().unwrap() = Some(Box::new(move |file| {
        commit(&mut other, file, &[(2, 3), (3, 4)], PAGES).unwrap();
        let second = first.clone();
        first.at(Step::TookSector, move || second.at(Step::TookSector, move || nvm.store_u64(list, 0)));
    }));
    assert!(log.store.merge(&rig.file, &[2, 3], Cause::Full).is_err());
    assert!(between.is_over());
    rig.nvm.store_u64(list, begins);
    commit(&mut log, &rig.file, &[(2, 5), (3, 6)], PAGES).unwrap();
    assert!(rig.recovered(2) == image(5) && rig.recovered(3) == image(6));
    assert_eq!(slots_used(&log), 1);
    log.home().unwrap().checkpointed(&rig.file).unwrap();
    assert_eq!(slots_used(&log), 0);
    assert!(rig.recovered(2) == image(5) && rig.recovered(3) == image(6));
}

/// Takes the sector that was freed last, like a process that is stopped before it stores anything there.
fn take_sector(other: &Ppl, sector: Extent) {
    let turn = other.store.lock().unwrap();
    let taken = other.store.area.take_of(&other.store.words, &turn, false).unwrap();
    assert_eq!(taken, Some(sector));
}

/// A reader of an old snapshot asks which transaction changed a page last. Before the answer, a merge moves the newer
/// records of the page, and another process takes the sector that held them.
#[test]
fn a_reader_whose_sector_is_taken_again_reads_its_snapshot() {
    let between = Arc::new(Between::default());
    let mut rig = Rig::new(2);
    let mut log = rig.attach_between(&between);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    commit(&mut log, &rig.file, &[(2, 2)], PAGES).unwrap();
    let other = rig.attach(false);
    let file = Arc::new(std::mem::take(&mut rig.file));
    let (same_file, sector) = (Arc::clone(&file), first_extent(&log, 2));
    between.at(Step::Loads(state_at(&log, sector, State::Last)), move || {
        other.store.merge(&*same_file, &[2], Cause::Full).unwrap();
        take_sector(&other, sector);
    });
    let mut page = vec![0; PAGE];
    log.read_page(&*file, 1, &mut page).unwrap();
    assert!(between.is_over() && page == image(1));
    log.read_page(&*file, 2, &mut page).unwrap();
    assert!(page == image(2));
}

/// A writer has an old image of a page, and asks whether it is the newest one. Before the answer, the page is merged,
/// and a process takes its sector for another page. The newest record of that page has the same transaction as the old
/// image.
#[test]
fn a_writer_whose_sector_is_taken_again_changes_the_newest_version() {
    let between = Arc::new(Between::default());
    let mut rig = Rig::new(2);
    let mut log = rig.attach_between(&between);
    commit(&mut log, &rig.file, &[(3, 11)], PAGES).unwrap();
    commit(&mut log, &rig.file, &[(2, 1), (3, 12)], PAGES).unwrap();
    let mut other = rig.attach(false);
    commit(&mut other, &rig.file, &[(2, 2)], PAGES).unwrap();
    checkpoint(&other, &rig.file, 2, 2).unwrap();
    checkpoint(&other, &rig.file, 3, 11).unwrap();
    let file = Arc::new(std::mem::take(&mut rig.file));
    let (same_file, sector) = (Arc::clone(&file), first_extent(&log, 2));
    between.at(Step::Loads(state_at(&log, sector, State::Last)), move || {
        other.store.merge(&*same_file, &[2], Cause::Full).unwrap();
        other.store.merge(&*same_file, &[3], Cause::Full).unwrap();
        assert_eq!((first_extent(&other, 3), other.store.last_of(3).unwrap()), (sector, Some(2)));
    });
    // The transaction writes the old image to the page again. A writer that compared the page with the old image would
    // find no change.
    commit(&mut log, &file, &[(2, 1)], PAGES).unwrap();
    assert!(between.is_over());
    let found = [2, 3].map(|page| home_page(&after_all(&rig), &file, page));
    assert!(found == [1, 12].map(image));
}

/// The writer of a transaction died before it could publish the transaction. While the log starts over, the record of that
/// transaction moves, and another process takes the sector that held it.
#[test]
fn an_unseen_transaction_whose_sector_is_taken_again_is_undone_when_the_log_starts_over() {
    let between = Arc::new(Between::default());
    let mut rig = Rig::new(2);
    let mut log = rig.attach_between(&between);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    commit(&mut log, &rig.file, &[(2, 2)], PAGES).unwrap();
    let other = rig.attach(false);
    let file = Arc::new(std::mem::take(&mut rig.file));
    let (same_file, sector) = (Arc::clone(&file), first_extent(&log, 2));
    between.at(Step::Loads(state_at(&log, sector, State::Last)), move || {
        other.store.merge(&*same_file, &[2], Cause::Full).unwrap();
        take_sector(&other, sector);
    });
    log.begin_generation(&*file, None).unwrap();
    assert!(between.is_over());
    assert!(home_page(&log, &file, 2) == image(1) && home_page(&after_all(&rig), &file, 2) == image(1));
}

/// Makes `other` continue the merge of a page, as if the owner of the page's slot had died. Then `other` uses the slot for
/// the merge of the page `next`, and does not end that merge.
fn take_slot(other: &Ppl, file: &Database, (page_number, slot): (u32, u32), next: u32) {
    other.store.words.own_slot(slot, false);
    assert_eq!(other.store.merge(file, &[page_number], Cause::Full).unwrap().pages, 1);
    other.store.publish(file, &[next], Cause::Full).unwrap();
    assert_eq!(other.store.slot_header(slot).unwrap().page_number, next);
}

/// A process has stored the images of two pages in slots. Before it writes the second page, that page's slot gets the image of
/// another page.
#[test]
fn inv17_a_merge_writes_no_page_from_a_slot_that_has_another_page() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1), (3, 2), (4, 3)], PAGES).unwrap();
    for (page, version) in [(2, 1), (3, 2), (4, 3)] {
        checkpoint(&log, &rig.file, page, version).unwrap();
    }
    let other = rig.attach(false);
    *rig.file.before_write.lock().unwrap() = Some(Box::new(move |file| take_slot(&other, file, (3, 1), 4)));
    let merged = log.store.merge(&rig.file, &[2, 3], Cause::Full);
    assert!(matches!(merged, Err(LogError::Unexpected(_))), "{merged:?}");
    assert!(rig.file.page(3) == image(2));
    let merged = log.store.merge(&rig.file, &[4], Cause::Full).unwrap();
    assert!(merged.pages == 0 && merged.is_other_merging, "the slot has its owner still");
    assert_eq!(log.store.merge(&rig.file, &[2], Cause::Full).unwrap().pages, 1);
    assert!(rig.recovered(2) == image(1) && rig.recovered(3) == image(2) && rig.recovered(4) == image(3));
}

/// Like the previous test, but the slot gets another image after the process has written its page. That page's log
/// stays where it is, because no sector is free for its newer record.
#[test]
fn inv17_a_merge_erases_no_slot_that_has_another_page() {
    let rig = Rig::new(20);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    let sectors = (log.store.area.known_chunks() * SECTORS_PER_CHUNK) as usize;
    let pages: Vec<(u32, u32)> = (3..).zip(100..).take(sectors - 1).collect();
    commit(&mut log, &rig.file, &pages, 400).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    checkpoint(&log, &rig.file, 3, 100).unwrap();
    let mut other = rig.attach(false);
    *rig.file.meanwhile.lock().unwrap() = Some(Box::new(move |file| {
        commit(&mut other, file, &[(2, 3)], 400).unwrap();
        take_slot(&other, file, (2, 0), 3);
    }));
    rig.nvm.set_grow_limit(Some(rig.nvm.len()));
    let merged = log.store.merge(&rig.file, &[2], Cause::Full);
    assert!(matches!(merged, Err(LogError::Unexpected(_))), "{merged:?}");
    assert_eq!(slots_used(&log), 1, "the image of page 3 is there still");
    assert!(rig.recovered(2) == image(3) && rig.recovered(3) == image(100));
}

/// One writer has read the log. Another writer dies in its commit, and a third process completes that commit before the first
/// writer stages a page.
#[test]
fn inv11_a_transaction_that_somebody_completes_is_seen_by_whoever_writes_next() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    let mut dies = rig.attach(false);
    commit(&mut dies, &rig.file, &[(2, 2), (3, 3)], PAGES).unwrap();
    // Set the words to their state before the last stores of the seal.
    rig.segment.store(SEALED, 1);
    rig.segment.store(OPEN, 2);
    log.refresh().unwrap();
    assert_eq!(log.committed(), 1);
    drop(rig.attach(false).store.lock().unwrap());
    assert_eq!((rig.segment.load(SEALED), rig.segment.load(OPEN)), (2, 0));
    // SQLite never published that commit. So the next transaction replaces its frames, and page 2 is as it was before.
    commit_at(&mut log, &rig.file, 2, &[(3, 4)], PAGES).unwrap();
    assert!(rig.recovered(2) == image(1) && rig.recovered(3) == image(4));
}

/// SQLite has checkpointed a smaller database. When the log starts over, it leaves pages beyond the end as they are.
#[test]
fn pages_beyond_the_end_are_left_alone_when_the_log_starts_over() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(1, 1), (5, 2)], 5).unwrap();
    commit(&mut log, &rig.file, &[(1, 3)], 3).unwrap();
    checkpoint(&log, &rig.file, 1, 3).unwrap();
    log.home().unwrap().truncate(&rig.file, 3 * PAGE as u64).unwrap();
    log.begin_generation(&rig.file, None).unwrap();
    assert_eq!(log.position(), 2, "nothing was committed to take them back");
    assert_eq!(log.home().unwrap().size(&rig.file).unwrap(), 3 * PAGE as u64);
    assert!(rig.recovered(1) == image(3));
}

/// Another process has grown the log and filled it beyond the part that this process knows. This process must count the new
/// part too.
#[test]
fn a_log_that_another_process_has_grown_is_counted_anew() {
    let rig = Rig::new(20);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    let known = log.store.area.known_chunks();
    let mut other = rig.attach(false);
    let pages: Vec<(u32, u32)> =
        (3..).zip(100..).take(SECTORS_PER_CHUNK as usize * known as usize + 16).collect();
    commit(&mut other, &rig.file, &pages, 400).unwrap();
    assert!(rig.segment.load(SECTORS_USED) > u64::from(known * SECTORS_PER_CHUNK));
    assert_eq!(log.store.area.known_chunks(), known);
    let need = super::area::Need { sectors: 1, pieces: 1 };
    let turn = log.store.lock().unwrap();
    log.store.area.make_room(&log.store.words, &turn, need, false).unwrap();
    drop(turn);
    assert_eq!(log.store.area.known_chunks(), other.store.area.known_chunks(), "there was room already");
    commit(&mut log, &rig.file, &[(390, 5)], 400).unwrap();
    assert!(rig.recovered(390) == image(5) && rig.recovered(3) == image(100));
}

/// SQLite writes to the database a page image that is none of the page's versions in the log. The write must fail while
/// the log has a committed version that is not checkpointed yet.
#[test]
fn inv17_a_page_that_nobody_committed_never_replaces_one_that_was() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    commit(&mut log, &rig.file, &[(2, 1)], PAGES).unwrap();
    checkpoint(&log, &rig.file, 2, 1).unwrap();
    commit(&mut log, &rig.file, &[(2, 2)], PAGES).unwrap();
    assert!(matches!(checkpoint(&log, &rig.file, 2, 77), Err(LogError::Unexpected(_))));
    assert!(rig.recovered(2) == image(2));
    checkpoint(&log, &rig.file, 2, 2).unwrap();
    checkpoint(&log, &rig.file, 2, 77).unwrap();
    assert!(rig.recovered(2) == image(77), "of what is home all by itself it is a version");
}

/// A new record of the transaction log replaces the record that was committed 1024 transactions earlier. If the new record is
/// torn, it is neither a commit nor damage, wherever it is torn.
#[test]
fn inv07_a_torn_transaction_record_is_no_damage() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    let last = TRANSACTIONS as u32 + 3;
    for version in 1..=last {
        commit(&mut log, &rig.file, &[(2, version)], PAGES).unwrap();
        checkpoint(&log, &rig.file, 2, version).unwrap();
        log.home().unwrap().checkpointed(&rig.file).unwrap();
    }
    let steps = 40;
    for (step, seed) in (0..steps).flat_map(|step| (0..8).map(move |seed| (step, seed))) {
        let nvm = Arc::new(rig.nvm.survive());
        let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
        let mut log = attach(&nvm, &segment, true);
        nvm.crash_before(step, seed);
        commit(&mut log, &rig.file, &[(2, last + 1)], PAGES).unwrap();
        let Some(left) = nvm.image() else { continue };
        let nvm = Arc::new(nvm.over(left));
        let log = attach(&nvm, &Arc::new(LocalSegment::new(SHARED_BYTES)), true);
        let found = home_page(&log, &rig.file, 2);
        let which = [image(last), image(last + 1)].iter().position(|image| *image == found);
        assert!(which.is_some(), "a crash before step {step}, seed {seed}");
    }
}

/// Runs `work`, and then drains the log. Passes to `check` each log that a power loss during the drain can leave.
fn crash_while_draining(work: impl Fn(&Rig, &mut Ppl), check: impl Fn(&Ppl, &Database, &str)) {
    let mut crashes = 0;
    for (step, seed) in (0..200).flat_map(|step| (0..4).map(move |seed| (step, seed))) {
        let rig = Rig::new(2);
        let mut log = rig.attach(true);
        work(&rig, &mut log);
        rig.nvm.crash_before(step, seed);
        log.home().unwrap().drain(&rig.file).unwrap();
        let Some(left) = rig.nvm.image() else { continue };
        crashes += 1;
        let log = attach(&Arc::new(rig.nvm.over(left)), &Arc::new(LocalSegment::new(SHARED_BYTES)), true);
        check(&log, &rig.file, &format!("a crash before step {step}, seed {seed}"));
    }
    assert!(crashes >= 40, "{crashes} crashes");
}

/// Two transactions have changed a page, and a third one has shortened the database so that the page lies beyond its
/// end. So no checkpoint writes the page.
#[test]
fn inv17_a_crash_while_a_page_beyond_the_end_is_dropped_leaves_a_log_that_opens() {
    let work = |rig: &Rig, log: &mut Ppl| {
        for version in 1..=2 {
            commit(log, &rig.file, &[(8, version)], PAGES).unwrap();
        }
        commit(log, &rig.file, &[(2, 3)], 5).unwrap();
        checkpoint(log, &rig.file, 2, 3).unwrap();
        log.home().unwrap().truncate(&rig.file, 5 * PAGE as u64).unwrap();
    };
    crash_while_draining(work, |log, file, what| assert_eq!(home_page(log, file, 2), image(3), "{what}"));
}

/// The writer of a transaction died before it could publish the transaction, and nobody has replaced the transaction's
/// frames.
#[test]
fn inv17_a_crash_while_an_unseen_transaction_is_dropped_leaves_all_of_it_or_nothing() {
    let work = |rig: &Rig, log: &mut Ppl| {
        commit(log, &rig.file, &[(2, 1), (3, 1)], PAGES).unwrap();
        checkpoint(log, &rig.file, 2, 1).unwrap();
        checkpoint(log, &rig.file, 3, 1).unwrap();
        commit(log, &rig.file, &[(2, 2), (3, 2)], PAGES).unwrap();
    };
    crash_while_draining(work, |log, file, what| {
        let found = [2, 3].map(|page| home_page(log, file, page));
        assert!([1, 2].map(|version| [image(version), image(version)]).contains(&found), "{what}");
    });
}

/// A close drops the log of a page beyond the end, which takes several extents. One power loss comes after the log was
/// cut off, and a second one while recovery frees the extents.
#[test]
fn inv17_a_crash_while_recovery_frees_a_dropped_log_leaves_a_log_that_opens() {
    let rig = Rig::new(2);
    let mut log = rig.attach(true);
    for version in 1..=20 {
        commit(&mut log, &rig.file, &[(8, version)], PAGES).unwrap();
    }
    commit(&mut log, &rig.file, &[(2, 30)], 5).unwrap();
    checkpoint(&log, &rig.file, 2, 30).unwrap();
    let mut extents = Vec::new();
    log.store.area.extents_from(first_extent(&log, 8), &mut extents).unwrap();
    assert!(extents.len() > 3);
    let turn = log.store.lock().unwrap();
    // Crash before step 6, which follows two stores, each with a flush and a fence.
    rig.nvm.crash_before(6, 0);
    log.store.drop_extents(&turn, &extents);
    let dropped = rig.nvm.image().unwrap();
    let recover = |nvm: RecordingNvm| {
        let nvm = Arc::new(nvm);
        (attach(&nvm, &Arc::new(LocalSegment::new(SHARED_BYTES)), true), nvm)
    };
    let mut crashes = 0;
    for (step, seed) in (0..).flat_map(|step| (0..4).map(move |seed| (step, seed))) {
        let nvm = rig.nvm.over(dropped.clone());
        nvm.crash_before(step, seed);
        let (_, nvm) = recover(nvm);
        let Some(left) = nvm.image() else { break };
        crashes += 1;
        let (log, _) = recover(nvm.over(left));
        assert_eq!(home_page(&log, &rig.file, 2), image(30), "a crash before step {step}, seed {seed}");
    }
    assert!(crashes >= 400, "{crashes} crashes");
}

/// The usual number of chunks of a log without a limit. The log has more only if a transaction needs more.
const USUAL: u32 = 4;
/// The number of pages of a large database. A log with a sector for each of these pages has ten times the usual number
/// of chunks.
const LARGE: u32 = 10 * USUAL * SECTORS_PER_CHUNK;

/// Returns all pages of the large database except page 1, which differs from its versions by the guard.
fn everything(version: u32) -> Vec<(u32, u32)> {
    (2..=LARGE).map(|page| (page, version * 10_000 + page)).collect()
}

/// Changes every page in one transaction.
fn change_everything(log: &mut Ppl, file: &Database, version: u32) -> Result<(), LogError> {
    commit(log, file, &everything(version), LARGE)
}

/// Checkpoints every page, as SQLite does.
fn checkpoint_everything(log: &Ppl, file: &Database, version: u32) {
    for (page, version) in everything(version) {
        checkpoint(log, file, page, version).unwrap();
    }
    log.home().unwrap().checkpointed(file).unwrap();
}

/// Returns whether a user of the log finds all pages in this version.
fn shows(log: &Ppl, file: &Database, version: u32) -> bool {
    everything(version).into_iter().all(|(page, version)| home_page(log, file, page) == image(version))
}

fn grown(log: &Ppl) -> u32 {
    log.store.area.grown().unwrap()
}

/// Attaches the log as the only process, after all others have ended.
fn after_all(rig: &Rig) -> Ppl {
    attach(&Arc::new(rig.nvm.survive()), &Arc::new(LocalSegment::new(SHARED_BYTES)), true)
}

#[test]
fn inv10_a_transaction_larger_than_the_log_lets_it_grow_and_the_checkpoint_lets_it_shrink() {
    let rig = Rig::usually(USUAL);
    let mut log = rig.attach(true);
    let mut other = rig.attach(false);
    for version in 1..=4 {
        // The processes take turns, so each of them has to learn how the other has changed the log.
        std::mem::swap(&mut log, &mut other);
        change_everything(&mut log, &rig.file, version).unwrap();
        assert!(grown(&log) >= 10 * USUAL && grown(&other) == grown(&log));
        assert!(version == 1 || shows(&other, &rig.file, version - 1), "nothing is home yet");
        assert!(shows(&after_all(&rig), &rig.file, version));
        checkpoint_everything(&log, &rig.file, version);
        // The frames of the transaction keep a piece until the log starts over, which may take one more chunk.
        assert!(grown(&log) <= USUAL + 1 && grown(&other) == grown(&log));
        assert!(shows(&other, &rig.file, version) && shows(&after_all(&rig), &rig.file, version));
        log.begin_generation(&rig.file, None).unwrap();
        assert_eq!((grown(&log), grown(&other)), (USUAL, USUAL));
        let (used, usual) = log.store.area.fill(&log.store.words);
        assert!(used <= usual / 2, "{used} of {usual}");
    }
}

/// A reader of an old snapshot prevents the checkpoint, so every version of every page stays in the log.
#[test]
fn inv10_the_log_grows_further_while_a_reader_keeps_old_versions_in_it() {
    let rig = Rig::usually(USUAL);
    let mut log = rig.attach(true);
    let reader = rig.attach(false);
    change_everything(&mut log, &rig.file, 1).unwrap();
    checkpoint_everything(&log, &rig.file, 1);
    for version in 2..=4 {
        change_everything(&mut log, &rig.file, version).unwrap();
        assert!(shows(&reader, &rig.file, 1));
        log.home().unwrap().checkpointed(&rig.file).unwrap();
        assert!(grown(&log) >= 10 * USUAL);
    }
    assert!(shows(&after_all(&rig), &rig.file, 4));
    checkpoint_everything(&log, &rig.file, 4);
    log.begin_generation(&rig.file, None).unwrap();
    assert_eq!(grown(&reader), USUAL);
    assert!(shows(&reader, &rig.file, 4));
}

#[test]
fn inv10_without_memory_a_large_transaction_fails_and_leaves_the_log_as_it_was() {
    let rig = Rig::usually(USUAL);
    let mut log = rig.attach(true);
    change_everything(&mut log, &rig.file, 1).unwrap();
    checkpoint_everything(&log, &rig.file, 1);
    let geometry = log.store.area.geometry;
    for chunks in [USUAL, USUAL + 1, 10 * USUAL - 1] {
        rig.nvm.set_grow_limit(Some(geometry.file_bytes(chunks)));
        let failed = change_everything(&mut log, &rig.file, 2);
        assert!(matches!(failed, Err(LogError::NoSpace { .. })), "{failed:?}");
        assert_eq!(grown(&log), USUAL);
        assert!(shows(&log, &rig.file, 1) && shows(&after_all(&rig), &rig.file, 1));
    }
    // A transaction for which the log has space still succeeds.
    commit(&mut log, &rig.file, &[(2, 5)], LARGE).unwrap();
    rig.nvm.set_grow_limit(None);
    change_everything(&mut log, &rig.file, 2).unwrap();
    assert!(shows(&after_all(&rig), &rig.file, 2));
}

/// A power loss comes at some step of the following: a transaction for which the log grows, the merges after it, the
/// shrinking of the log, or the next transaction for which it grows.
#[test]
fn inv07_a_power_loss_while_the_log_outgrows_its_usual_size_or_shrinks_leaves_all_or_nothing() {
    const PAGES: u32 = 2 * USUAL * SECTORS_PER_CHUNK;
    let pages = |version: u32| (2..=PAGES).map(move |page| (page, version * 10_000 + page));
    let (mut crashes, mut found) = (0, [0; 4]);
    for step in (0..60).map(|n| n * 700).chain((0..20).map(|n| n * 3)) {
        let mut rig = Rig::usually(USUAL);
        let mut log = rig.attach(true);
        rig.file.crashing = Some(Arc::clone(&rig.nvm));
        rig.nvm.crash_before(step, step);
        for version in 1..=3 {
            commit(&mut log, &rig.file, &pages(version).collect::<Vec<_>>(), PAGES).unwrap();
            for (page, version) in pages(version) {
                checkpoint(&log, &rig.file, page, version).unwrap();
            }
            log.home().unwrap().checkpointed(&rig.file).unwrap();
            log.begin_generation(&rig.file, None).unwrap();
            if rig.nvm.has_crashed() {
                break;
            }
        }
        let Some(left) = rig.nvm.image() else { continue };
        crashes += 1;
        let log = attach(&Arc::new(rig.nvm.over(left)), &Arc::new(LocalSegment::new(SHARED_BYTES)), true);
        let file = rig.file.left();
        let first = home_page(&log, &file, 2);
        let version = (1..=3).find(|version| image(version * 10_000 + 2) == first).unwrap_or(0);
        let is_whole = pages(version).all(|(page, version)| {
            home_page(&log, &file, page) == if version < 10_000 { vec![0; PAGE] } else { image(version) }
        });
        assert!(is_whole, "a crash before step {step}: version {version}");
        found[version as usize] += 1;
    }
    assert!(crashes > 40 && found.iter().all(|count| *count > 0), "{crashes} crashes left {found:?}");
}
