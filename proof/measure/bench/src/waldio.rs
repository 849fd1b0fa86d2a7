//! The measurements of WALDIO (Lee et al., USENIX ATC 2015): its figures 3, 6, 8, 13, 14 and 15 and tables 1
//! and 2, and the effect of group commit for many connections, compared with stock SQLite.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use duralite_medium::block::{Access, AlignedBuf, Block, BlockOptions, Durability, FileBlock, Fua, fua};
use duralite_testkit::LoopDisk;

use crate::concurrent::{self, Crowd};
use crate::counting;
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::{Operation, Run, Session, Target, median, percentile};

/// The time for which the connections of a crowd commit.
const CROWD_TIME: Duration = Duration::from_secs(2);
/// The size in bytes of the file that raw writes overwrite from start to end, again and again.
const RAW_BYTES: u64 = 4 << 20;

fn duralite(parameters: &[(&'static str, &str)]) -> Target {
    Target::Duralite(parameters.iter().map(|&(name, value)| (name, value.to_owned())).collect())
}

/// Returns `waldio` with these additional parameters.
pub(crate) fn waldio(more: &[(&'static str, &str)]) -> Target {
    let mut parameters = vec![("journal", "waldio")];
    parameters.extend_from_slice(more);
    duralite(&parameters)
}

/// Runs transactions in autocommit mode on a fresh database. Before updates or deletes, fills the table with the rows
/// that they will change. A warm run also fills its log once.
pub(crate) fn run(
    dir: &Path,
    target: &Target,
    operation: Operation,
    transactions: u32,
    warm: bool,
) -> Result<Run> {
    let mut session = Session::open(dir, target, false, false)?;
    session.fill(if operation == Operation::Insert { 1 } else { transactions })?;
    if target.has_wal() {
        if warm {
            session.grow_log(transactions + transactions / 2)?;
        }
        session.conn()?.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?;
    }
    session.run(operation, transactions, 1)
}

/// Returns how many durable overwrites per second a preallocated file allows. Commits cannot be faster if each needs a
/// write of its own.
pub(crate) fn raw_overwrites(dir: &Path, block_bytes: u32, transactions: u32) -> Result<f64> {
    let path = dir.join("raw");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let options = BlockOptions { block_bytes: Some(block_bytes), access: Access::Auto, read_only: false };
    let block = FileBlock::open(file, &path, &options)?;
    block.preallocate(RAW_BYTES)?;
    let mut buffer = AlignedBuf::default();
    buffer.resize(block_bytes as usize);
    let start = Instant::now();
    for i in 0..u64::from(transactions) {
        buffer.as_mut_slice().fill(i as u8);
        let at = i * u64::from(block_bytes) % RAW_BYTES;
        block.write_durably(at, buffer.as_slice(), Durability::Full)?;
    }
    let rate = f64::from(transactions) / start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// Returns the sentence in a table's note that says how the measured disk carries out `durability=fua`.
fn fua_note(dir: &Path) -> String {
    format!("`durability=fua` on this disk: {}.", fua(dir).map_or("unknown", Fua::in_words))
}

/// Measures one connection, compared with the disk's own durable writes and with stock SQLite.
///
/// # Errors
/// An error of SQLite or of the file system.
pub fn single(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_single",
        "waldio: one connection, one insert per transaction",
        &["what", "per second", "of raw overwrite", "of stock, cold", "of stock, warm"],
    );
    let transactions = effort.transactions;
    let probe = {
        let session = Session::open(dir, &waldio(&[]), false, false)?;
        session.counter("block_bytes")?
    };
    let targets: [(&str, Target, bool); 6] = [
        ("stock WAL, cold log", Target::Stock, false),
        ("stock WAL, warm log", Target::Stock, true),
        ("waldio, layout=delta", waldio(&[]), false),
        ("waldio, layout=embedded", waldio(&[("layout", "embedded")]), false),
        ("waldio, durability=fua", waldio(&[("durability", "fua")]), false),
        ("nvwal, normal locking", duralite(&[("journal", "nvwal"), ("nvram", "emulate")]), false),
    ];
    let mut rates = vec![Vec::new(); targets.len() + 1];
    for _ in 0..effort.rounds {
        rates[0].push(raw_overwrites(dir, probe as u32, transactions)?);
        for (i, (_, target, warm)) in targets.iter().enumerate() {
            rates[i + 1].push(run(dir, target, Operation::Insert, transactions, *warm)?.per_second());
        }
    }
    let medians: Vec<f64> = rates.into_iter().map(median).collect();
    let names = ["raw durable overwrite"].into_iter().chain(targets.iter().map(|(name, ..)| *name));
    for (name, rate) in names.zip(&medians) {
        let of = |base: usize| format!("{:.2}x", rate / medians[base]);
        table.row([name.to_owned(), number(*rate), of(0), of(1), of(2)]);
    }
    table.note = format!(
        "Normal locking. The raw loop overwrites {probe}-byte blocks of a preallocated file, each made \
         durable, as a commit does. Cold: SQLite's log file grows. Warm: it is recycled in place. {:.0} ns \
         of each commit of Duralite's are spent on counting it for `duralite top`. {}",
        counting::cost_ns(dir)?,
        fua_note(dir)
    );
    Ok(table)
}

/// Measures many connections, in threads of one process and in processes.
///
/// # Errors
/// An error of SQLite, or of starting a process.
pub fn crowds(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_crowds",
        "waldio: many connections, one insert per transaction",
        &["connections", "what", "commits/s", "of stock", "slowest / mean", "worst commit ms", "SQLITE_BUSY"],
    );
    type Gather = fn(&str, usize, Duration) -> Result<Crowd>;
    let gatherings: [(&str, usize, Gather); 3] = [
        ("16 threads", 16, concurrent::threads),
        ("16 processes", 16, concurrent::processes),
        ("64 threads", 64, concurrent::threads),
    ];
    let contenders = [
        ("stock WAL, warm", None),
        ("waldio, layout=delta", Some("journal=waldio")),
        ("waldio, layout=embedded", Some("journal=waldio&layout=embedded")),
        ("nvwal", Some("journal=nvwal&nvram=emulate")),
    ];
    for (name, count, gather) in gatherings {
        let mut stock = f64::NAN;
        for (what, parameters) in contenders {
            let mut crowds = Vec::new();
            for _ in 0..effort.rounds.min(3) {
                crowds.push(gather(&concurrent::fresh(dir, parameters), count, CROWD_TIME)?);
            }
            let middle =
                |figure: &dyn Fn(&Crowd) -> f64| median(crowds.iter().map(figure).collect::<Vec<_>>());
            let rate = middle(&Crowd::per_second);
            if parameters.is_none() {
                stock = rate;
            }
            table.row([
                name.to_owned(),
                what.to_owned(),
                number(rate),
                format!("{:.2}x", rate / stock),
                format!("{:.2}", middle(&Crowd::slowest_to_mean)),
                number(middle(&Crowd::worst_ms)),
                crowds.iter().map(Crowd::busy).sum::<u64>().to_string(),
            ]);
        }
    }
    table.note =
        "Two seconds each, busy timeout 20 s. Stock SQLite polls for the WRITE lock: one connection gets it \
         again and again and makes nearly all of the commits, and the others starve."
            .to_owned();
    Ok(table)
}

/// The inserts per second of SQLite's WAL mode in the paper's figure 14. The next constant is the number for LS-MVBT,
/// the fastest mode that was known before WALDIO.
const WAL_IN_PAPER: &str = "587";
const LS_MVBT_IN_PAPER: &str = "1083";
const LS_MVBT: &str = "LS-MVBT, not run";

/// Returns the journal modes of figure 14 and table 2.
fn modes(more: &[(&'static str, &str)]) -> Vec<(&'static str, Target, &'static str)> {
    let group = |durability, frames| {
        let own = [("layout", "embedded"), ("durability", durability), ("group_synch", frames)];
        waldio(&[more, &own].concat())
    };
    vec![
        ("DELETE", Target::Rollback("DELETE"), "-"),
        ("TRUNCATE", Target::Rollback("TRUNCATE"), "-"),
        ("PERSIST", Target::Rollback("PERSIST"), "-"),
        ("WAL", Target::Stock, WAL_IN_PAPER),
        ("WALDIO full", group("full", "0"), "1219"),
        ("WALDIO full, Group Synch 4", group("full", "4"), "2729"),
        ("WALDIO fua", group("fua", "0"), "-"),
        ("WALDIO fua, Group Synch 4", group("fua", "4"), "2967"),
        ("WALDIO normal", group("normal", "0"), "-"),
        ("WALDIO normal, Group Synch 4", group("normal", "4"), "4332"),
        ("waldio, layout=delta", waldio(&[]), "-"),
        ("waldio, layout=delta, Group Synch 4", waldio(&[("group_synch", "4")]), "-"),
    ]
}

/// Measures figure 14 and table 2: operations per second by journal mode.
///
/// # Errors
/// An error of SQLite.
pub fn figure14(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_figure14",
        "WALDIO figure 14 and table 2: operations per second by journal mode",
        &[
            "mode",
            "insert",
            "of WAL",
            "paper: insert",
            "paper: of WAL",
            "paper: of LS-MVBT",
            "update",
            "delete",
        ],
    );
    let modes = modes(&[]);
    let operations = [Operation::Insert, Operation::Update, Operation::Delete];
    let mut rates = vec![vec![Vec::new(); operations.len()]; modes.len()];
    for _ in 0..effort.rounds.min(3) {
        for ((_, target, _), rates) in modes.iter().zip(&mut rates) {
            for (operation, rates) in operations.iter().zip(rates) {
                rates.push(run(dir, target, *operation, effort.transactions, false)?.per_second());
            }
        }
    }
    let medians: Vec<Vec<f64>> =
        rates.into_iter().map(|rates| rates.into_iter().map(median).collect()).collect();
    let wal = modes.iter().position(|(name, ..)| *name == "WAL").context("WAL is a mode")?;
    for (nth, ((name, _, paper), rates)) in modes.iter().zip(&medians).enumerate() {
        let of = |base: &str| match (paper.parse::<f64>(), base.parse::<f64>()) {
            (Ok(rate), Ok(base)) => format!("{:.1}x", rate / base),
            _ => "-".to_owned(),
        };
        table.row([
            (*name).to_owned(),
            number(rates[0]),
            format!("{:.2}x", rates[0] / medians[wal][0]),
            (*paper).to_owned(),
            of(WAL_IN_PAPER),
            of(LS_MVBT_IN_PAPER),
            number(rates[1]),
            number(rates[2]),
        ]);
        if nth == wal {
            let paper = format!("{:.1}x", LS_MVBT_IN_PAPER.parse::<f64>()? / WAL_IN_PAPER.parse::<f64>()?);
            let cells = [LS_MVBT, "-", "-", LS_MVBT_IN_PAPER, &paper, "1.0x", "-", "-"];
            table.row(cells.map(str::to_owned));
        }
    }
    table.note = format!(
        "1,000 transactions of one 100-byte row each, cold logs, as in the paper; synchronous=FULL. `full`, `fua` and \
         `normal` are the paper's FS, PD and NS. WALDIO rows use layout=embedded, as in the paper. Group Synch \
         acknowledges before a commit is durable (guarantee `ordered`). {} LS-MVBT (Kim et al., FAST 2014) has \
         only the paper's figures: it is another SQLite, whose B-tree keeps versions of rows in the database file \
         instead of a log, and all rows of this table are of one stock SQLite.",
        fua_note(dir)
    );
    Ok(table)
}

/// Measures figures 8 and 15 and table 1: what reaches a loop device with ext4.
///
/// # Errors
/// An error of SQLite.
pub fn figure15(_: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_figure15",
        "WALDIO figures 8 and 15 and table 1: bytes to the device per transaction",
        &["mode", "insert", "update", "delete", "requests per insert", "flushes per insert", "paper: insert"],
    );
    let Some(disk) = LoopDisk::new(512) else {
        table.note = "Not measured: needs root, mkfs.ext4 and loop devices.".to_owned();
        return Ok(table);
    };
    let paper = |name: &str| match name {
        "DELETE" => "80 KB",
        "WAL" => "28 KB",
        "WALDIO full" => "4.6 KB",
        _ => "-",
    };
    let direct = |name, layout, block| {
        (name, waldio(&[("access", "direct"), ("layout", layout), ("device_block", block)]))
    };
    // In these runs the logs of `waldio` have been filled once, so they do not grow. `waldio_bytes` measures logs that
    // grow.
    let mut rows: Vec<(&str, Target, bool)> = modes(&[("access", "direct"), ("device_block", "4096")])
        .into_iter()
        .filter(|(name, ..)| !name.starts_with("waldio") && !name.contains("Group") && !name.contains("fua"))
        .map(|(name, target, _)| (name, target, name.starts_with("WALDIO")))
        .collect();
    rows.insert(4, ("WAL, warm log", Target::Stock, true));
    for (name, target) in [
        direct("waldio, layout=delta, blocks of 4096", "delta", "4096"),
        direct("waldio, layout=delta, blocks of 512", "delta", "512"),
    ] {
        rows.push((name, target, true));
    }
    let transactions = effort.transactions;
    for (name, target, warm) in rows {
        let mut cells = vec![name.to_owned()];
        let mut requests = (0.0, 0.0);
        for operation in [Operation::Insert, Operation::Update, Operation::Delete] {
            let mut session = Session::open(&disk.path(), &target, false, false)?;
            session.fill(if operation == Operation::Insert { 1 } else { transactions })?;
            if target.has_wal() {
                if warm {
                    session.grow_log(transactions + transactions / 2)?;
                }
                session.conn()?.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?;
                // The first transaction of a log's generation is not counted, because it also writes the log's first
                // blocks.
                session.run(Operation::Insert, 1, 1)?;
            }
            disk.settle();
            let before = disk.counts();
            session.run(operation, transactions - 1, 1)?;
            let after = disk.counts();
            let each = |count: u64| count as f64 / f64::from(transactions - 1);
            cells.push(number(each(after.written_bytes - before.written_bytes)));
            if operation == Operation::Insert {
                requests = (each(after.writes - before.writes), each(after.flushes - before.flushes));
            }
        }
        cells.extend([number(requests.0), number(requests.1), paper(name).to_owned()]);
        table.row(cells);
    }
    table.note = "Counted by the kernel on the loop device, ext4 with 4 KiB blocks, without checkpoints. The logs of \
                  Duralite are warm, as that of `WAL, warm log`: they were filled once, and do not grow. What growing \
                  costs, and what is written in the long run, is in the next table."
        .to_owned();
    Ok(table)
}

/// Returns the microseconds per durable write of `bytes` bytes. The writes have ascending offsets.
fn durable_write_us(
    path: &Path,
    bytes: usize,
    count: u32,
    preallocated: bool,
    direct: bool,
    sync: fn(&File) -> std::io::Result<()>,
) -> Result<f64> {
    const O_DIRECT: i32 = 0o40000;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let plain = options.open(path)?;
    if preallocated {
        plain.write_all_at(&vec![0; bytes * count as usize], 0)?;
    }
    plain.sync_all()?;
    let file = if direct {
        OpenOptions::new().write(true).custom_flags(O_DIRECT).open(path)?
    } else {
        plain.try_clone()?
    };
    let mut buffer = AlignedBuf::default();
    buffer.resize(bytes);
    let start = Instant::now();
    for i in 0..count {
        buffer.as_mut_slice().fill(i as u8);
        file.write_all_at(buffer.as_slice(), u64::from(i) * bytes as u64)?;
        sync(&plain)?;
    }
    let elapsed = start.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    std::fs::remove_file(path)?;
    Ok(elapsed)
}

/// Measures figure 3: ways of writing a block, with and without allocation.
///
/// # Errors
/// An error of the file system.
pub fn figure3(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_figure3",
        "WALDIO figure 3: one durable 4 KiB write, microseconds",
        &["way", "allocating", "non-allocating", "non-allocating is cheaper by"],
    );
    type Way = (&'static str, bool, fn(&File) -> std::io::Result<()>);
    let ways: [Way; 4] = [
        ("write + fsync", false, File::sync_all),
        ("write + fdatasync", false, File::sync_data),
        ("direct write + fdatasync", true, File::sync_data),
        ("direct write alone (not durable)", true, |_| Ok(())),
    ];
    for (name, direct, sync) in ways {
        let measure = |preallocated| -> Result<f64> {
            let runs = (0..effort.rounds)
                .map(|_| durable_write_us(&dir.join("write"), 4096, 200, preallocated, direct, sync))
                .collect::<Result<Vec<_>>>()?;
            Ok(median(runs))
        };
        let (allocating, not) = (measure(false)?, measure(true)?);
        table.row([name.to_owned(), number(allocating), number(not), format!("{:.2}x", allocating / not)]);
    }
    table.note =
        "The paper's figure shows which of these writes wake ext4's journal: every durable write that \
         allocates, and every fsync. The difference between the columns is the cost of that."
            .to_owned();
    Ok(table)
}

/// Measures figures 6 and 13: direct writes by size, and the benefit of aligning the log.
///
/// # Errors
/// An error of the file system or of SQLite.
pub fn figure6_13(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "waldio_figure6_13",
        "WALDIO figures 6 and 13: direct writes by size, and alignment of the log",
        &["write", "MB/s, not flushed", "durable writes/s", "of stock WAL, cold", "paper: of WAL"],
    );
    let stock = {
        let runs = (0..effort.rounds)
            .map(
                |_| Ok(run(dir, &Target::Stock, Operation::Insert, effort.transactions, false)?.per_second()),
            )
            .collect::<Result<Vec<_>>>()?;
        median(runs)
    };
    for (name, bytes, paper) in [
        ("512 bytes", 512, "-"),
        ("1 KiB", 1024, "-"),
        ("2 KiB", 2048, "-"),
        ("4 KiB: header embedding", 4096, "2.1x"),
        ("4.5 KiB: sector padding", 4608, "1.0x"),
        ("8 KiB: 4 KiB page padding", 8192, "1.6x"),
        ("16 KiB: 8 KiB page padding", 16384, "2.0x"),
    ] {
        let measure = |sync: fn(&File) -> std::io::Result<()>| -> Result<f64> {
            let runs = (0..effort.rounds)
                .map(|_| durable_write_us(&dir.join("write"), bytes, 200, true, true, sync))
                .collect::<Result<Vec<_>>>()?;
            Ok(median(runs))
        };
        let (plain, durable) = (measure(|_| Ok(()))?, measure(File::sync_data)?);
        table.row([
            name.to_owned(),
            number(bytes as f64 / plain),
            number(1e6 / durable),
            format!("{:.2}x", 1e6 / durable / stock),
            paper.to_owned(),
        ]);
    }
    table.note =
        "Overwrites of a zero-filled file. The rows with a scheme's name show the writes that one insert \
         makes under that scheme, as raw writes; the paper's figures are for whole inserts."
            .to_owned();
    Ok(table)
}

/// Measures the 99th percentile of commit latency. Either the committing connections run the checkpoints, or a
/// background thread does.
///
/// # Errors
/// An error of SQLite.
pub fn latency(dir: &Path, effort: Effort) -> Result<Table> {
    const EVERY: u32 = 60;
    let mut table = Table::new(
        "waldio_latency",
        "waldio: commit latency while the log is checkpointed every 60 frames, microseconds",
        &["checkpoints", "median", "99th percentile", "99.9th percentile"],
    );
    let every = EVERY.to_string();
    let background: [(&'static str, &str); 1] = [("background_checkpoint", every.as_str())];
    for (name, target, own) in
        [("by the committer", waldio(&[]), EVERY), ("in the background", waldio(&background), 1000)]
    {
        let mut percentiles = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..effort.rounds {
            let mut session = Session::open(dir, &target, false, true)?;
            session.conn()?.query_row(&format!("PRAGMA wal_autocheckpoint={own}"), [], |_| Ok(()))?;
            let mut times = session.latencies(effort.transactions * 3)?;
            times.sort_by(f64::total_cmp);
            for (figures, part) in percentiles.iter_mut().zip([0.5, 0.99, 0.999]) {
                figures.extend(percentile(&times, part));
            }
        }
        let cells = percentiles.into_iter().map(|figures| number(median(figures)));
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    table.note =
        "One connection that commits without a pause. A background thread's checkpoint competes with that \
         connection for the disk, but relieves it of the longest commits."
            .to_owned();
    Ok(table)
}
