//! Tests of the wrong checksums that SQLite before 3.41 may write. SQLite overwrites pages of spilled frames in place,
//! `ROLLBACK TO` truncates those frames, and the frames of the commit then have zeros as checksums. The engine must
//! recover everything that was committed, and SQLite's own recovery must accept all of it (invariant 7).

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a failed expectation is a failed test")]

use crate::common;

use common::{directory, wait};
use duralite_format::LogId;
use duralite_format::sqlite_wal::{Checksum, FrameHeader, WalHeader, make_wal_header};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::{DatabaseIdentity, Descriptor, EngineOptions, ErrorKind, Log, LogPlacement};

const PAGE: usize = 512;

/// A log, and a writer that writes it as SQLite does.
struct Rig {
    dir: tempfile::TempDir,
    engine: &'static Descriptor,
    header: WalHeader,
}

impl Rig {
    fn new(engine: &'static Descriptor) -> (Self, Log) {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("app.db"), [0; 4096]).expect("database");
        let bytes = make_wal_header(PAGE as u32, 0, [3, 4]);
        let rig = Self { dir, engine, header: WalHeader::parse(&bytes).expect("header") };
        let (identity, options) = (rig.identity(), EngineOptions::default());
        let mut log =
            Log::create(&NoDatabase, &rig.directory(), &options, &identity, PAGE as u32).expect("create");
        log.write(&NoDatabase, 0, &bytes).expect("WAL header");
        (rig, log)
    }

    fn directory(&self) -> LogPlacement {
        directory(self.engine, self.dir.path())
    }

    fn identity(&self) -> DatabaseIdentity {
        DatabaseIdentity::of(&self.dir.path().join("app.db")).expect("identity")
    }

    fn attach(&self, id: LogId) -> Result<Log, duralite_wal::LogError> {
        Log::attach(&NoDatabase, &self.directory(), &EngineOptions::default(), &self.identity(), id, &|_| {
            false
        })
    }

    fn at(&self, frame: u32) -> u64 {
        32 + u64::from(frame - 1) * self.header.frame_bytes()
    }

    /// Writes a frame with a page full of `fill`. The frame's checksum continues the checksum `before`; without
    /// `before`, it is zeros. Returns the checksum.
    fn frame(&self, log: &mut Log, frame: u32, size: u32, fill: u8, before: Option<Checksum>) -> Checksum {
        let page = [fill; PAGE];
        let sum = before.map_or([0, 0], |sum| self.header.extend(sum, frame, size, &page));
        self.rewrite(log, frame, size, sum);
        let sealed = log.write(&NoDatabase, self.at(frame) + 24, &page).expect("page");
        wait(sealed, log.durability_waiter()).expect("durable");
        sum
    }

    /// Writes the header of a frame whose page has the same number as the frame.
    fn rewrite(&self, log: &mut Log, frame: u32, size: u32, sum: Checksum) {
        let header = self.header.frame_header(frame, size, sum);
        let sealed = log.write(&NoDatabase, self.at(frame), &header).expect("frame header");
        wait(sealed, log.durability_waiter()).expect("durable");
    }

    /// Reads the log as SQLite's recovery does. Returns the first byte of each page that SQLite would accept.
    fn recover(&self, log: &mut Log) -> Vec<u8> {
        let mut sum = self.header.checksum;
        let mut bytes = vec![0; self.header.frame_bytes() as usize];
        let mut taken = Vec::new();
        while log.read(&NoDatabase, self.at(taken.len() as u32 + 1), &mut bytes).expect("read") == bytes.len()
        {
            let head = FrameHeader::parse(bytes[..24].try_into().expect("24 bytes"));
            sum = self.header.extend(sum, head.page_number, head.db_pages, &bytes[24..]);
            assert_eq!(head.checksum, sum, "frame {}", taken.len() + 1);
            taken.push(bytes[24]);
        }
        taken
    }

    /// Checks recovery in this log, and again after attaching the log a second time.
    fn check(&self, mut log: Log, expected: &[u8]) {
        assert_eq!(self.recover(&mut log), expected);
        let id = log.id();
        drop(log);
        let mut log = self.attach(id).expect("attach");
        assert_eq!(self.recover(&mut log), expected);
        // From here on, SQLite computes its checksums from the last one that it has read from the log.
        let mut bytes = [0; 8];
        let last = expected.len() as u32;
        assert_eq!(log.read(&NoDatabase, self.at(last) + 16, &mut bytes).expect("checksum"), 8);
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        self.frame(&mut log, last + 1, last + 1, 99, Some([word(0), word(4)]));
        drop(log);
        let mut log = self.attach(id).expect("attach again");
        assert_eq!(self.recover(&mut log), [expected, &[99]].concat());
    }
}

fn on_engines(test: impl Fn(&'static Descriptor)) {
    [&nvwal::DESCRIPTOR, &waldio::DESCRIPTOR].into_iter().for_each(test);
}

/// Commits one frame, spills ten more, overwrites frame 8 in place, and rolls back to the end of frame 1.
fn spill_and_go_back(rig: &Rig, log: &mut Log) -> Checksum {
    let committed = rig.frame(log, 1, 1, 1, Some(rig.header.checksum));
    let mut sum = committed;
    for frame in 2..=11 {
        sum = rig.frame(log, frame, 0, 50, Some(sum));
    }
    log.write(&NoDatabase, rig.at(8) + 24, &[51; PAGE]).expect("overwritten in place");
    committed
}

#[test]
fn inv07_a_commit_before_the_frames_that_were_overwritten_and_cut() {
    on_engines(|engine| {
        let (rig, mut log) = Rig::new(engine);
        spill_and_go_back(&rig, &mut log);
        rig.frame(&mut log, 2, 0, 2, None);
        rig.frame(&mut log, 3, 3, 3, None);
        // SQLite believes that it has overwritten frame 8, and continues after frame 7. So it reads the checksum of
        // frame 7, although that frame was truncated. A real file would still hold the bytes that SQLite had spilled
        // there. The read must succeed here too, because an error would fail a commit that every process can already
        // see.
        let mut bytes = [1; 8];
        assert_eq!(log.read(&NoDatabase, rig.at(7) + 16, &mut bytes).expect("a frame that was cut"), 8);
        assert_eq!(bytes, [0; 8]);
        let sum = rig.frame(&mut log, 4, 4, 4, Some([0, 0]));
        let sum = rig.frame(&mut log, 5, 0, 5, Some(sum));
        rig.frame(&mut log, 6, 6, 6, Some(sum));
        rig.check(log, &[1, 2, 3, 4, 5, 6]);
    });
}

#[test]
fn inv07_a_commit_behind_the_frames_that_were_overwritten_and_cut() {
    on_engines(|engine| {
        let (rig, mut log) = Rig::new(engine);
        spill_and_go_back(&rig, &mut log);
        for frame in 2..=9 {
            rig.frame(&mut log, frame, u32::from(frame == 9) * 9, frame as u8, None);
        }
        // From frame 8 on SQLite computes checksums again, starting from the checksum that it has for frame 7.
        let sum = rig.header.extend([7, 7], 8, 0, &[8; PAGE]);
        rig.rewrite(&mut log, 8, 0, sum);
        let sum = rig.header.extend(sum, 9, 9, &[9; PAGE]);
        rig.rewrite(&mut log, 9, 9, sum);
        rig.frame(&mut log, 10, 10, 10, Some(sum));
        rig.check(log, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    });
}

#[test]
fn inv07_a_commit_that_is_summed_up_from_what_was_never_summed() {
    on_engines(|engine| {
        let (rig, mut log) = Rig::new(engine);
        spill_and_go_back(&rig, &mut log);
        for frame in 2..=10 {
            rig.frame(&mut log, frame, 0, frame as u8, None);
        }
        log.write(&NoDatabase, rig.at(9) + 24, &[77; PAGE]).expect("overwritten in place again");
        rig.frame(&mut log, 11, 11, 11, None);
        let mut sum = [0, 0];
        for (frame, fill) in [(8, 8), (9, 77), (10, 10), (11, 11)] {
            let size = u32::from(frame == 11) * 11;
            sum = rig.header.extend(sum, frame, size, &[fill; PAGE]);
            rig.rewrite(&mut log, frame, size, sum);
        }
        rig.frame(&mut log, 12, 12, 12, Some(sum));
        rig.check(log, &[1, 2, 3, 4, 5, 6, 7, 8, 77, 10, 11, 12]);
    });
}

#[test]
fn inv08_a_checksum_that_sqlite_cannot_have_come_to_is_refused() {
    on_engines(|engine| {
        let (rig, mut log) = Rig::new(engine);
        let sum = rig.frame(&mut log, 1, 1, 1, Some(rig.header.checksum));
        rig.frame(&mut log, 2, 2, 2, Some([sum[0] ^ 1, sum[1]]));
        let id = log.id();
        drop(log);
        assert_eq!(rig.attach(id).map(|_| ()).expect_err("refused").kind(), ErrorKind::Corrupt);
    });
}
