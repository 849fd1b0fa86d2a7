//! Tests with headers of rollback journals in a region that needs flushes. These headers must not come back after a
//! crash, or after the death of a process.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::rig;

use std::sync::Arc;

use duralite_format::scratchpad::{JOURNAL_CHAIN_OFFSET, JOURNAL_CHANGES_OFFSET, JOURNAL_STATE_OFFSET};
use duralite_medium::Nvm as _;
use duralite_wal::engine::Engine as _;
use duralite_wal::engine::rollback::RollbackJournal;
use duralite_wal::engines::scratchpad::Scratchpad;
use duralite_wal::log::stream::WalStream;
use rig::Rig;

/// The bytes with which a journal begins. Each later part of the journal that SQLite syncs separately begins with them
/// too. After a crash, no stale bytes of an earlier journal may look like this header.
const MAGIC: [u8; 8] = [0xd9, 0xd5, 5, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// Writes a journal of a large transaction. SQLite has synced the journal once before its end, so it has a second
/// header at `second`. Both headers contain `number`. Like SQLite, writes the magic number of a header only once the
/// bytes that follow the header are durable.
fn write_journal(journal: &dyn RollbackJournal, number: u8, second: u64) {
    let head: Vec<u8> = [&[0; 12][..], &[number; 500]].concat();
    journal.write(&head, 0).expect("write");
    let mut at = 512;
    while at < second {
        journal.write(&[number; 512], at).expect("write");
        at += 512;
    }
    complete_head(journal, number, 0);
    journal.write(&head, second).expect("write");
}

fn complete_head(journal: &dyn RollbackJournal, number: u8, at: u64) {
    journal.sync().expect("sync");
    journal.write(&[&MAGIC[..], &[number; 4]].concat(), at).expect("write");
    journal.sync().expect("sync");
}

/// Returns a process that has written journal number 1, which has two headers.
fn process_with_journal(rig: &Rig, second: u64) -> (WalStream<Scratchpad>, Arc<dyn RollbackJournal>) {
    let log = rig.open(0).expect("open");
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    write_journal(&*journal, 1, second);
    complete_head(&*journal, 1, second);
    (log, journal)
}

/// Checks that after any crash all headers in the journal from byte `from` on are those of journal number 2.
fn assert_heads_are_new(rig: &Rig, from: usize, when: &str) {
    for seed in 0..300 {
        let left = rig.on(rig.memory.crash(seed));
        let log = left.open(0).expect("open");
        let journal = log.engine().rollback_journal().expect("a journal");
        let size = journal.size().expect("a size").expect("a journal");
        let mut found = vec![0; size as usize];
        journal.read(&mut found, 0).expect("read");
        let mut heads = found[from..].chunks_exact(512).filter(|head| head.starts_with(&MAGIC));
        assert!(heads.all(|head| head[8] == 2), "{when}, seed {seed}");
    }
}

/// SQLite plays a journal back up to its length, and truncates the database to the size in the journal's header. If the
/// new length is durable but the new bytes are not, SQLite must not read what a page held for the previous journal.
#[test]
fn inv26_a_crash_does_not_bring_back_the_head_of_the_journal_before() {
    for (ends, durable_on_store) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        let rig = Rig::new(1, 256 << 10, durable_on_store);
        let log = rig.open(0).expect("open");
        let journal = log.engine().rollback_journal().expect("a journal");
        journal.create().expect("create");
        for second in [512, 4096, 8192] {
            write_journal(&*journal, 1, second);
            complete_head(&*journal, 1, second);
            match ends {
                0 => {
                    journal.delete().expect("delete");
                    journal.create().expect("create");
                }
                1 => journal.truncate(0).expect("truncate"),
                // The part of the journal that stays is a complete journal.
                _ => journal.truncate(512).expect("truncate"),
            }
            if ends < 2 {
                write_journal(&*journal, 2, second);
            } else {
                journal.write(&[2; 512], 512).expect("write");
                journal.write(&[2; 9000], 1024).expect("write");
            }
            let from = if ends < 2 { 0 } else { 512 };
            assert_heads_are_new(&rig, from, &format!("end {ends}, second head at {second}"));
            journal.truncate(0).expect("truncate");
        }
    }
}

/// All processes see what a process stored before it died, although it may not be durable.
#[test]
fn inv26_a_head_that_a_process_stored_over_when_it_died_does_not_come_back() {
    for second in [512, 4096, 8192] {
        let rig = Rig::new(1, 256 << 10, false);
        let (dying, journal) = process_with_journal(&rig, second);
        journal.write(&[0; 28], 0).expect("write");
        journal.sync().expect("sync");
        // The next transaction's journal has the same length, and SQLite has not synced it.
        journal.write(&[[0; 12], [2; 12]].concat(), 0).expect("write");
        (512..second + 512).step_by(512).for_each(|at| journal.write(&[2; 512], at).expect("write"));
        std::mem::forget((journal, dying));
        let log = rig.open(0).expect("open");
        let journal = log.engine().rollback_journal().expect("a journal");
        journal.write(&[0; 28], 0).expect("write");
        (512..second).step_by(512).for_each(|at| journal.write(&[2; 512], at).expect("write"));
        complete_head(&*journal, 2, 0);
        assert_heads_are_new(&rig, 0, &format!("second head at {second}"));
    }
}

/// A process dies while erasing a header, in pages that it has just taken. That header does not come back either.
#[test]
fn inv26_a_head_that_a_process_was_erasing_when_it_died_does_not_come_back() {
    for second in [512, 4096, 8192] {
        let rig = Rig::new(1, 256 << 10, false);
        let (_log, journal) = process_with_journal(&rig, second);
        journal.delete().expect("delete");
        let bytes = rig.memory.to_bytes();
        let heads = (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(&MAGIC));
        assert_eq!(heads.map(|at| rig.memory.store_u64(at as u64, 0)).count(), 2);
        journal.create().expect("create");
        write_journal(&*journal, 2, second);
        assert_heads_are_new(&rig, 0, &format!("second head at {second}"));
    }
}

/// A process deletes a journal that ends with the name of a super-journal, and dies before it erases that end. A later
/// journal grows over the same bytes. If the length of that journal is durable after a crash, so is its own end.
#[test]
fn inv26_the_end_of_a_journal_does_not_come_back_with_the_length_of_a_later_one() {
    let rig = Rig::new(1, 256 << 10, false);
    let log = rig.open(0).expect("open");
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    journal.write(&[1; 1024], 0).expect("write");
    let end = [&[1; 39][..], &MAGIC].concat();
    journal.write(&end, 1024).expect("write");
    journal.sync().expect("sync");
    let words = rig.log(0);
    words.store_u64(JOURNAL_CHANGES_OFFSET, words.load_u64(JOURNAL_CHANGES_OFFSET) | 1);
    words.store_u64(JOURNAL_STATE_OFFSET, 0);
    words.flush(JOURNAL_CHAIN_OFFSET, 16);
    words.fence();
    std::mem::forget((journal, log));
    let log = rig.open(0).expect("open");
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    journal.write(&[2; 1024], 0).expect("write");
    journal.sync().expect("sync");
    journal.write(&[2; 47], 1024).expect("write");
    let mut grown = 0;
    for seed in 0..300 {
        let left = rig.on(rig.memory.crash(seed));
        let log = left.open(0).expect("open");
        let journal = log.engine().rollback_journal().expect("a journal");
        let mut found = vec![0; journal.size().expect("a size").expect("a journal") as usize];
        journal.read(&mut found, 0).expect("read");
        grown += u32::from(found.len() == 1071);
        assert!(!found.ends_with(&MAGIC), "seed {seed}, {} bytes", found.len());
    }
    assert!(grown > 0, "the length never became durable");
}

/// A process ends a transaction and dies before it acknowledges the commit. Other processes see that end, but it is not
/// durable yet. The next process must not overwrite the journal before the end of that transaction is durable.
/// Otherwise a crash would make SQLite play back a mixture of both journals.
#[test]
fn inv26_a_journal_that_a_process_was_ending_when_it_died_does_not_come_back_with_other_records() {
    // SQLite ends the transaction by overwriting the journal's header with zeros (PERSIST), by truncating the journal
    // (TRUNCATE), or by deleting it, which changes the word that says whether a journal exists (DELETE).
    for ends in 0..3 {
        let rig = Rig::new(1, 256 << 10, false);
        let (_log, journal) = process_with_journal(&rig, 4096);
        match ends {
            0 => {
                let dying = rig.open(0).expect("open");
                let ended = dying.engine().rollback_journal().expect("a journal");
                ended.write(&[0; 28], 0).expect("write");
                std::mem::forget((ended, dying));
                journal.write(&[2; 12], 0).expect("write");
            }
            1 => journal.truncate(0).expect("truncate"),
            _ => {
                journal.delete().expect("delete");
                journal.create().expect("create");
            }
        }
        journal.write(&[2; 500], 12).expect("write");
        for at in (512..4096).step_by(512) {
            journal.write(&[2; 512], at).expect("write");
        }
        for seed in 0..300 {
            let left = rig.on(rig.memory.crash(seed));
            let log = left.open(0).expect("open");
            let journal = log.engine().rollback_journal().expect("a journal");
            let Some(size) = journal.size().expect("a size") else { continue };
            let mut found = vec![0; size as usize];
            journal.read(&mut found, 0).expect("read");
            let of_both = found.starts_with(&MAGIC) && found[512..].contains(&2);
            assert!(!of_both, "end {ends}, seed {seed}");
        }
    }
}
