//! Tests of `scratchpad` on recorded memory, some of which needs flushes and some not: logs that share a region,
//! rollback journals in the region, and what a crash leaves of both.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::fs;
use std::path::Path;

use crate::{common, rig};

use common::{Model, Rng, Transaction, for_seeds, wait, write_all};
use duralite_crashmodel::Crashes as _;
use duralite_format::scratchpad::{
    ACTIVE_OFFSET, COUNTED_OFFSET, FOLLOW_AT, HEADER_BYTES, Kind, LAST_AT, LOGS_AT, Owner, PAGE_BYTES,
    PageHeader, SUPERBLOCK_BYTES, Slot, active_word, first_link_offset, first_link_tag, link_word,
    origin_offset, read_active_word, read_link, slot_offset,
};
use duralite_format::{LogId, Origin, guard};
use duralite_wal::engine::Engine as _;
use duralite_wal::engine::home::{DatabaseFile as _, NoDatabase, OpenDatabase};
use duralite_wal::engine::media::{self, MediaSet, Memory, MemoryKind};
use duralite_wal::engine::prelude::*;
use duralite_wal::engine::rollback::RollbackJournal;
use duralite_wal::engines::scratchpad::{DESCRIPTOR, Scratchpad, is_region_name};
use duralite_wal::log::offline;
use duralite_wal::log::stream::WalStream;
use duralite_wal::{DatabaseIdentity, EngineOptions, ErrorKind, Log, LogError, LogPlacement};
use rig::{Rig, contents};

const PAGE: usize = 512;

/// Runs transactions of two databases in one region until a crash, and then recovers both logs.
fn crash_two_logs(seed: u64, durable_on_store: bool) {
    let mut rng = Rng(seed * 77 + 1);
    let rig = Rig::new(2, 512 << 10, durable_on_store);
    rig.memory.crash_before(rng.below(900), seed);
    let mut logs = [rig.open(0).expect("open"), rig.open(1).expect("open")];
    let mut models = [Model::new(PAGE, 12), Model::of_leaves(PAGE, 12)];
    // The possible contents of each log: its state after the last acknowledged commit, or after the commit in progress.
    let mut possible = [vec![Vec::new()], vec![Vec::new()]];
    for _ in 0..30 {
        let which = rng.below(2) as usize;
        let (log, model) = (&mut logs[which], &mut models[which]);
        let mut writes = Vec::new();
        if !model.has_header() || rng.chance(6) {
            writes.push(model.restart());
            possible[which].push(model.committed.clone());
        }
        let transaction = model.transaction(&mut rng, true);
        possible[which].push(model.after(&transaction).to_vec());
        writes.extend(transaction.writes.iter().cloned());
        writes.iter().for_each(|(offset, data)| {
            log.write(&NoDatabase, *offset, data).expect("write");
        });
        if rig.memory.image().is_some() {
            break;
        }
        model.commit(transaction);
        possible[which] = vec![model.committed.clone()];
        assert_eq!(contents(log), model.committed);
    }
    drop(logs);
    let image =
        rig.memory.image().map(|left| rig.memory.over(left)).unwrap_or_else(|| rig.memory.crash(seed));
    let left = rig.on(image);
    for (which, possible) in possible.iter().enumerate() {
        // A crash may also interrupt recovery. Another recovery then restores the same content.
        let before = left.look(which).expect("a sound log");
        assert!(possible.contains(&before), "log {which} is none of those possible");
        let cut = left.on(left.memory.over(left.memory.to_bytes()));
        cut.memory.crash_before(rng.below(40), seed);
        drop(cut.open(which).expect("open"));
        let again = cut.memory.image().map_or(cut.memory.to_bytes(), |left| left);
        let again = cut.on(cut.memory.over(again));
        assert_eq!(contents(&mut again.open(which).expect("open")), before, "recovery that was cut off");
    }
    for which in 0..2 {
        let mut log = left.open(which).expect("open");
        log.engine_mut().clear(&NoDatabase, 0).expect("clear");
    }
    assert_eq!(left.taken(), 0, "pages that nobody has");
}

#[test]
fn inv24_logs_share_a_region_and_a_crash_leaves_a_prefix_of_each_and_no_lost_page() {
    for_seeds(400, |seed| crash_two_logs(seed, seed % 2 == 0));
}

#[test]
fn inv10_a_region_that_is_full_fails_the_write_and_loses_nothing() {
    let rig = Rig::new(2, 96 << 10, true);
    let mut logs = [rig.open(0).expect("open"), rig.open(1).expect("open")];
    let mut models = [Model::new(PAGE, 12), Model::new(PAGE, 12)];
    let mut rng = Rng(5);
    let mut full = 0;
    for round in 0..60 {
        let which = round % 2;
        let (log, model) = (&mut logs[which], &mut models[which]);
        if !model.has_header() {
            let (offset, data) = model.restart();
            log.write(&NoDatabase, offset, &data).expect("a header");
        }
        let transaction = model.transaction(&mut rng, false);
        let written = transaction
            .writes
            .iter()
            .try_for_each(|(at, data)| log.write(&NoDatabase, *at, data).map(|_| ()));
        match written {
            Ok(()) => model.commit(transaction),
            Err(error) => {
                full += 1;
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                log.engine_mut().discard_staged().expect("discard");
                // A checkpoint of either log frees pages that both can use.
                let (offset, data) = model.restart();
                assert_eq!(log.engine().fill().used_bytes > 0, rig.taken() > 0);
                log.write(&NoDatabase, offset, &data).expect("a header");
            }
        }
        assert_eq!(contents(log), model.committed);
    }
    assert!(full > 2, "never full");
}

/// Makes a small region with one log. Also returns a transaction that the caller can write to the log.
fn small() -> (Rig, WalStream<Scratchpad>, Model, Transaction) {
    let rig = Rig::new(1, 64 << 10, false);
    let mut log = rig.open(0).expect("open");
    let mut model = Model::new(PAGE, 12);
    let (offset, data) = model.restart();
    log.write(&NoDatabase, offset, &data).expect("a header");
    let transaction = model.transaction(&mut Rng(9), false);
    (rig, log, model, transaction)
}

#[test]
fn inv24_pages_of_a_transaction_whose_process_died_are_had_again() {
    let (rig, mut log, _, transaction) = small();
    let (_, first) = transaction.writes.split_last().expect("writes");
    first.iter().for_each(|(at, data)| {
        log.write(&NoDatabase, *at, data).expect("write");
    });
    assert!(rig.taken() > 0);
    std::mem::forget(log);
    let log = rig.open(0).expect("open");
    assert_eq!((rig.taken(), log.engine().committed()), (0, 0));
}

/// The writer of a rollback journal has not read the log's transactions. If no page is free, it takes pages that dead
/// processes have left, but never pages of committed transactions.
#[test]
fn inv24_a_rollback_journal_gets_what_processes_that_died_have_left() {
    let (rig, mut log, mut model, transaction) = small();
    transaction.writes.iter().for_each(|(at, data)| {
        log.write(&NoDatabase, *at, data).expect("write");
    });
    model.commit(transaction);
    let region = rig.region();
    region.grow(64 << 10).expect("grow");
    let left_by_the_dead = || {
        let owner = Owner::of(rig::superblock(0).head.log_id);
        for page in 1..16 {
            let _ = region.compare_exchange_u64(page * PAGE_BYTES, 0, owner.word(7));
        }
        assert_eq!(rig.taken(), 15);
    };
    left_by_the_dead();
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    journal.write(&[7; 9000], 0).expect("write");
    left_by_the_dead();
    journal.write(&[8; 9000], 9000).expect("write");
    let mut found = [0; 18000];
    assert_eq!(journal.read(&mut found, 0).expect("read"), 18000);
    assert!(found[..9000] == [7; 9000] && found[9000..] == [8; 9000]);
    assert_eq!(contents(&mut log), model.committed);
    // The log gives back no page that is needed, however few pages are free.
    assert_eq!(journal.write(&[9; 64 << 10], 18000).expect_err("full").kind(), ErrorKind::Full);
    assert_eq!(contents(&mut log), model.committed);
    journal.delete().expect("delete");
    log.engine_mut().retire().expect("retire");
    assert_eq!(rig.taken(), 0, "pages that nobody has");
}

/// Starts log 0 over, but does not flush the word that puts the new generation in force, as if the process had died.
fn start_over_and_die(rig: &Rig, header: &[u8]) {
    let (log, id) = (rig.log(0), rig::superblock(0).head.log_id);
    let generation = read_active_word(log.load_u64(ACTIVE_OFFSET)) + 1;
    let wal_header = header.try_into().expect("a header");
    let slot = Slot { generation, first_block: 0, wal_header, retired: false };
    let origin = Origin { generation, position: 1, time_ms: 0 };
    log.store(slot_offset(generation), &slot.encode(id));
    log.store(origin_offset(generation), &origin.encode(id));
    log.flush(0, SUPERBLOCK_BYTES);
    log.fence();
    log.store_u64(ACTIVE_OFFSET, active_word(generation));
}

/// The situation in which a process finds the state that a dead process of the same log has left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Finder {
    /// Joins the others, with the slot that the dead process had.
    Joins,
    /// Needs a page for a transaction.
    Commits,
    /// Needs a page for a rollback journal.
    Journals,
}

/// A process has died while it started the log over. All processes see the new generation, although it is not durable.
/// Once a writer has used pages of the old generation again, no crash may bring the old generation back.
#[test]
fn inv24_pages_are_given_back_only_once_the_start_over_is_durable() {
    for finder in [Finder::Joins, Finder::Commits, Finder::Journals] {
        let (rig, mut log, mut model, transaction) = small();
        transaction.writes.iter().for_each(|(at, data)| {
            log.write(&NoDatabase, *at, data).expect("write");
        });
        model.commit(transaction);
        let before = model.committed.clone();
        // The dead process had taken the log's pages. Another log has all other pages, so that none is free.
        let (region, own) = (rig.region(), Owner::of(rig::superblock(0).head.log_id));
        region.grow(64 << 10).expect("grow");
        let slot = if finder == Finder::Joins { 0 } else { 7 };
        for at in (1..16).map(|page| page * PAGE_BYTES) {
            let is_own = Owner::in_word(region.load_u64(at)) == Some(own);
            let owner = if is_own { own } else { Owner::of(LogId([77; 16])) };
            region.store_u64(at, owner.word(slot));
            region.flush(at, 8);
        }
        region.fence();
        let (_, header) = model.restart();
        start_over_and_die(&rig, &header);
        if finder == Finder::Journals {
            let journal = log.engine().rollback_journal().expect("a journal");
            journal.create().expect("create");
            journal.write(&[7; 600], 0).expect("write");
        } else {
            let mut log = if finder == Finder::Joins { rig.join(0).expect("join") } else { log };
            let mut transactions = (6..).map(|seed| model.transaction(&mut Rng(seed), false));
            let transaction = transactions.find(|found| found.writes.len() > 2).expect("two frames");
            let (_, first) = transaction.writes.split_last().expect("writes");
            first.iter().for_each(|(at, data)| {
                log.write(&NoDatabase, *at, data).expect("write");
            });
            std::mem::forget(log);
        }
        for seed in 0..300 {
            let found = rig.on(rig.memory.crash(seed)).look(0).expect("a sound log");
            assert!(found == before || found == model.committed, "{finder:?}, seed {seed}");
        }
    }
}

/// If the pages of a log belong to other logs, recovery fails. It does not take the log for an empty one.
#[test]
fn inv25_a_log_whose_pages_others_have_is_an_error() {
    let (rig, mut log, _, transaction) = small();
    transaction.writes.iter().for_each(|(at, data)| {
        log.write(&NoDatabase, *at, data).expect("write");
    });
    drop(log);
    let region = rig.region();
    for page in 1..region.len() / PAGE_BYTES {
        region.store_u64(page * PAGE_BYTES, 0);
    }
    let corrupt = |found: Result<(), LogError>| matches!(found, Err(LogError::Corrupt { .. }));
    assert!(corrupt(rig.look(0).map(drop)) && corrupt(rig.open(0).map(drop)));
}

/// A process died in a commit after it had stored the link to its last entry, and another process gave its pages back.
/// The next transaction got the same number, and put its last entry into one of these pages. Then a power loss brought
/// back the dead process's ownership of its first page. Recovery must still find the committed transaction.
#[test]
fn inv25_a_first_page_that_a_dead_process_left_hides_no_committed_transaction() {
    let (rig, mut log, mut model, transaction) = small();
    let (region, id) = (rig.region(), rig::superblock(0).head.log_id);
    region.grow(64 << 10).expect("grow");
    assert_eq!(region.compare_exchange_u64(PAGE_BYTES, 0, Owner::of(id).word(7)), Ok(0));
    transaction.writes.iter().for_each(|(at, data)| {
        log.write(&NoDatabase, *at, data).expect("write");
    });
    model.commit(transaction);
    drop(log);
    let header = PageHeader { kind: Kind::Redo, generation: 2, transaction: 1, index: 0 };
    let link = region.load_u64(2 * PAGE_BYTES + LAST_AT);
    let last = read_link(link, header.tag(id, 2), u32::MAX).expect("a link to the last entry");
    region.store(PAGE_BYTES + 8, &header.encode(id, 1));
    region.store_u64(PAGE_BYTES + LAST_AT, link_word(last, header.tag(id, 1)));
    assert_eq!(rig.look(0).expect("a sound log"), model.committed);
    assert_eq!(contents(&mut rig.open(0).expect("open")), model.committed);
    assert_eq!(region.load_u64(PAGE_BYTES), 0, "the page is given back");
    // Damage in the transaction itself remains an error.
    region.store_u64(PAGE_BYTES, Owner::of(id).word(7));
    region.store_u64(2 * PAGE_BYTES + HEADER_BYTES + 8, 0);
    assert!(matches!(rig.look(0), Err(LogError::Corrupt { .. })));
}

/// A process died in a commit after it had stored the link to the transaction's first page. Then other processes took
/// its pages.
#[test]
fn inv25_a_commit_that_was_cut_off_is_none_whoever_has_its_pages() {
    let (rig, mut log, _, transaction) = small();
    let region = rig.region();
    region.grow(64 << 10).expect("grow");
    let (id, generation) = (rig::superblock(0).head.log_id, 2);
    for page in 1..16_u32 {
        let header = PageHeader { kind: Kind::Redo, generation, transaction: 1, index: 0 };
        let at = u64::from(page) * PAGE_BYTES;
        assert_eq!(region.compare_exchange_u64(at, 0, Owner::of(id).word(7)), Ok(0));
        region.store(at + 8, &header.encode(id, page));
    }
    let link = link_word(3, first_link_tag(id, generation));
    rig.log(0).store_u64(first_link_offset(generation), link);
    assert!(rig.look(0).is_ok());
    // The transaction finds no free page and takes the pages of the dead process. Then it is rolled back.
    let (_, first) = transaction.writes.split_last().expect("writes");
    first.iter().for_each(|(at, data)| {
        log.write(&NoDatabase, *at, data).expect("write");
    });
    log.engine_mut().discard_staged().expect("discard");
    assert!(rig.look(0).is_ok());
    drop(log);
    assert!(rig.open(0).is_ok());
    assert_eq!(rig.taken(), 0);
}

/// A checkpoint of this log gives back no pages of other logs. So only this log's own pages count.
#[test]
fn inv10_a_log_is_short_of_room_by_what_it_has_itself() {
    let rig = Rig::new(2, 128 << 10, true);
    let mut logs = [rig.open(0).expect("open"), rig.open(1).expect("open")];
    let mut commit = |which: usize, count: usize| {
        let log = &mut logs[which];
        let mut model = Model::new(PAGE, 12);
        let (offset, data) = model.restart();
        log.write(&NoDatabase, offset, &data).expect("a header");
        for _ in 0..count {
            let transaction = model.transaction(&mut Rng(5), false);
            transaction.writes.iter().for_each(|(at, data)| {
                log.write(&NoDatabase, *at, data).expect("write");
            });
            model.commit(transaction);
        }
        log.engine().is_short()
    };
    assert!(commit(0, 20), "{} pages", rig.taken());
    assert!(rig.taken() >= 16);
    assert!(!commit(1, 1), "it has less than it may yet have");
    assert!(commit(1, 6));
}

/// Uses a rollback journal as SQLite does, and crashes. After the crash the journal must be as it was at the last sync,
/// or after one of the operations since then.
fn crash_a_journal(seed: u64, durable_on_store: bool) {
    let mut rng = Rng(seed * 31 + 7);
    let rig = Rig::new(1, 256 << 10, durable_on_store);
    rig.memory.crash_before(rng.below(500), seed);
    let log = rig.open(0).expect("open");
    let journal = log.engine().rollback_journal().expect("a journal");
    let mut bytes: Option<Vec<u8>> = None;
    // The contents that a crash may leave: the journal as of the last sync, or after any operation since then. `None`
    // stands for no journal.
    let mut synced: Vec<Option<Vec<u8>>> = vec![None];
    for _ in 0..60 {
        if rig.memory.image().is_some() {
            break;
        }
        step(&*journal, &mut bytes, &mut synced, &mut rng, || rig.memory.image().is_some());
        let size = journal.size().expect("a size");
        assert_eq!(size, bytes.as_ref().map(|bytes| bytes.len() as u64));
        if let Some(bytes) = &bytes {
            let mut found = vec![0; bytes.len() + 9];
            assert_eq!(journal.read(&mut found, 0).expect("read"), bytes.len());
            assert!(found.starts_with(bytes));
        }
    }
    drop((journal, log));
    let image =
        rig.memory.image().map(|left| rig.memory.over(left)).unwrap_or_else(|| rig.memory.crash(seed));
    let left = rig.on(image);
    let log = left.open(0).expect("open");
    let journal = log.engine().rollback_journal().expect("a journal");
    let found = journal.size().expect("a size").map(|size| {
        let mut found = vec![0; size as usize];
        journal.read(&mut found, 0).expect("read");
        found
    });
    let fits = synced.iter().any(|synced| match (synced, &found) {
        (None, None) => true,
        (Some(synced), Some(found)) => found.starts_with(synced),
        _ => false,
    });
    assert!(fits, "{:?} bytes of none of {:?}", found.map(|found| found.len()), synced.len());
    journal.delete().expect("delete");
    assert_eq!(left.taken(), 0, "pages that nobody has");
}

/// Makes one call as SQLite does, and records the contents that may be durable during and after the call.
fn step(
    journal: &dyn RollbackJournal,
    bytes: &mut Option<Vec<u8>>,
    synced: &mut Vec<Option<Vec<u8>>>,
    rng: &mut Rng,
    crashed: impl Fn() -> bool,
) {
    let Some(now) = bytes else {
        synced.push(Some(Vec::new()));
        journal.create().expect("create");
        *bytes = Some(Vec::new());
        if !crashed() {
            *synced = vec![Some(Vec::new())];
        }
        return;
    };
    match rng.below(8) {
        0 => {
            synced.push(None);
            journal.delete().expect("delete");
            *bytes = None;
            if !crashed() {
                *synced = vec![None];
            }
        }
        1 => {
            synced.push(Some(Vec::new()));
            journal.truncate(0).expect("truncate");
            now.clear();
            if !crashed() {
                *synced = vec![Some(Vec::new())];
            }
        }
        2 | 3 => {
            journal.sync().expect("sync");
            if !crashed() {
                *synced = vec![Some(now.clone())];
            }
        }
        _ => {
            // SQLite appends to the journal. The durable part stays.
            let more: Vec<u8> = (0..1 + rng.below(6000)).map(|_| rng.next() as u8).collect();
            journal.write(&more, now.len() as u64).expect("write");
            now.extend(more);
        }
    }
}

#[test]
fn inv26_a_rollback_journal_is_as_it_was_synced_or_gone() {
    for_seeds(400, |seed| crash_a_journal(seed, seed % 2 == 0));
}

#[test]
fn inv26_the_head_of_a_journal_is_zeroed_in_one_piece() {
    let rig = Rig::new(1, 256 << 10, false);
    let log = rig.open(0).expect("open");
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    let head = [0xd9, 0xd5, 5, 0xf9, 0x20, 0xa1, 0x63, 0xd7, 1, 2, 3, 4, 5, 6, 7, 8];
    journal.write(&head, 0).expect("write");
    journal.write(&[7; 6000], 16).expect("write");
    journal.sync().expect("sync");
    journal.write(&[0; 16], 0).expect("write");
    for seed in 0..200 {
        let left = rig.on(rig.memory.crash(seed));
        let log = left.open(0).expect("open");
        let journal = log.engine().rollback_journal().expect("a journal");
        let mut found = [0; 8];
        assert_eq!(journal.read(&mut found, 0).expect("read"), 8);
        assert!(found == head[..8] || found == [0; 8], "{found:?}");
    }
    // A gap reads as zeros, even if the pages had other bytes there before.
    journal.truncate(10).expect("truncate");
    journal.write(&[9], 5000).expect("write");
    let mut found = vec![1; 5001];
    journal.read(&mut found, 0).expect("read");
    assert!(found[16..5000].iter().all(|byte| *byte == 0) && found[5000] == 9);
    // A process that checks whether the journal is hot may find the journal gone.
    journal.delete().expect("delete");
    assert_eq!(journal.read(&mut found, 0).expect("read"), 0);
    assert!(matches!(journal.write(&[1], 0), Err(LogError::Unexpected(_))));
}

/// The call to omit, counted from the beginning of the second commit.
#[derive(Clone, Copy, Debug)]
enum Omit {
    Nothing,
    Flush(u64),
    Fence(u64),
}

/// Commits twice. The power fails before an operation of the second commit, or after it. Returns whether the recovered
/// log is wrong.
fn is_wrong(durable_on_store: bool, omit: Omit, crash_at: u64, seed: u64) -> bool {
    let rig = Rig::new(1, 128 << 10, durable_on_store);
    let mut log = rig.open(0).expect("open");
    let mut model = Model::new(PAGE, 12);
    let mut write = |writes: &[(u64, Vec<u8>)]| {
        writes.iter().for_each(|(at, data)| {
            log.write(&NoDatabase, *at, data).expect("write");
        });
    };
    write(&[model.restart()]);
    let first = model.transaction(&mut Rng(5), false);
    write(&first.writes);
    model.commit(first);
    let before = model.committed.clone();
    rig.memory.crash_before(crash_at, seed);
    match omit {
        Omit::Nothing => {}
        Omit::Flush(nth) => rig.memory.drop_flush(nth),
        Omit::Fence(nth) => rig.memory.drop_fence(nth),
    }
    let second = model.transaction(&mut Rng(6), false);
    write(&second.writes);
    model.commit(second);
    let left = rig.memory.image().map(|left| rig.memory.over(left));
    let cut = left.is_some();
    let found = rig.on(left.unwrap_or_else(|| rig.memory.crash(seed))).look(0);
    !found.is_ok_and(|found| found == model.committed || cut && found == before)
}

/// Must-fail controls: if one flush or fence of a commit is omitted, some crash reveals it.
#[test]
fn inv25_every_flush_and_fence_of_a_commit_is_needed() {
    let shows = |durable, omit| {
        (0..3000).any(|seed| {
            let crash_at = if seed % 4 == 0 { u64::MAX } else { Rng(seed + 1).below(40) };
            is_wrong(durable, omit, crash_at, seed)
        })
    };
    for durable in [false, true] {
        assert!(!shows(durable, Omit::Nothing), "durable on store: {durable}");
    }
    for omit in [Omit::Flush(0), Omit::Flush(1), Omit::Fence(0), Omit::Fence(1)] {
        assert!(shows(false, omit), "no crash shows that {omit:?} is missing");
    }
    for omit in [Omit::Fence(0), Omit::Fence(1)] {
        assert!(shows(true, omit), "no crash shows that {omit:?} is missing where a store is durable");
    }
}

/// If a log says that the region counts it, the region really counts it. This holds wherever a crash interrupts the
/// deletion of the log, and however often the deletion is begun.
#[test]
fn inv24_a_region_never_counts_fewer_logs_than_there_are() {
    let mut cut = 0;
    for seed in 0..300 {
        let rig = Rig::new(2, 64 << 10, false);
        let region = rig.region();
        region.store_u64(LOGS_AT, 2);
        region.flush(LOGS_AT, 8);
        for log in [0, 1].map(|which| rig.log(which)) {
            log.store_u64(COUNTED_OFFSET, 1);
            log.flush(COUNTED_OFFSET, 8);
        }
        region.fence();
        let mut left = rig;
        for again in 0..3 {
            let mut log = left.open(0).expect("open");
            left.memory.crash_before(Rng(seed * 3 + again).below(40), seed);
            log.engine_mut().retire().expect("retire");
            drop(log);
            let image = left.memory.image();
            cut += u32::from(image.is_some());
            let image = image.map_or_else(|| left.memory.crash(seed), |image| left.memory.over(image));
            left = left.on(image);
            let counted = [0, 1].into_iter().filter(|which| left.log(*which).load_u64(COUNTED_OFFSET) == 1);
            assert!(left.region().load_u64(LOGS_AT) >= counted.count() as u64, "seed {seed}, time {again}");
        }
    }
    assert!(cut > 100, "{cut} crashes in the middle");
}

/// Returns the placement of logs in a directory, in memory that needs flushes.
fn placement(dir: &Path) -> LogPlacement {
    let memory = Memory { kind: MemoryKind::Emulated, dir: dir.to_path_buf() };
    let scratchpad = Some(media::Scratchpad { memory: memory.clone(), durable_on_store: false });
    let media = MediaSet { home_memory: Some(memory), scratchpad, ..MediaSet::default() };
    LogPlacement::of(&DESCRIPTOR, &media).expect("memory")
}

/// Returns the end of a journal that names a super-journal that does not exist any more, as SQLite writes it.
fn end_of_committed_journal() -> Vec<u8> {
    let name = b"/nowhere/app.db-mj0A1B2C912";
    let sum = name.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let magic = [0xd9, 0xd5, 5, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let length = (name.len() as u32).to_be_bytes();
    [&name[..], &length, &sum.to_be_bytes(), &magic].concat()
}

/// Somebody has copied a database together with its log, and opens the copy first. Duralite then writes the log home
/// into the copy. The pages to which that log refers belong to the original log. The end of the rollback journal still
/// has to tell the original that its transaction is committed.
#[test]
fn inv24_a_copy_of_a_log_that_is_written_home_changes_nothing_in_the_region() {
    let dir = tempfile::tempdir().expect("directory");
    let path = |name: &str| dir.path().join(name);
    ["data", "copy"].iter().for_each(|name| fs::create_dir(path(name)).expect("directory"));
    let (database, copy) = (path("data/app.db"), path("copy/app.db"));
    fs::write(&database, [0; PAGE]).expect("database");
    let file = fs::OpenOptions::new().read(true).write(true).open(&database).expect("database");
    let file = OpenDatabase::new(file, &database);
    let identity = DatabaseIdentity::of(&database).expect("identity");
    let (own, options) = (placement(&path("data")), EngineOptions::default());
    let mut log = Log::create(&file, &own, &options, &identity, PAGE as u32).expect("create");
    let mut model = Model::new(PAGE, 12);
    let (at, header) = model.restart();
    log.write(&file, at, &header).expect("a header");
    for seed in 5..8 {
        let transaction = model.transaction(&mut Rng(seed), false);
        let written = write_all(&transaction.writes, |at, data| log.write(&file, at, data));
        wait(written.expect("write"), log.durability_waiter()).expect("durable");
        model.commit(transaction);
    }
    let journal = log.rollback_journal().expect("a journal");
    journal.create().expect("create");
    journal.write(&[&[7; 600][..], &end_of_committed_journal()].concat(), 0).expect("write");
    journal.sync().expect("sync");
    let mut page = [0; PAGE];
    page[..18].copy_from_slice(b"SQLite format 3\0\x02\0");
    guard::mask(0, &mut page, log.id());
    file.write(&page, 0).expect("write");
    let (id, log_path) = (log.id(), log.path().to_path_buf());
    drop((journal, log, file));
    fs::copy(&database, &copy).expect("copy");
    fs::copy(&log_path, path("copy").join(log_path.file_name().expect("name"))).expect("copy");
    let mut names = fs::read_dir(path("data")).expect("directory").map(|entry| entry.expect("entry").path());
    let region = names.find(|path| is_region_name(path)).expect("a region");
    let mut before = fs::read(&region).expect("region");
    // A crash may have lost the links from each transaction to the next.
    for page in before.chunks_exact_mut(PAGE_BYTES as usize).skip(1) {
        page[FOLLOW_AT as usize..][..8].fill(0);
    }
    fs::write(&region, &before).expect("region");
    let done = offline::checkpoint_copy(&placement(&path("copy")), &copy, id).expect("checkpoint");
    assert_eq!(done.db_pages, 12);
    let after = fs::read(&region).expect("region");
    let changed: Vec<_> = (0..before.len()).filter(|at| after.get(*at) != Some(&before[*at])).collect();
    assert!(changed.is_empty() && after.len() == before.len(), "changed: {changed:?}");
}
