//! Tests of the files beside a database that has an archive (invariant 72).

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_crashmodel::{OverBlock, Through};
use duralite_format::LogId;
use duralite_format::archive::{LineEnd, Record, Stamp};
use duralite_medium::MediumError;
use duralite_medium::block::Block;
use duralite_wal::archive::{ArchiveFile, SidecarLock, backlog, backlog_of, path_of, stamp};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::placement::{FileStep, Hook, hook};
use duralite_wal::{DatabaseIdentity, EngineOptions, ErrorKind, Log, LogError};

use crate::common::{self, Model, Rng, wait, write_all};

const URL: &str = "s3://bucket/app";
const A: LogId = LogId([1; 16]);
const B: LogId = LogId([2; 16]);

struct Fixture {
    dir: tempfile::TempDir,
    database: PathBuf,
    identity: DatabaseIdentity,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let database = dir.path().join("app.db");
        std::fs::write(&database, [0; 4096]).expect("database");
        let identity = DatabaseIdentity::of(&database).expect("identity");
        Self { dir, database, identity }
    }

    fn enabled() -> Self {
        let fixture = Self::new();
        ArchiveFile::enable(&fixture.identity, URL, 1, 7).expect("enable");
        fixture
    }

    fn open(&self) -> ArchiveFile {
        ArchiveFile::open(&self.identity).expect("open").expect("there is one")
    }

    fn stamp(&self) -> Stamp {
        stamp(&self.identity, b"the first page").expect("examined").expect("a usable file system")
    }

    /// Closes a log at a position.
    fn close(&self, log: LogId, position: u64, backlog: bool) {
        let rest = Record::Rest { log, stamp: self.stamp() };
        self.open().append(&[Record::End { log, position, backlog }, rest]).expect("append");
    }
}

#[test]
fn a_database_without_an_archive_has_no_file_and_gets_one_when_it_is_enabled() {
    let fixture = Fixture::new();
    assert!(ArchiveFile::open(&fixture.identity).expect("open").is_none());
    assert!(ArchiveFile::look(&fixture.database).expect("look").is_none());
    assert!(!ArchiveFile::disable(&fixture.identity).expect("disable"));
    ArchiveFile::enable(&fixture.identity, URL, 1, 7).expect("enable");
    let owner = ArchiveFile::look(&fixture.database).expect("look").expect("there is one").owner;
    assert_eq!((&*owner.url, owner.generation, owner.token), (URL, 1, 7));
    assert!(fixture.open().is_of(&fixture.identity));
    // If the archive moves to another URL, the records of the database's logs stay.
    fixture.open().begin(&fixture.identity, A, false).expect("begin");
    ArchiveFile::enable(&fixture.identity, "file:///elsewhere", 2, 8).expect("enable");
    let records = fixture.open().records;
    assert_eq!((&*records.owner.url, records.logs().count()), ("file:///elsewhere", 1));
    assert!(ArchiveFile::enable(&fixture.identity, "two words", 1, 7).is_err());
    assert!(ArchiveFile::disable(&fixture.identity).expect("disable"));
    assert!(!path_of(&fixture.database).exists());
}

#[test]
fn inv72_a_line_goes_on_as_long_as_nothing_else_writes_the_database() {
    let fixture = Fixture::enabled();
    fixture.open().begin(&fixture.identity, A, false).expect("begin");
    fixture.close(A, 5, false);
    assert!(fixture.open().records.rests_at(fixture.stamp()));
    let intact = fixture.open().records.rests_at(fixture.stamp());
    fixture.open().begin(&fixture.identity, B, intact).expect("begin");
    let records = fixture.open().records;
    assert_eq!(records.since(A, LineEnd::Log(B)).map(|closed| closed.len()), Some(1));
    fixture.close(B, 1, false);
    // Write one byte again, so that only the file's time changes. Stock SQLite, with its WAL, can also change a
    // database and leave the first page and the size as they were.
    let bytes = std::fs::read(&fixture.database).expect("read");
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(&fixture.database).expect("open"),
        &bytes[..1],
        100,
    )
    .expect("write");
    assert!(!fixture.open().records.rests_at(fixture.stamp()), "a write was not noticed");
}

#[test]
fn inv72_a_write_within_the_same_tick_is_noticed() {
    let fixture = Fixture::enabled();
    for round in 0..50 {
        let file = std::fs::OpenOptions::new().write(true).open(&fixture.database).expect("open");
        let write = || std::os::unix::fs::FileExt::write_all_at(&file, b"x", 1000).expect("write");
        write();
        let before = fixture.stamp();
        write();
        assert_ne!(before, fixture.stamp(), "round {round}");
    }
}

#[test]
fn inv72_the_file_beside_a_copy_is_not_the_copys() {
    let fixture = Fixture::enabled();
    let copy = fixture.dir.path().join("copy.db");
    std::fs::copy(&fixture.database, &copy).expect("copy");
    std::fs::copy(path_of(&fixture.database), path_of(&copy)).expect("copy");
    let identity = DatabaseIdentity::of(&copy).expect("identity");
    let of_copy = ArchiveFile::open(&identity).expect("open").expect("it was copied");
    assert!(!of_copy.is_of(&identity) && fixture.open().is_of(&fixture.identity));
    drop(of_copy);
    // The copy gets a file of its own, without the records of the original.
    fixture.open().begin(&fixture.identity, A, false).expect("begin");
    ArchiveFile::enable(&identity, URL, 1, 9).expect("enable");
    let own = ArchiveFile::open(&identity).expect("open").expect("its own");
    assert!(own.is_of(&identity) && own.records.logs().count() == 0);
}

#[test]
fn inv72_what_a_crash_has_torn_is_left_out_and_the_next_record_is_whole() {
    let fixture = Fixture::enabled();
    fixture.open().begin(&fixture.identity, A, true).expect("begin");
    let path = path_of(&fixture.database);
    let whole = std::fs::read(&path).expect("read");
    // Do not test a cut that removes only the final newline. The next writer adds the newline, and so completes the
    // line.
    for cut in whole.len() - 40..whole.len() - 1 {
        std::fs::write(&path, &whole[..cut]).expect("write");
        fixture.open().begin(&fixture.identity, B, false).expect("begin");
        let records = fixture.open().records;
        let found: Vec<&Record> = records.logs().collect();
        assert_eq!(found, [&Record::Begin { log: B, intact: false }], "cut at {cut}");
    }
    // The VFS serves a database whatever this file holds. A caller that opens the file gets an error.
    std::fs::write(&path, "no archive").expect("write");
    let refused = ArchiveFile::open(&fixture.identity).err().expect("refused");
    assert!(matches!(refused, LogError::Format { .. }), "{refused}");
}

#[test]
fn a_file_that_has_become_too_long_forgets_the_logs_before() {
    let fixture = Fixture::enabled();
    let records: Vec<Record> =
        (0..9000).map(|position| Record::End { log: A, position, backlog: position == 5 }).collect();
    fixture.open().append(&records).expect("append");
    std::fs::write(backlog_of(&fixture.database, A), "a backlog").expect("write");
    fixture.open().begin(&fixture.identity, B, true).expect("begin");
    let found: Vec<Record> = fixture.open().records.logs().cloned().collect();
    assert_eq!(found, [Record::Begin { log: B, intact: false }]);
    assert!(!backlog_of(&fixture.database, A).exists());
    assert_eq!(fixture.open().records.owner.token, 7);
}

#[test]
fn a_fence_stays_until_the_database_owns_an_archive_again() {
    let fixture = Fixture::enabled();
    let is_fenced = || ArchiveFile::is_fenced(&fixture.identity);
    assert!(!is_fenced());
    fixture.open().begin(&fixture.identity, A, true).expect("begin");
    fixture.open().note_fence(2).expect("note");
    fixture.open().note_fence(3).expect("once is enough");
    fixture.close(A, 5, false);
    assert!(is_fenced());
    assert_eq!(fixture.open().records.fenced, Some(2));
    // The file keeps the fence, whatever else it forgets.
    fixture.open().begin(&fixture.identity, B, true).expect("begin");
    fixture.open().forget_before(&fixture.identity, B).expect("forget");
    assert!(is_fenced());
    let many: Vec<Record> =
        (0..9000).map(|position| Record::End { log: B, position, backlog: false }).collect();
    fixture.open().append(&many).expect("append");
    fixture.open().begin(&fixture.identity, A, true).expect("begin");
    assert_eq!(fixture.open().records.logs().count(), 1);
    assert!(is_fenced());
    // A copy is another database.
    let copy = fixture.dir.path().join("copy.db");
    std::fs::copy(&fixture.database, &copy).expect("copy");
    std::fs::copy(path_of(&fixture.database), path_of(&copy)).expect("copy");
    assert!(!ArchiveFile::is_fenced(&DatabaseIdentity::of(&copy).expect("identity")));
    ArchiveFile::enable(&fixture.identity, URL, 4, 7).expect("enable");
    assert!(!is_fenced());
    // A file that cannot be read does not count as a fence.
    std::fs::write(path_of(&fixture.database), "no archive").expect("write");
    assert!(!is_fenced());
}

#[test]
fn the_sidecar_forgets_what_the_archive_holds() {
    let fixture = Fixture::enabled();
    for log in [A, B] {
        let intact = fixture.open().records.rests_at(fixture.stamp());
        fixture.open().begin(&fixture.identity, log, intact).expect("begin");
        std::fs::write(backlog_of(&fixture.database, log), "a backlog").expect("write");
        fixture.close(log, 5, true);
    }
    fixture.open().forget_before(&fixture.identity, B).expect("forget");
    assert!(!backlog_of(&fixture.database, A).exists() && backlog_of(&fixture.database, B).exists());
    let records = fixture.open().records;
    assert_eq!(records.since(A, LineEnd::File(fixture.stamp())), None);
    assert_eq!(records.since(B, LineEnd::File(fixture.stamp())).map(|closed| closed.len()), Some(1));
    assert!(ArchiveFile::disable(&fixture.identity).expect("disable"));
    assert!(!backlog_of(&fixture.database, B).exists());
}

#[test]
fn one_sidecar_at_a_time() {
    let fixture = Fixture::new();
    let first = SidecarLock::take(&fixture.database).expect("take");
    assert!(first.is_some());
    assert!(SidecarLock::take(&fixture.database).expect("take").is_none());
    let renamed = fixture.dir.path().join("renamed.db");
    std::fs::rename(&fixture.database, &renamed).expect("rename");
    assert!(SidecarLock::take(&renamed).expect("take").is_none());
    drop(first);
    assert!(SidecarLock::take(&renamed).expect("take").is_some());
}

/// Makes a log with `commits` transactions. Returns the pages after each of them.
fn log_with(fixture: &Fixture, engine: &'static duralite_wal::Descriptor, commits: u64) -> (Log, Vec<Model>) {
    let logs = common::directory(engine, fixture.dir.path());
    let options = EngineOptions::default();
    let mut log = Log::create(&NoDatabase, &logs, &options, &fixture.identity, 512).expect("create");
    let (mut model, mut rng, mut states) = (Model::new(512, 20), Rng(72), Vec::new());
    let (offset, data) = model.restart();
    log.write(&NoDatabase, offset, &data).map(drop).expect("begin");
    for _ in 0..commits {
        let spill = rng.chance(3);
        let transaction = model.transaction(&mut rng, spill);
        let written = write_all(&transaction.writes, |at, data| log.write(&NoDatabase, at, data));
        wait(written.expect("write"), log.durability_waiter()).expect("durable");
        model.commit(transaction);
        states.push(model.clone());
    }
    (log, states)
}

/// Applies a backlog from a position on, and compares the result after each commit with the expected state.
fn replay(path: &Path, states: &[Model], after: u64) {
    let mut backlog = backlog::Backlog::open(path).expect("open");
    assert_eq!(backlog.header().first, after);
    let mut pages = match after {
        0 => vec![vec![0; 512]; 20],
        _ => states[after as usize - 1].pages.clone(),
    };
    let mut position = after;
    while let Some(commit) = backlog.next_commit().expect("a commit") {
        let mut image = vec![0; 512];
        let mut last = 0;
        while let Some(number) = backlog.next_page(&mut image).expect("a page") {
            assert!(number > last && number <= commit.db_pages, "each page once, in order");
            last = number;
            pages[number as usize - 1].clone_from(&image);
        }
        position += 1;
        assert_eq!(commit.position, position);
        assert!(pages == states[position as usize - 1].pages, "after commit {position}");
    }
    assert_eq!(position, states.len() as u64);
    assert!(backlog.next_commit().expect("the end").is_none());
}

#[test]
fn inv73_a_backlog_has_every_commit_behind_a_position() {
    for engine in [&nvwal::DESCRIPTOR, &waldio::DESCRIPTOR] {
        let fixture = Fixture::enabled();
        let (mut log, states) = log_with(&fixture, engine, 12);
        let path = backlog_of(&fixture.database, log.id());
        for after in [0, 5, 11] {
            assert!(backlog::write(&mut log, &NoDatabase, &fixture.identity, after).expect("written"));
            replay(&path, &states, after);
        }
        assert!(!backlog::write(&mut log, &NoDatabase, &fixture.identity, 12).expect("nothing to write"));
        let whole = std::fs::read(&path).expect("read");
        // If anything is missing or damaged, a reader notices it before it reports the end.
        for at in (0..whole.len()).step_by(37) {
            let mut bad = whole.clone();
            bad[at] ^= 4;
            std::fs::write(&path, &bad).expect("write");
            assert!(is_refused(&path), "byte {at}");
            std::fs::write(&path, &whole[..at]).expect("write");
            assert!(is_refused(&path), "cut at {at}");
        }
    }
}

/// Counts the reads of a log's blocks.
#[derive(Debug, Default)]
struct Reads(Arc<AtomicU64>);

#[derive(Debug)]
struct Counted(Arc<dyn Block>, Arc<AtomicU64>);

impl OverBlock for Counted {
    fn below(&self) -> &dyn Block {
        &*self.0
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read(at, buf)
    }
}

impl Hook for Reads {
    fn step(&self, _: FileStep, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn block(&self, _: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        Ok(Arc::new(Through(Counted(block, Arc::clone(&self.0)))))
    }
}

/// The transactions change the same few pages, so the records of each page are scattered over the log. Most of the log
/// has left the ring.
#[test]
fn a_backlog_is_written_with_few_reads_of_the_log() {
    const COMMITS: u64 = 1500;
    let fixture = Fixture::enabled();
    let reads = Arc::new(AtomicU64::new(0));
    let _hooked = hook(fixture.dir.path(), Arc::new(Reads(Arc::clone(&reads))));
    let (mut log, states) = log_with(&fixture, &waldio::DESCRIPTOR, COMMITS);
    let path = backlog_of(&fixture.database, log.id());
    for (after, most) in [(0, 40), (COMMITS / 2, COMMITS)] {
        let before = reads.load(Ordering::Relaxed);
        assert!(backlog::write(&mut log, &NoDatabase, &fixture.identity, after).expect("written"));
        let made = reads.load(Ordering::Relaxed) - before;
        assert!(made <= most, "{made} reads for {COMMITS} commits after {after}");
        replay(&path, &states, after);
    }
}

fn is_refused(path: &Path) -> bool {
    let read = || -> Result<(), LogError> {
        let mut backlog = backlog::Backlog::open(path)?;
        let mut image = vec![0; 512];
        while backlog.next_commit()?.is_some() {
            while backlog.next_page(&mut image)?.is_some() {}
        }
        Ok(())
    };
    read().is_err_and(|error| error.kind() != ErrorKind::Io || matches!(error, LogError::Format { .. }))
}
