//! Tests of following a log: what a follower reads, what it pins, and when the log no longer has its position
//! (invariant 16).

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::time::{SystemTime, UNIX_EPOCH};

use common::{Model, Rng, for_seeds, wait, write_all};
use duralite_format::waldio::Layout;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::log::follow;
use duralite_wal::shared::pins::Followers;
use duralite_wal::{
    DatabaseIdentity, Descriptor, EngineOptions, ErrorKind, Follower, Log, LogError, LogPlacement,
    NvwalOptions, WaldioOptions,
};

const PAGE: usize = 512;
const PAGES: usize = 20;

struct Fixture {
    _dir: tempfile::TempDir,
    logs: LogPlacement,
    layout: Layout,
    identity: DatabaseIdentity,
    options: EngineOptions,
}

/// Returns a fixture for each combination of engine and layout under test.
fn fixtures() -> impl Iterator<Item = Fixture> {
    let kinds: [(&'static Descriptor, Layout); 3] = [
        (&nvwal::DESCRIPTOR, Layout::Delta),
        (&waldio::DESCRIPTOR, Layout::Delta),
        (&waldio::DESCRIPTOR, Layout::Embedded),
    ];
    kinds.into_iter().map(|(engine, layout)| Fixture::new(engine, layout))
}

impl Fixture {
    fn new(engine: &'static Descriptor, layout: Layout) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let database = dir.path().join("app.db");
        std::fs::write(&database, [0; 4096]).expect("database");
        let logs = common::directory(engine, dir.path());
        let identity = DatabaseIdentity::of(&database).expect("identity");
        let options = EngineOptions::default().with(WaldioOptions { layout, ..WaldioOptions::default() });
        Self { _dir: dir, logs, layout, identity, options }
    }

    fn create(&self) -> Writer {
        let log =
            Log::create(&NoDatabase, &self.logs, &self.options, &self.identity, PAGE as u32).expect("create");
        Writer { log, model: Model::new(PAGE, PAGES), rng: Rng(16), keeps_time: self.keeps_time() }
    }

    /// Attaches a log whose writer has died, and continues as its new writer.
    fn take_over(&self, dead: Writer) -> Writer {
        let Writer { log, model, rng, keeps_time } = dead;
        let id = log.id();
        drop(log);
        let log = Log::attach(&NoDatabase, &self.logs, &self.options, &self.identity, id, &|_| false)
            .expect("attach");
        Writer { log, model, rng, keeps_time }
    }

    fn follow(&self, writer: &Writer) -> Follower {
        Follower::open_log(Box::new(NoDatabase), &self.logs, &self.options, &self.identity, writer.log.id())
            .expect("follow")
    }

    fn keeps_time(&self) -> bool {
        self.layout == Layout::Delta
    }
}

/// A writer that does to a log what SQLite would do.
struct Writer {
    log: Log,
    model: Model,
    rng: Rng,
    keeps_time: bool,
}

impl Writer {
    fn try_restart(&mut self) -> Result<(), LogError> {
        let mut next = self.model.clone();
        let (offset, data) = next.restart();
        self.log.write(&NoDatabase, offset, &data)?;
        self.model = next;
        Ok(())
    }

    fn restart(&mut self) {
        self.try_restart().expect("restart");
    }

    /// Seals a transaction that SQLite has not published in the wal-index.
    fn seal(&mut self) -> common::Transaction {
        let spill = self.rng.chance(3);
        let transaction = self.model.transaction(&mut self.rng, spill);
        let written = write_all(&transaction.writes, |at, data| self.log.write(&NoDatabase, at, data));
        wait(written.expect("write"), self.log.durability_waiter()).expect("durable");
        transaction
    }

    fn acknowledge(&mut self, transaction: common::Transaction) {
        self.model.commit(transaction);
        follow::acknowledge(&**self.log.segment(), self.log.newest_commit());
    }

    fn commit(&mut self) {
        let transaction = self.seal();
        self.acknowledge(transaction);
    }
}

/// A copy of the database, which a follower keeps up to date.
struct Copy {
    position: u64,
    pages: Vec<Vec<u8>>,
    newest_ms: u64,
}

impl Copy {
    fn new() -> Self {
        Self { position: 0, pages: vec![vec![0; PAGE]; PAGES], newest_ms: 0 }
    }

    fn take(&mut self, follower: &mut Follower, keeps_time: bool) -> Result<bool, LogError> {
        let Some(transaction) = follower.read_since(self.position)? else { return Ok(false) };
        assert!(transaction.position > self.position && !transaction.pages.is_empty());
        for (index, number) in transaction.pages.iter().enumerate() {
            let page = &mut self.pages[*number as usize - 1];
            follower.read_page(&transaction, index, page)?;
        }
        assert_eq!(transaction.db_pages, PAGES as u32);
        assert_eq!(transaction.time_ms > 0, keeps_time);
        if keeps_time {
            assert!(transaction.time_ms >= self.newest_ms, "the time went back");
            assert!(transaction.time_ms <= now_ms() + 1000, "from the future");
            self.newest_ms = transaction.time_ms;
        }
        self.position = transaction.position;
        Ok(true)
    }

    fn take_all(&mut self, follower: &mut Follower, keeps_time: bool) {
        while self.take(follower, keeps_time).expect("a transaction") {}
    }

    /// Reads all transactions, and checks that the copy then equals the writer's database.
    fn catch_up(&mut self, follower: &mut Follower, writer: &Writer) {
        self.take_all(follower, writer.keeps_time);
        assert!(self.pages == writer.model.pages);
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("now").as_millis() as u64
}

fn is_lost(result: Result<bool, LogError>) -> bool {
    matches!(result.expect_err("lost").kind(), ErrorKind::LostPlace)
}

#[test]
fn inv16_every_transaction_is_given_in_order_through_many_generations() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        let (mut copy, started) = (Copy::new(), now_ms());
        let mut commits = 0;
        for round in 0..40 {
            writer.restart();
            for _ in 0..round % 7 {
                writer.commit();
                commits += 1;
                if round % 2 == 0 {
                    assert!(copy.take(&mut follower, writer.keeps_time).expect("the newest"));
                }
            }
            copy.take_all(&mut follower, writer.keeps_time);
            assert_eq!((copy.position, follower.newest().expect("newest")), (commits, commits));
            assert!(copy.pages == writer.model.pages, "round {round}");
        }
        assert!(!writer.keeps_time || copy.newest_ms + 1000 >= started);
    }
}

#[test]
fn inv16_what_nobody_was_told_of_is_given_when_it_stays_and_not_when_it_is_replaced() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        let mut copy = Copy::new();
        writer.restart();
        writer.commit();
        copy.take_all(&mut follower, writer.keeps_time);
        // A process seals a transaction, but dies before SQLite publishes it.
        let _lost = writer.seal();
        assert!(!copy.take(&mut follower, writer.keeps_time).expect("nothing yet"));
        assert_eq!(follower.newest().expect("newest"), 1);
        let stays = writer.seal();
        assert!(!copy.take(&mut follower, writer.keeps_time).expect("nothing yet"));
        assert_eq!(follower.newest().expect("newest"), 2);
        writer.model.commit(stays);
        // A process publishes a transaction, but dies before it acknowledges the commit. Another transaction
        // follows.
        let next = writer.seal();
        assert!(copy.take(&mut follower, writer.keeps_time).expect("followed"));
        assert_eq!(copy.position, 3, "one was left out");
        assert!(copy.pages == writer.model.pages);
        writer.acknowledge(next);
        copy.catch_up(&mut follower, &writer);
        assert_eq!(copy.position, 4);
    }
}

#[test]
fn inv16_a_pinned_log_does_not_start_over_before_it_has_been_read() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        let mut copy = Copy::new();
        writer.restart();
        assert!(follower.pin(0).expect("pin"));
        for _ in 0..5 {
            writer.commit();
        }
        assert!(!writer.log.may_start_over().expect("asked"));
        assert_eq!(writer.try_restart().expect_err("pinned").kind(), ErrorKind::Busy);
        assert_eq!(writer.log.truncate(&NoDatabase, 0).expect_err("pinned").kind(), ErrorKind::Busy);
        // The writer may not start the log over, so it appends.
        writer.commit();
        copy.take_all(&mut follower, writer.keeps_time);
        assert_eq!(writer.try_restart().expect_err("still pinned").kind(), ErrorKind::Busy);
        assert!(follower.pin(copy.position).expect("moved"));
        writer.restart();
        writer.commit();
        assert!(!writer.log.may_start_over().expect("asked"));
        copy.catch_up(&mut follower, &writer);
        // The follower may read a transaction again, as long as the log has it.
        assert!(follower.read_since(copy.position - 1).expect("again").is_some());
        assert!(matches!(follower.pin(0), Err(LogError::LostPlace { position: 0, .. })));
        drop(follower);
        writer.restart();
    }
}

#[test]
fn inv16_a_follower_that_is_asked_to_read_lets_the_log_start_over() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        writer.restart();
        writer.commit();
        assert_eq!(writer.log.ask_followers().expect("asked"), Followers::None);
        let mut follower = fixture.follow(&writer);
        let mut copy = Copy::new();
        assert!(follower.pin(0).expect("pin"));
        writer.commit();
        // The follower has not answered the request, so the writer cannot expect an answer.
        assert_eq!(writer.log.ask_followers().expect("asked"), Followers::Behind);
        copy.take_all(&mut follower, writer.keeps_time);
        assert_eq!(writer.log.ask_followers().expect("asked"), Followers::Behind, "it has not let go");
        assert!(!follower.is_asked_to_read(copy.position).expect("the end"));
        assert!(follower.pin(copy.position).expect("moved"));
        // The follower has answered, so a writer should wait for it, even if it is behind again.
        writer.commit();
        assert_eq!(writer.log.ask_followers().expect("asked"), Followers::Answer);
        assert!(follower.is_asked_to_read(copy.position).expect("asked"));
        assert_eq!(writer.try_restart().expect_err("pinned").kind(), ErrorKind::Busy);
        copy.catch_up(&mut follower, &writer);
        assert!(follower.pin(copy.position).expect("moved"));
        writer.restart();
        // A request that was made before the log started over has no meaning for the log now.
        writer.commit();
        assert_eq!(writer.log.ask_followers().expect("asked"), Followers::Behind);
        copy.catch_up(&mut follower, &writer);
    }
}

#[test]
fn inv16_once_the_log_is_about_to_start_over_it_cannot_be_pinned_further_back() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        writer.restart();
        writer.commit();
        assert!(writer.log.may_start_over().expect("asked"));
        // SQLite has already decided to start the log over. The follower can still read the log, and pin the log's
        // end.
        assert!(!follower.pin(0).expect("too late"));
        let mut copy = Copy::new();
        copy.take_all(&mut follower, writer.keeps_time);
        assert!(follower.pin(copy.position).expect("the end"));
        writer.restart();
        writer.commit();
        assert_eq!(writer.try_restart().expect_err("pinned").kind(), ErrorKind::Busy);
        copy.catch_up(&mut follower, &writer);
    }
}

#[test]
fn inv16_who_is_too_slow_is_told_that_its_place_is_lost() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        let mut copy = Copy::new();
        writer.restart();
        writer.commit();
        copy.take_all(&mut follower, writer.keeps_time);
        writer.commit();
        let half = follower.read_since(copy.position).expect("read").expect("a transaction");
        writer.restart();
        let refused = follower.read_page(&half, 0, &mut [0; PAGE]).map(|()| true);
        assert!(is_lost(refused));
        assert!(is_lost(copy.take(&mut follower, writer.keeps_time)));
        assert!(is_lost(follower.read_since(u64::MAX).map(|_| true)), "nobody has been there");
        // With a new copy of the database, the follower can continue.
        copy.pages = writer.model.pages.clone();
        copy.position = follower.oldest().expect("oldest");
        writer.commit();
        copy.catch_up(&mut follower, &writer);
    }
}

#[test]
fn inv10_a_follower_keeps_nobody_from_committing_when_the_log_is_full() {
    for mut fixture in fixtures() {
        fixture.options.limit_bytes =
            Some(if fixture.logs.engine.name == "nvwal" { 256 << 10 } else { 1 << 20 });
        fixture.options.change(|own: &mut NvwalOptions| own.block_bytes = 8192);
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        writer.restart();
        assert!(follower.pin(0).expect("pin"));
        writer.commit();
        let mut commits = 1;
        while !writer.log.may_start_over().expect("asked") {
            writer.commit();
            commits += 1;
            assert!(commits < 100_000, "the log never starts over");
        }
        assert!(commits > 20, "only {commits}");
        writer.restart();
        writer.commit();
        assert!(is_lost(Copy::new().take(&mut follower, writer.keeps_time)));
        assert!(matches!(follower.pin(0), Err(LogError::LostPlace { .. })));
    }
}

#[test]
fn inv16_positions_survive_every_user_of_the_log() {
    for_seeds(6, |seed| {
        for fixture in fixtures() {
            let mut writer = fixture.create();
            writer.rng = Rng(seed);
            let mut copy = Copy::new();
            let mut commits = 0;
            for round in 0..6 {
                writer.restart();
                for _ in 0..writer.rng.below(5) {
                    writer.commit();
                    commits += 1;
                }
                // Recovery keeps a transaction that was sealed but never acknowledged.
                if round % 2 == 1 {
                    let sealed = writer.seal();
                    writer.model.commit(sealed);
                    commits += 1;
                }
                writer = fixture.take_over(writer);
                let mut follower = fixture.follow(&writer);
                copy.take_all(&mut follower, writer.keeps_time);
                assert_eq!(copy.position, commits);
                assert!(copy.pages == writer.model.pages);
            }
        }
    });
}

#[test]
fn a_follower_sleeps_until_there_is_something() {
    for fixture in fixtures() {
        let mut writer = fixture.create();
        let mut follower = fixture.follow(&writer);
        writer.restart();
        assert!(!follower.wait(0, std::time::Duration::from_millis(50)).expect("nothing"));
        let waiting = std::thread::spawn(move || follower.wait(0, std::time::Duration::from_secs(60)));
        writer.commit();
        assert!(waiting.join().expect("the follower").expect("waited"));
    }
}

/// Somebody sets the clock back and forward, and far ahead.
#[test]
fn the_time_of_a_transaction_survives_a_clock_that_is_set_back() {
    thread_local! { static NOW: std::cell::Cell<u64> = const { std::cell::Cell::new(0) } }
    let start = 1_600_000_000_000;
    let fixture = Fixture::new(&nvwal::DESCRIPTOR, Layout::Delta);
    let mut writer = fixture.create();
    let mut follower = fixture.follow(&writer);
    writer.log.set_clock(|| NOW.get());
    let mut times = Vec::new();
    for offset in [0, 5000, 4000, 6000, 1 << 40, 7000] {
        NOW.set(start + offset);
        if times.is_empty() || offset == 7000 {
            writer.restart();
        }
        writer.commit();
        let newest = follower.newest().expect("newest");
        times.push(follower.read_since(newest - 1).expect("read").expect("a transaction").time_ms - start);
    }
    assert_eq!(times, [0, 5000, 5000, 6000, 6000 + u64::from(u32::MAX), 7000]);
}
