//! Measures what ordering costs: the parts of figure 5, and the persistency models of section 4.4.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use duralite_medium::{FileNvm, LINE_BYTES, Nvm};

use super::{
    BARRIER_NS, Effort, PER_TRANSACTION, Parameters, PerTransaction, count, fresh_run, median_rate, number,
    parameters,
};
use crate::flush::emulated;
use crate::report::Table;
use crate::workload::{Operation, Target, median};

/// In figure 5, writing a line takes this many nanoseconds.
const LINE_NS: u32 = 500;
/// The size in bytes of an emulated memory. The benchmark uses it to time the memory instructions of
/// transactions without their SQL.
const MEMORY_BYTES: u64 = 32 << 20;

/// Returns the paper's time for flushes, fences and the kernel's mode switches. It depends on the number of
/// inserts per transaction (1 or 32), and on lazy or eager ordering.
fn paper(per: u32, sync: &str, diff: &str) -> &'static str {
    match (per, sync, diff) {
        (1, "lazy", "off") => "19.3",
        (1, "eager", "off") => "19.7",
        (32, "lazy", "off") => "46.5",
        (32, "eager", "off") => "60.7",
        _ => "",
    }
}

/// The memory instructions that the benchmark times for each transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// It stores the bytes.
    Copy,
    /// The transaction stores its bytes, and flushes their lines.
    Flush,
    /// The transaction stores its bytes, and flushes their lines in several parts, each followed by a fence.
    Fence,
}

/// Returns how many microseconds of a transaction the memory instructions take, without the SQL. `of` says
/// how many bytes, lines and fences a transaction has. Each transaction writes to the place after the
/// previous one, as in a log.
fn on_memory(nvm: &FileNvm, of: &PerTransaction, work: Work, transactions: u32) -> f64 {
    let [bytes, lines, fences] = [of.bytes, of.lines, of.fences].map(|count| (count.round() as u64).max(1));
    let bytes = vec![0x5A; bytes as usize];
    let span = (bytes.len() as u64).max(lines * LINE_BYTES).next_multiple_of(LINE_BYTES);
    let parts = if work >= Work::Flush { fences } else { 0 };
    let start = Instant::now();
    for i in 0..u64::from(transactions) {
        let at = i % (MEMORY_BYTES / span) * span;
        nvm.store(at, &bytes);
        for part in 0..parts {
            let (from, to) = (lines * part / fences, lines * (part + 1) / fences);
            nvm.flush(at + from * LINE_BYTES, (to - from) * LINE_BYTES);
            if work == Work::Fence {
                nvm.fence();
            }
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(transactions)
}

/// Returns the microseconds per transaction of inserts.
fn inserts(dir: &Path, params: Parameters, n: u32, per: u32) -> Result<f64> {
    Ok(fresh_run(dir, &Target::Nvwal(params), Operation::Insert, n, per, true)?.micros())
}

/// Measures figure 5: the parts of the time for storing and ordering.
///
/// # Errors
/// An error of SQLite, or of mapping memory.
pub fn figure5(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "figure5_split",
        "NVWAL figure 5: memcpy, cache line flush and memory fence at 500 ns per line (us per transaction)",
        &[
            "inserts per transaction",
            "pages",
            "sync",
            "lines",
            "fences",
            "memcpy",
            "dccmvac: lines x 500 ns",
            "dccmvac: instructions",
            "dmb: instructions",
            "kernel mode switch",
            "dccmvac and dmb, in transactions",
            "paper: dccmvac, dmb and kernel mode switch",
        ],
    );
    let memory = emulated(MEMORY_BYTES)?;
    let n = effort.transactions;
    for (pages, diff) in [("whole", "off"), ("differences", "on")] {
        for per in PER_TRANSACTION {
            for sync in ["lazy", "eager"] {
                let with = |name: &'static str, value: &str| {
                    let mut params = parameters(&[("sync", sync), ("diff", diff)]);
                    params.push((name, value.to_owned()));
                    params
                };
                let counted = count(dir, &with("nvram_write_ns", "0"), Operation::Insert, n, per)?;
                let mut times: [Vec<f64>; 5] = Default::default();
                for _ in 0..effort.rounds {
                    let alone = |work| on_memory(&memory, &counted, work, n);
                    let found = [
                        inserts(dir, with("nvram_write_ns", &LINE_NS.to_string()), n, per)?,
                        // With strict persistency, flushes and fences do nothing.
                        inserts(dir, with("persistency", "strict"), n, per)?,
                        alone(Work::Copy),
                        alone(Work::Flush),
                        alone(Work::Fence),
                    ];
                    times.iter_mut().zip(found).for_each(|(list, time)| list.push(time));
                }
                let [slow, bare, copied, flushed, fenced] = times.map(median);
                table.row([
                    per.to_string(),
                    pages.to_owned(),
                    sync.to_owned(),
                    number(counted.lines),
                    number(counted.fences),
                    number(copied),
                    number(counted.lines * f64::from(LINE_NS) / 1000.0),
                    number(flushed - copied),
                    number(fenced - flushed),
                    "0".to_owned(),
                    number(slow - bare),
                    paper(per, sync, diff).to_owned(),
                ]);
            }
        }
    }
    table.note = format!(
        "Medians of {} rounds. The columns have the names of the paper's figure: `dccmvac` (cache line flush) is \
         clwb here, and `dmb` (memory fence) is sfence. Lines, fences and bytes are counted in transactions. The \
         latency of the lines is their number times {LINE_NS} ns, one after another, as nvram_write_ns means it. \
         The instructions are timed alone, in the same kind of memory, as differences of runs that do what was \
         counted: `memcpy` stores the bytes of a transaction in one piece, the next run also flushes its lines, \
         and the next also fences them. Flushes and fences together should be close to the last column but one: \
         the time of transactions at {LINE_NS} ns, minus their time when flushes and fences do nothing. Flushing \
         needs no system call here; the paper's processor lets only the kernel flush. The paper's text has \
         figures for the sum alone: it calls `memcpy` similar in both, and `dmb` of lazy negligible. They are for \
         whole pages and lines of 32 bytes (table 1), on a memory that works on several lines at once, as 139 \
         lines of {LINE_NS} ns take 19.3 us there. Latencies: nvram_write_ns={LINE_NS}; fences and reads add \
         nothing, as in the paper's section 5.1.",
        effort.rounds
    );
    Ok(table)
}

/// Measures section 4.4: inserts under the three persistency models.
///
/// # Errors
/// An error of SQLite.
pub fn persistency(dir: &Path, effort: Effort) -> Result<Table> {
    const LATENCIES: [u32; 2] = [500, 2000];
    const MODELS: [(&str, &str, &str, &str); 4] = [
        ("x86", "x86", "0", "flushes and fences in the code"),
        ("x86, 16 lines at once", "x86", "16", "flushes and fences in the code"),
        ("epoch", "epoch", "0", "faster than strict: persists of an epoch are concurrent"),
        ("strict", "strict", "0", "slower: every persist is ordered"),
    ];
    let columns: Vec<String> = LATENCIES.iter().map(|ns| format!("{ns} ns")).collect();
    let mut headings = vec!["model", "sync"];
    headings.extend(columns.iter().map(String::as_str));
    headings.push("paper expects");
    let mut table = Table::new(
        "nvwal_persistency",
        "NVWAL section 4.4: inserts/s under persistency models, by NVRAM write latency",
        &headings,
    );
    for (name, model, queue, expected) in MODELS {
        for sync in ["lazy", "eager", "async"] {
            let mut cells = vec![name.to_owned(), sync.to_owned()];
            for latency in LATENCIES {
                let mut params =
                    parameters(&[("persistency", model), ("sync", sync), ("nvram_queue", queue)]);
                params.push(("nvram_write_ns", latency.to_string()));
                params.push(("nvram_fence_ns", BARRIER_NS.to_string()));
                cells.push(number(median_rate(dir, &params, Operation::Insert, effort)?));
            }
            table.row(cells.into_iter().chain([expected.to_owned()]));
        }
    }
    table.note = format!(
        "Medians of {} rounds of {} transactions of one 100-byte row, differences. The paper has no measurements \
         of this, because no hardware has the models. It expects that strict persistency, which needs neither \
         flushes nor barriers, orders more than a commit needs, and that epochs are faster. What the emulation \
         adds: x86: the latency at the head of the column for each line flushed, one after another or 16 at once, \
         and {BARRIER_NS} ns for each fence. Epoch: one line's latency for all lines between two barriers, and \
         {BARRIER_NS} ns for each barrier. Strict: one line's latency for each line that a store touches, as \
         often as it is stored to, and nothing for fences. Reads add nothing. `sync` decides where the barriers \
         are; under strict persistency there are none, so there it changes little.",
        effort.rounds, effort.transactions
    );
    Ok(table)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_parts_of_a_transaction_are_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let effort = Effort { rounds: 1, transactions: 4, time: Duration::ZERO, processes: false };
        let table = figure5(dir.path(), effort).unwrap();
        assert_eq!(table.rows.len(), 2 * PER_TRANSACTION.len() * 2);
        // Whole pages fill more lines than differences do, and an eager commit has at least as many fences as
        // a lazy one.
        let number = |row: usize, column: usize| table.rows[row][column].parse::<f64>().unwrap();
        let (lines, fences) = (3, 4);
        assert!(number(0, lines) > number(2 * PER_TRANSACTION.len(), lines), "{:?}", table.rows);
        assert!(number(1, fences) > number(0, fences), "{:?}", table.rows);
        table.write_csv(dir.path()).unwrap();
        assert!(dir.path().join("figure5_split.svg").exists());
    }
}
