//! The block traces of the WALDIO paper: its figures 2, 11 and 12, and table 1. Each figure lists the requests that an
//! insert, or a few inserts, send to the disk.

use std::path::Path;

use anyhow::{Result, bail};
use duralite_iotrace::{Class, Trace, Tracer, Write};
use duralite_testkit::LoopDisk;

use crate::disk::{self, NOT_TRACED, traceable};
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::waldio::waldio;
use crate::waldio_bytes::{State, prepare};
use crate::workload::{Operation, Session, Target};

/// The size of the loop device, in MiB.
const DISK_MIB: u64 = 256;
/// The number of inserts in figure 12.
const INSERTS: u32 = 10;
/// This many inserts suffice to make a new log grow.
const UNTIL_GROWTH: u32 = 200;
/// The columns of the tables. `trace` names the panel of the picture.
const COLUMNS: [&str; 6] = ["trace", "ms", "request", "address KiB", "KiB", "purpose"];
const KIB: u64 = 1024;

/// The KiB that the paper gives for the requests of one insert.
#[derive(Debug, Clone, Copy)]
struct InPaper {
    /// The KiB that the file system's journal writes for SQLite's log or journal.
    journaling: &'static str,
    all: &'static str,
}

/// Returns the journal modes of figure 2.
fn modes() -> [(&'static str, Target, InPaper); 5] {
    let of = |journaling, all| InPaper { journaling, all };
    [
        ("OFF", Target::Rollback("OFF"), of("-", "20")),
        ("WAL", Target::Stock, of("20", "28")),
        ("DELETE", Target::Rollback("DELETE"), of("44", "80")),
        ("TRUNCATE", Target::Rollback("TRUNCATE"), of("36", "-")),
        ("PERSIST", Target::Rollback("PERSIST"), of("40", "-")),
    ]
}

/// Returns WALDIO as in the paper: pages with embedded headers, written directly in blocks of 4 KiB.
fn as_in_paper() -> Target {
    waldio(&[("access", "direct"), ("layout", "embedded"), ("device_block", "4096")])
}

/// Traces what `body` writes.
fn traced(
    disk: &LoopDisk,
    session: &mut Session,
    body: impl FnOnce(&mut Session) -> Result<()>,
) -> Result<Trace> {
    let tracer = Tracer::at(&disk.path()).database(session.path());
    disk::traced(tracer, || body(session)).map(|(trace, ())| trace)
}

fn traced_inserts(disk: &LoopDisk, session: &mut Session, inserts: u32) -> Result<Trace> {
    traced(disk, session, |session| session.run(Operation::Insert, inserts, 1).map(drop))
}

/// Returns the requests of a trace in the order in which the disk got them, each as the cells of a row. The time counts
/// from the first request.
fn rows(name: &str, trace: &Trace) -> Vec<[String; COLUMNS.len()]> {
    let writes = trace.writes.iter().map(|write| (write.seconds, Some(write)));
    let flushes = trace.flushes.iter().map(|seconds| (*seconds, None));
    let mut requests: Vec<(f64, Option<&Write>)> = writes.chain(flushes).collect();
    requests.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let start = requests.first().map_or(0.0, |(seconds, _)| *seconds);
    let cells = |(seconds, write): (f64, Option<&Write>)| {
        let of = |text: &dyn Fn(&Write) -> String| write.map_or_else(|| "-".to_owned(), text);
        let kind = match write {
            None => "flush",
            Some(write) if write.fua => "write, FUA",
            Some(_) => "write",
        };
        [
            name.to_owned(),
            format!("{:.3}", (seconds - start) * 1e3),
            kind.to_owned(),
            of(&|write| (write.offset / KIB).to_string()),
            of(&|write| kib(write.bytes)),
            of(&purpose),
        ]
    };
    requests.into_iter().map(cells).collect()
}

fn kib(bytes: u64) -> String {
    (bytes as f64 / KIB as f64).to_string()
}

/// Returns the purpose of a request. If neighbouring blocks were written together, there may be several purposes.
fn purpose(write: &Write) -> String {
    let others = write.shared.iter().map(|(class, _)| class.name());
    [write.class.name()].into_iter().chain(others).collect::<Vec<_>>().join(" and ")
}

fn add(table: &mut Table, name: &str, trace: &Trace) {
    rows(name, trace).into_iter().for_each(|row| table.row(row));
}

/// The text that says how the requests of all figures were found.
const HOW: &str = "From the block trace of a loop device with ext4 (blocks of 4 KiB, data=ordered), synchronous=FULL, one \
                   connection, rows of 100 bytes. Reads are not listed. An address is that of the first byte on the device; a \
                   flush has none. `other` is metadata that the file system writes home.";

/// Measures figure 2 and table 1: the requests of one insert in each of stock SQLite's journal modes.
///
/// # Errors
/// An error of SQLite or of the tracer.
pub fn figure2(_: &Path, _: Effort) -> Result<Vec<Table>> {
    let mut figure =
        Table::new("waldio_figure2", "WALDIO figure 2: the writes of one insert, by journal mode", &COLUMNS);
    let mut sums = Table::new(
        "waldio_table1",
        "WALDIO table 1: KiB that one insert writes, by purpose",
        &[
            "mode",
            "all",
            "log",
            "database",
            "file-system journal",
            "other",
            "requests",
            "flushes",
            "paper: all",
            "paper: file-system journal for the log",
        ],
    );
    let Some(disk) = traceable(DISK_MIB) else {
        figure.note = NOT_TRACED.to_owned();
        sums.note = NOT_TRACED.to_owned();
        return Ok(vec![figure, sums]);
    };
    for (name, target, paper) in modes() {
        let mut session = Session::open(&disk.path(), &target, false, false)?;
        // The first insert makes the journal. Each later insert deletes it, truncates it or writes it again, as the
        // journal mode says.
        session.fill(1)?;
        session.run(Operation::Insert, 1, 1)?;
        let trace = traced_inserts(&disk, &mut session, 1)?;
        add(&mut figure, name, &trace);
        let summary = trace.summary();
        let of = |class| kib(summary.of(class).bytes);
        sums.row([
            name.to_owned(),
            kib(summary.total.bytes),
            of(Class::Log),
            of(Class::Database),
            of(Class::Journal),
            of(Class::Other),
            summary.total.requests.to_string(),
            summary.flushes.to_string(),
            paper.all.to_owned(),
            paper.journaling.to_owned(),
        ]);
    }
    figure.note = format!(
        "{HOW} One insert, after two that made the table's page and the log. What the kernel had not written out when the \
         insert was durable is not listed: DELETE's file system journals the deletion later."
    );
    sums.note = "The sums of the traces of figure 2. `log` is SQLite's log or rollback journal. The paper's figures are those of \
                 its text; its column counts what ext4 journals for SQLite's log alone, while ours also has what ext4 journals \
                 for the database. In OFF the paper counts two pages of the database and three of ext4's journal."
        .to_owned();
    Ok(vec![figure, sums])
}

/// Measures figure 11: the requests of one insert through `waldio`, of the creation of a log, and of an insert for
/// which the log grows.
///
/// # Errors
/// An error of SQLite or of the tracer, or the log does not grow.
pub fn figure11(_: &Path, _: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_figure11",
        "WALDIO figure 11: the writes of one insert, of a new log, and of a log that grows",
        &COLUMNS,
    );
    let Some(disk) = traceable(DISK_MIB) else {
        table.note = NOT_TRACED.to_owned();
        return Ok(table);
    };
    let target = as_in_paper();
    let (mut session, inserts) = prepare(&disk.path(), &target, State::Warm, 1)?;
    add(&mut table, "insert", &traced_inserts(&disk, &mut session, inserts)?);
    session.close();
    let created = traced(&disk, &mut session, |session| {
        session.reopen(&target)?;
        session.run(Operation::Insert, 1, 1).map(drop)
    })?;
    add(&mut table, "insert, log is created", &created);
    add(&mut table, "insert, log grows", &growth(&disk, &mut session)?);
    table.note = format!(
        "{HOW} `insert` finds room in the log. `log is created` opens a database without a log, and inserts a row: the log's \
         blocks are written once as zeros, and the guard is put into the database. `log grows` is the first insert for \
         which a new log gets further blocks. In the paper, an insert is a single write of a page; its text has no \
         figures for the other two. The paper's file system discards the new blocks; here they are written as zeros. The \
         paper does not count flushes; with `durability=full` an insert makes one."
    );
    Ok(table)
}

/// Returns the trace of the first insert for which the log grows.
fn growth(disk: &LoopDisk, session: &mut Session) -> Result<Trace> {
    for _ in 0..UNTIL_GROWTH {
        let before = session.counter("preallocated_bytes")?;
        let trace = traced_inserts(disk, session, 1)?;
        if session.counter("preallocated_bytes")? > before {
            return Ok(trace);
        }
    }
    bail!("the log did not grow in {UNTIL_GROWTH} inserts")
}

/// Returns the traces of figure 12: ten inserts in WAL mode, and ten through `waldio`.
fn ten_inserts(disk: &LoopDisk) -> Result<[(&'static str, Trace); 2]> {
    let stock = {
        let mut session = Session::open(&disk.path(), &Target::Stock, false, false)?;
        session.fill(1)?;
        session.run(Operation::Insert, 1, 1)?;
        traced_inserts(disk, &mut session, INSERTS)?
    };
    let (mut session, inserts) = prepare(&disk.path(), &as_in_paper(), State::Warm, INSERTS)?;
    Ok([("WAL", stock), ("WALDIO", traced_inserts(disk, &mut session, inserts)?)])
}

/// Measures figure 12: the requests of ten inserts, in WAL mode and through `waldio`.
///
/// # Errors
/// An error of SQLite or of the tracer.
pub fn figure12(_: &Path, _: Effort) -> Result<Table> {
    let mut table = Table::new("waldio_figure12", "WALDIO figure 12: the writes of ten inserts", &COLUMNS);
    let Some(disk) = traceable(DISK_MIB) else {
        table.note = NOT_TRACED.to_owned();
        return Ok(table);
    };
    let mut counted = Vec::new();
    for (name, trace) in ten_inserts(&disk)? {
        // The picture shows sizes, and a flush has none.
        let writes = Trace { flushes: Vec::new(), ..trace.clone() };
        add(&mut table, name, &writes);
        let summary = trace.summary();
        let each = number(summary.total.bytes as f64 / KIB as f64 / f64::from(INSERTS));
        let (requests, flushes) = (summary.total.requests, summary.flushes);
        counted.push(format!("{name}: {requests} writes, {each} KiB for each insert, {flushes} flushes"));
    }
    table.note = format!(
        "{HOW} Flushes are counted only. {}. The log of WAL grows, as the paper's does; that of WALDIO was filled once. In the \
         paper an insert writes 28 KiB in WAL mode, 20 KiB of them to the file system's journal, and one page of 4 KiB \
         with WALDIO.",
        counted.join("; ")
    );
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use duralite_iotrace::JournalBy;

    fn write(seconds: f64, offset: u64, bytes: u64, class: Class) -> Write {
        let (shared, task) = (Vec::new(), String::new());
        Write { seconds, took: None, offset, bytes, class, shared, file: None, fua: false, task }
    }

    #[test]
    fn requests_are_listed_in_order_and_from_the_first() {
        let mut late = write(0.0125, 40960, 12288, Class::Log);
        late.shared = vec![(Class::Database, 4096)];
        let trace = Trace {
            device: "7:0".to_owned(),
            of_bios: false,
            seconds: 1.0,
            writes: vec![write(0.010, 8192, 512, Class::Journal), late],
            flushes: vec![0.011],
            zeroed_bytes: 0,
            discarded_bytes: 0,
            lost: 0,
            files: Vec::new(),
            journal: Vec::new(),
            journal_by: JournalBy::Place,
            journal_by_others: 0,
            raw: None,
        };
        let expected = [
            ["a", "0.000", "write", "8", "0.5", "file-system journal"],
            ["a", "1.000", "flush", "-", "-", "-"],
            ["a", "2.500", "write", "40", "12", "log and database"],
        ];
        assert_eq!(rows("a", &trace), expected.map(|row| row.map(str::to_owned)));
    }

    #[test]
    fn an_insert_of_waldio_is_one_page_and_one_flush_and_stock_wakes_the_journal() {
        let Some(disk) = traceable(DISK_MIB) else { return };
        let [(_, stock), (_, own)] = ten_inserts(&disk).unwrap();
        let (stock, own) = (stock.summary(), own.summary());
        let inserts = u64::from(INSERTS);
        assert_eq!((own.of(Class::Log).requests, own.of(Class::Log).bytes), (inserts, inserts * 4096));
        assert_eq!((own.of(Class::Journal).bytes, own.of(Class::Database).bytes), (0, 0));
        assert_eq!(own.flushes, inserts);
        // In WAL mode each insert makes the log file longer, so each sync of the log also commits metadata to ext4's
        // journal.
        assert!(stock.of(Class::Journal).bytes >= 3 * inserts * 4096, "{stock:?}");
        assert!(stock.flushes > own.flushes, "{stock:?}");
    }
}
