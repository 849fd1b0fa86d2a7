//! Measures what one insert writes to the disk, by purpose. There are three cases: a log that grows, a log
//! that does not grow, and a long run with checkpoints.

use std::path::Path;

use anyhow::{Result, ensure};
use duralite_iotrace::{Class, Tracer};
use duralite_testkit::LoopDisk;

use crate::disk::{self, NOT_TRACED, traceable};
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::waldio::waldio;
use crate::workload::{Operation, Session, Target};

/// The size of the loop device in MiB.
const DISK_MIB: u64 = 512;
/// SQLite makes an automatic checkpoint when its log has this many pages.
const CHECKPOINT_PAGES: u32 = 1000;
/// The number of automatic checkpoints during the counted inserts of [`State::Sustained`]. The next constant
/// is the number of automatic checkpoints before these inserts.
const CHECKPOINTS: u32 = 10;
const CHECKPOINTS_BEFORE: u32 = 3;

/// The state of the log while inserts are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The log has only its first blocks, and grows.
    Cold,
    /// The log was filled once, and is written again from its beginning. It does not grow, and there is no
    /// checkpoint.
    Warm,
    /// SQLite's automatic checkpoints run, and the log starts over after each of them.
    Sustained,
}

impl State {
    const ALL: [Self; 3] = [Self::Cold, Self::Warm, Self::Sustained];

    const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Sustained => "sustained",
        }
    }
}

/// The numbers of bytes that inserts wrote to the disk, by purpose, and the numbers of requests and flushes.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    inserts: u32,
    log: u64,
    zeros: u64,
    database: u64,
    journal: u64,
    other: u64,
    requests: u64,
    flushes: u64,
}

impl Written {
    fn total(&self) -> u64 {
        self.log + self.zeros + self.database + self.journal + self.other
    }

    fn each(&self, count: u64) -> f64 {
        count as f64 / f64::from(self.inserts)
    }
}

/// Returns the number of zero bytes that Duralite has written into new blocks of its log; 0 for stock SQLite.
fn zeros(session: &Session, target: &Target) -> Result<u64> {
    if matches!(target, Target::Stock) { Ok(0) } else { Ok(session.counter("preallocated_bytes")? as u64) }
}

/// Opens a new database, and makes its log cold, warm or sustained, as `state` says. Returns the session and
/// the number of inserts to count.
pub(crate) fn prepare(
    dir: &Path,
    target: &Target,
    state: State,
    transactions: u32,
) -> Result<(Session, u32)> {
    let mut session = Session::open(dir, target, false, state == State::Sustained)?;
    session.fill(1)?;
    if state == State::Sustained {
        session.run(Operation::Insert, CHECKPOINTS_BEFORE * CHECKPOINT_PAGES, 1)?;
        return Ok((session, CHECKPOINTS * CHECKPOINT_PAGES));
    }
    if state == State::Warm {
        session.grow_log(transactions + transactions / 2)?;
    }
    session.conn()?.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?;
    // The first transaction of a log's generation is not counted, because it also writes the log's first
    // blocks.
    session.run(Operation::Insert, 1, 1)?;
    Ok((session, transactions))
}

fn count(disk: &LoopDisk, target: &Target, state: State, transactions: u32) -> Result<Written> {
    let (mut session, inserts) = prepare(&disk.path(), target, state, transactions)?;
    let zeros_before = zeros(&session, target)?;
    let tracer = Tracer::at(&disk.path()).database(session.path());
    let (trace, _) = disk::traced(tracer, || session.run(Operation::Insert, inserts, 1))?;
    let summary = trace.summary();
    let of = |class| summary.of(class).bytes;
    let zeros = zeros(&session, target)? - zeros_before;
    ensure!(of(Class::Log) >= zeros, "{zeros} bytes of zeros, but {} of the log", of(Class::Log));
    Ok(Written {
        inserts,
        log: of(Class::Log) - zeros,
        zeros,
        database: of(Class::Database),
        journal: of(Class::Journal),
        other: of(Class::Other),
        requests: summary.total.requests,
        flushes: summary.flushes,
    })
}

/// Returns the modes of the table. `access` says how Duralite writes its log.
fn modes(access: &'static str) -> [(&'static str, Target); 4] {
    let own = |layout, block| waldio(&[("access", access), ("layout", layout), ("device_block", block)]);
    [
        ("stock WAL", Target::Stock),
        ("waldio, layout=delta, blocks of 4096", own("delta", "4096")),
        ("waldio, layout=delta, blocks of 512", own("delta", "512")),
        ("waldio, layout=embedded, blocks of 4096", own("embedded", "4096")),
    ]
}

/// Makes the columns of the table that are the same on every disk and file system: the mode, the state of the
/// log, and, for each insert, the bytes of the log and the bytes of zeros. Duralite counts these bytes
/// itself, when it passes them to the kernel.
///
/// # Errors
/// An error of SQLite.
pub fn handed_over(dir: &Path, transactions: u32) -> Result<Vec<[String; 4]>> {
    let mut rows = Vec::new();
    for state in [State::Cold, State::Warm] {
        for (name, target) in modes("buffered").iter().filter(|(_, target)| !matches!(target, Target::Stock))
        {
            let (mut session, inserts) = prepare(dir, target, state, transactions)?;
            let counters = |session: &Session| -> Result<[f64; 2]> {
                Ok([session.counter("device_bytes")?, session.counter("preallocated_bytes")?])
            };
            let before = counters(&session)?;
            session.run(Operation::Insert, inserts, 1)?;
            let after = counters(&session)?;
            let each = |at: usize| format!("{:.0}", (after[at] - before[at]) / f64::from(inserts));
            rows.push([(*name).to_owned(), state.name().to_owned(), each(0), each(1)]);
        }
    }
    Ok(rows)
}

/// Measures the bytes that each insert writes to a loop device with ext4, by purpose.
///
/// # Errors
/// An error of SQLite or of the tracer.
pub fn bytes(_: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_bytes",
        "waldio: bytes to the device per insert, by purpose",
        &[
            "mode",
            "log is",
            "all",
            "of stock",
            "log",
            "zeros",
            "database",
            "file-system journal",
            "other",
            "requests",
            "flushes",
        ],
    );
    let Some(disk) = traceable(DISK_MIB) else {
        table.note = NOT_TRACED.to_owned();
        return Ok(table);
    };
    let modes = modes("direct");
    for state in State::ALL {
        let mut stock = f64::NAN;
        for (name, target) in &modes {
            let written = count(&disk, target, state, effort.transactions)?;
            let total = written.each(written.total());
            if matches!(target, Target::Stock) {
                stock = total;
            }
            let mut cells = vec![(*name).to_owned(), state.name().to_owned(), format!("{total:.0}")];
            cells.push(format!("{:.2}x", total / stock));
            let parts = [written.log, written.zeros, written.database, written.journal, written.other];
            cells.extend(parts.map(|bytes| format!("{:.0}", written.each(bytes))));
            cells.extend([number(written.each(written.requests)), number(written.each(written.flushes))]);
            table.row(cells);
        }
    }
    table.note = format!(
        "From the block trace of a loop device with ext4 (blocks of 4 KiB, data=ordered), so these are the bytes that \
         the disk got, and not those that were handed to the system. synchronous=FULL, one connection, a row of 100 \
         bytes. Cold: {} inserts into a new database, whose log has only its first blocks; no checkpoint. Warm: as \
         many, into a log that was filled once and is written again from its beginning; no checkpoint, no growth. \
         Sustained: {} inserts with SQLite's automatic checkpoints, after {} that are not counted. `zeros` are \
         written into new blocks of the log, so that a commit need not change metadata of the file system. `other` \
         is metadata, and the memory that processes share, a file that the kernel writes back every half minute: a slow \
         run has more of it. What the kernel had not written out when the last insert was durable is not counted.",
        effort.transactions,
        CHECKPOINTS * CHECKPOINT_PAGES,
        CHECKPOINTS_BEFORE * CHECKPOINT_PAGES,
    );
    Ok(table)
}
