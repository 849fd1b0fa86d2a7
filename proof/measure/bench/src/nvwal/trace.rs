//! Figure 8: what ten inserts write to the disk and where. One log grows with each commit, and another is
//! allocated beforehand.

use std::path::Path;

use anyhow::Result;
use duralite_iotrace::{Class, Trace, Tracer};
use duralite_testkit::LoopDisk;

use super::{Effort, number, parameters};
use crate::disk::{self, NOT_TRACED, traceable};
use crate::report::Table;
use crate::workload::{Operation, Run, Session, Target};

const DISK_MIB: u64 = 256;
/// The number of inserts in the paper's trace.
const INSERTS: u32 = 10;
const BLOCK_BYTES: u64 = 4096;

/// A row of the table: the kind of log, whether the log was filled before, and the paper's values.
struct Mode {
    name: &'static str,
    target: Target,
    warm: bool,
    paper: [&'static str; 2],
}

fn modes() -> [Mode; 3] {
    let embedded = Target::Duralite(parameters(&[
        ("journal", "waldio"),
        ("layout", "embedded"),
        ("access", "direct"),
        ("device_block", "4096"),
    ]));
    let mode = |name, target, warm, paper| Mode { name, target, warm, paper };
    [
        mode("stock WAL, cold log", Target::Stock, false, ["284", "90"]),
        mode("stock WAL, warm log", Target::Stock, true, [""; 2]),
        mode("waldio, layout=embedded, new log", embedded, false, ["172", "74"]),
    ]
}

/// Traces the inserts into a new database. The first transaction is not traced, because it also writes the
/// beginning of the log.
fn traced(disk: &LoopDisk, mode: &Mode) -> Result<(Trace, Run)> {
    let mut session = Session::open(&disk.path(), &mode.target, false, false)?;
    if mode.warm {
        session.grow_log(4 * INSERTS)?;
        session.conn()?.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?;
    }
    session.run(Operation::Insert, 1, 1)?;
    let tracer = Tracer::at(&disk.path()).database(session.path());
    disk::traced(tracer, || session.run(Operation::Insert, INSERTS, 1))
}

/// Measures figure 8: the requests of ten inserts, and their sums.
///
/// # Errors
/// An error of SQLite or of the tracer.
pub fn figure8(_: &Path, _: Effort) -> Result<Vec<Table>> {
    const CLASSES: [Class; 4] = [Class::Log, Class::Journal, Class::Database, Class::Other];
    let names = CLASSES.map(Class::name);
    let mut requests = Table::new(
        "figure8",
        "NVWAL figure 8: block trace of ten inserts (blocks of 4 KiB on the device)",
        &["mode", "ms", "KB", names[0], names[1], names[2], names[3]],
    );
    let kilobytes = names.map(|name| format!("{name} KB"));
    let mut headings = vec!["mode"];
    headings.extend(kilobytes.iter().map(String::as_str));
    headings.extend(["requests", "flushes", "ms", "paper: file-system journal KB", "paper: ms"]);
    let mut sums = Table::new(
        "figure8_sums",
        "NVWAL figure 8: what ten inserts write to the device, by purpose",
        &headings,
    );
    let Some(disk) = traceable(DISK_MIB) else {
        for table in [&mut requests, &mut sums] {
            table.note = NOT_TRACED.to_owned();
        }
        return Ok(vec![requests, sums]);
    };
    for mode in modes() {
        let (trace, run) = traced(&disk, &mode)?;
        for write in &trace.writes {
            let block = (write.offset / BLOCK_BYTES).to_string();
            let place = |class| if class == write.class { block.clone() } else { "-".to_owned() };
            let head = [
                mode.name.to_owned(),
                format!("{:.3}", write.seconds * 1e3),
                format!("{:.1}", write.bytes as f64 / 1024.0),
            ];
            requests.row(head.into_iter().chain(CLASSES.map(place)));
        }
        let summary = trace.summary();
        let bytes = CLASSES.map(|class| number(summary.of(class).bytes as f64 / 1024.0));
        let counts = [summary.total.requests, summary.flushes].map(|count| count.to_string());
        let elapsed = number(run.elapsed.as_secs_f64() * 1e3);
        let paper = mode.paper.map(str::to_owned);
        let cells = bytes.into_iter().chain(counts).chain([elapsed]).chain(paper);
        sums.row(std::iter::once(mode.name.to_owned()).chain(cells));
    }
    requests.note = "One line per request that wrote, on a loop device with ext4: when it was issued, its size, \
                     and the block at which it begins, in the column of its purpose. The paper's trace shows the \
                     same for stock SQLite and for its optimised WAL on eMMC, which keeps frames aligned to pages \
                     and allocates 8, then 16 and more pages of the log before they are needed. The log of \
                     `waldio` with layout=embedded does both: it has 16 blocks with its first transaction, and \
                     then doubles. A stock log that is warm has all its blocks. The first insert is not traced."
        .to_owned();
    sums.note = "The sums of the trace above. The paper, for ten inserts: 284 KB to the file system's journal and \
                 90 ms in stock WAL, 172 KB and 74 ms in its optimised WAL, whose file system also commits changed \
                 times. The zeros that `waldio` writes into new blocks of its log count as log. NVWAL writes \
                 nothing to the device before a checkpoint."
        .to_owned();
    Ok(vec![requests, sums])
}
