//! Measures what a workload costs under a scheme. The model uses these costs as inputs.

use std::collections::HashMap;

use anyhow::Result;
use duralite_bench::workload::median;
use duralite_store::Scheme;
use duralite_store::format::BATCH_HEADER_BYTES;
use rustix::time::ClockId;

use super::pieces::{LogPieces, Parts, cpu_ns, log_pieces, seal};
use crate::measure::plan::Plan;
use crate::model::schemes::{LogCosts, Model, Op, Script, is_file};
use crate::model::stations::ns;
use crate::nv::NvDb;
use crate::trace::{Kind, Trace, Traced, keys, trace};
use crate::workload::{Run, Workload, run};

/// The size in bytes of a page, and of a block of a log file.
const PAGE_BYTES: u64 = 8192;
/// The size of a cache line in bytes. The benchmark may add a delay for each line that is written.
const LINE_BYTES: f64 = 64.0;
/// How many threads are recorded, and how many transactions of each thread.
const TRACED: (u64, usize) = (16, 200);
/// How often a thread accesses the shared counter of log objects when it makes one object: to read the next number, to
/// take it, and to publish it. Each access needs the counter's cache line.
pub(super) const NUMBER_USES: f64 = 3.0;

/// The costs of a run per committed transaction: times in nanoseconds, and counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) per_second: f64,
    /// The processor time of the threads that run transactions (`cpu`), and of the background threads (`background`).
    pub(super) cpu: f64,
    pub(super) background: f64,
    pub(super) objects: f64,
    pub(super) bytes: f64,
    pub(super) pages: f64,
    pub(super) lock_waits: f64,
    /// The number of writes to the log's medium.
    pub(super) writes: f64,
    /// The number of cores that other processes used during the run.
    pub(super) foreign: f64,
}

/// Returns the processor time of all processes together, in seconds.
fn machine_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // Counts everything except idle time and the time spent waiting for a disk. Leaves guest time out, because other
    // fields already contain it.
    ticks
        .iter()
        .take(8)
        .enumerate()
        .filter(|(at, _)| !matches!(at, 3 | 4))
        .map(|(_, ticks)| ticks)
        .sum::<f64>()
        / rustix::param::clock_ticks_per_second() as f64
}

/// Runs the workload and measures its costs.
pub(super) fn cost(db: &NvDb, workload: &dyn Workload, threads: u64, plan: &Plan) -> Result<Cost> {
    let (begin, machine) = (db.store.metrics(), machine_seconds());
    let (own, main) = (cpu_ns(ClockId::ProcessCPUTime), cpu_ns(ClockId::ThreadCPUTime));
    let ran: Run = run(db, workload, threads, plan.time / 4)?;
    let own = cpu_ns(ClockId::ProcessCPUTime) - own;
    let main = cpu_ns(ClockId::ThreadCPUTime) - main;
    let foreign = machine_seconds() - machine - own / 1e9;
    let end = db.store.metrics();
    let commits = ran.commits.max(1) as f64;
    let per = |end: u64, begin: u64| (end - begin) as f64 / commits;
    Ok(Cost {
        per_second: ran.per_second(),
        cpu: ran.cpu_ns / commits,
        background: (own - main - ran.cpu_ns).max(0.0) / commits,
        objects: per(end.log_objects, begin.log_objects),
        bytes: per(end.log_bytes, begin.log_bytes),
        pages: per(end.cache_hits, begin.cache_hits),
        lock_waits: per(end.lock_waits, begin.lock_waits),
        writes: per(end.log_writes, begin.log_writes),
        foreign: (foreign / ran.seconds).max(0.0),
    })
}

/// Returns the medians of several runs. Only for `cpu`, returns the minimum, because every disturbance makes it larger.
pub(super) fn middle(costs: &[Cost]) -> Cost {
    let all = |field: fn(&Cost) -> f64| costs.iter().map(field).collect::<Vec<_>>();
    let of = |field: fn(&Cost) -> f64| median(all(field));
    let least = |field: fn(&Cost) -> f64| all(field).into_iter().fold(f64::INFINITY, f64::min);
    Cost {
        per_second: of(|cost| cost.per_second),
        cpu: least(|cost| cost.cpu),
        background: of(|cost| cost.background),
        objects: of(|cost| cost.objects),
        bytes: of(|cost| cost.bytes),
        pages: of(|cost| cost.pages),
        lock_waits: of(|cost| cost.lock_waits),
        writes: of(|cost| cost.writes),
        foreign: of(|cost| cost.foreign),
    }
}

/// A row: its table and its key.
type Key = (usize, Vec<u8>);

/// The indexes by which the model identifies rows and pages.
#[derive(Default)]
struct Places {
    /// The index of each row, and the index of the row's page. A row that did not exist before the run has no row
    /// index.
    of: HashMap<Key, (Option<usize>, usize)>,
    rows: usize,
    pages: usize,
}

/// The recorded transactions of a workload.
pub(super) struct Recorded {
    traces: Vec<Vec<Trace>>,
    places: Places,
    /// The measured costs of the scheme's log: how long a commit waits, and how much longer a change takes than a read.
    pieces: LogPieces,
}

/// Gives an index to each row and page that the recorded operations use. `rows_of_a_page` successive keys of a table
/// share a page. If a table is empty at first, the new rows of each thread are on one page of that thread.
fn places(tables: &[Vec<Vec<u8>>], rows_of_a_page: u64, traces: &[Vec<Trace>]) -> Places {
    let (mut places, mut pages) = (Places::default(), HashMap::new());
    for (thread, traces) in traces.iter().enumerate() {
        for op in traces.iter().flat_map(|trace| &trace.ops).filter(|op| op.kind != Kind::Scan) {
            let found = tables[op.table].binary_search(&op.key);
            let page = match found {
                Ok(at) | Err(at) if !tables[op.table].is_empty() => (op.table, at as u64 / rows_of_a_page),
                _ => (op.table, 1 << 40 | thread as u64),
            };
            let count = pages.len();
            let page = *pages.entry(page).or_insert(count);
            let rows = &mut places.rows;
            places.of.entry((op.table, op.key.clone())).or_insert_with(|| {
                *rows += usize::from(found.is_ok());
                (found.is_ok().then(|| *rows - 1), page)
            });
        }
    }
    places.pages = pages.len();
    places
}

impl Recorded {
    pub(super) fn new(db: &NvDb, workload: &dyn Workload) -> Result<Self> {
        let (tables, bytes) = keys(db, workload.schema())?;
        let count: usize = tables.iter().map(Vec::len).sum();
        let rows_of_a_page = (PAGE_BYTES * count as u64 * 3 / 4 / bytes.max(1)).max(1);
        let pieces = log_pieces(db, Scheme::FlushOnCommit)?;
        let traces = trace(db, workload, TRACED.0, TRACED.1)?;
        let places = places(&tables, rows_of_a_page, &traces);
        Ok(Self { traces, places, pieces })
    }

    /// Returns the transactions of each thread in the form that the model runs. `change` is the time for which each
    /// change latches its page. `mean` is the average time of a transaction.
    fn scripts(&self, change: f64, mean: f64, clock: f64) -> Vec<Vec<Script>> {
        let typical = self.typical(clock);
        // An operation that took far longer than usual was disturbed by something else. So its time is limited to three
        // times the usual one.
        let of = |op: &Traced| {
            self.rest(op.kind, (op.ns - clock).min(typical[&(op.table, op.kind as usize)] * 3.0))
        };
        let changes = |trace: &Trace| trace.ops.iter().filter(|op| op.kind == Kind::Change).count() as f64;
        let work = |trace: &Trace| trace.ops.iter().map(of).sum::<f64>() + self.end(trace);
        // The simulated threads run the recorded transactions, but not equally often. Scale the times so that the
        // transactions take the measured time on average.
        let all = self.traces.iter().flatten();
        let count = all.clone().count() as f64;
        let latched: f64 = all.clone().map(|trace| changes(trace) * change).sum();
        let scale = ((mean * count - latched) / all.map(work).sum::<f64>()).max(0.1);
        let op = |op: &Traced| {
            let place = self.places.of.get(&(op.table, op.key.clone()));
            let (row, page) = place.copied().unwrap_or_default();
            Op {
                row: row.filter(|_| op.kind != Kind::Scan).map(|row| (row, op.kind != Kind::Read)),
                work: ns(of(op) * scale),
                change: (op.kind == Kind::Change).then_some((page, ns(change))),
            }
        };
        let script = |trace: &Trace| Script {
            ops: trace.ops.iter().map(op).collect(),
            end: ns(self.end(trace) * scale),
        };
        self.traces.iter().map(|traces| traces.iter().map(script).collect()).collect()
    }

    /// Returns the time of an operation, without the part in which it changes its page.
    fn rest(&self, kind: Kind, ns: f64) -> f64 {
        if kind == Kind::Change { (ns - self.pieces.change).max(ns / 4.0) } else { ns }
    }

    /// Returns the part of a transaction's time that is neither in its operations nor in its wait for durability. The
    /// model adds this time to the end of the transaction. The result is at most 5 us, because a longer time shows that
    /// something disturbed the transaction.
    fn end(&self, trace: &Trace) -> f64 {
        let ops: f64 = trace.ops.iter().map(|op| op.ns).sum();
        let is_change = trace.ops.iter().any(|op| op.kind == Kind::Change);
        let force = if is_change { self.pieces.force[0] } else { 0.0 };
        (trace.ns - ops - force).clamp(0.0, 5000.0)
    }

    /// Returns the median time of each kind of operation on each table.
    fn typical(&self, clock: f64) -> HashMap<(usize, usize), f64> {
        let mut times: HashMap<(usize, usize), Vec<f64>> = HashMap::new();
        for op in self.traces.iter().flatten().flat_map(|trace| &trace.ops) {
            times.entry((op.table, op.kind as usize)).or_default().push(op.ns - clock);
        }
        times.into_iter().map(|(of, times)| (of, median(&times))).collect()
    }

    /// Returns the share of transactions that change any row.
    pub(super) fn changing(&self) -> f64 {
        let all = self.traces.iter().flatten();
        let changes = |trace: &&Trace| trace.ops.iter().any(|op| op.kind == Kind::Change);
        let count: usize = self.traces.iter().map(Vec::len).sum();
        all.filter(changes).count() as f64 / count.max(1) as f64
    }
}

/// The delays that simulate a log file slower than memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Added {
    /// The delay for each cache line, and for each call, in nanoseconds.
    pub(super) line_ns: u32,
    pub(super) call_ns: u32,
}

/// All inputs that the model needs for one scheme.
pub(super) struct Inputs<'a> {
    pub(super) scheme: Scheme,
    pub(super) added: Added,
    pub(super) alone: Cost,
    pub(super) pieces: LogPieces,
    pub(super) recorded: &'a Recorded,
    pub(super) parts: &'a Parts,
    pub(super) block_bytes: f64,
}

impl Inputs<'_> {
    fn blocks(&self, bytes: f64) -> f64 {
        (bytes / self.block_bytes).ceil() * self.block_bytes
    }

    /// Returns the average size of an object in bytes.
    pub(super) fn object_bytes(&self) -> f64 {
        self.alone.bytes / self.alone.objects.max(0.01)
    }

    /// Returns the costs of the scheme's log.
    pub(super) fn costs(&self) -> LogCosts {
        let (few, many) = (self.pieces.force[0], self.pieces.force[1]);
        let bytes = self.object_bytes();
        let mut costs = LogCosts {
            number: ns(NUMBER_USES * self.parts.transfer),
            look: ns(self.parts.mutex),
            block_bytes: self.block_bytes,
            header_bytes: BATCH_HEADER_BYTES as f64,
            object_bytes: bytes,
            background: ns(self.alone.background),
            ..LogCosts::default()
        };
        if is_file(self.scheme) {
            let [small, large] =
                self.pieces.bytes.map(|bytes| self.blocks(bytes + BATCH_HEADER_BYTES as f64));
            let added = |bytes: f64| bytes / LINE_BYTES * f64::from(self.added.line_ns);
            let more = (many - few - added(large - small)).max(0.0);
            costs.write_byte = more / (large - small).max(1.0);
            costs.added_byte = f64::from(self.added.line_ns) / LINE_BYTES;
            costs.added_call = ns(f64::from(self.added.call_ns));
            let fixed = few - added(small) - f64::from(self.added.call_ns) - costs.write_byte * small;
            costs.write = ns(fixed.max(0.0));
            costs.central = ns(seal(bytes) + 3.0 * self.parts.mutex);
        } else if self.scheme != Scheme::FlushOnInsert {
            let [first, all] = self.pieces.objects;
            let each = ((many - few) / (all - first)).max(0.0);
            // Scales the measured cost to the size of this workload's objects. The number of cache lines is
            // proportional to that size.
            let measured = self.pieces.bytes[1] / self.pieces.objects[1];
            costs.force_object = ns(each * bytes / measured);
            costs.force = ns((few - each * first).max(0.0));
        }
        costs
    }

    /// Returns how long a transaction waits on average until its log objects are durable, in nanoseconds, if no other
    /// transaction runs. The average includes transactions that change nothing, and so do not wait.
    fn force_alone(&self, costs: &LogCosts) -> f64 {
        let changing = self.recorded.changing().max(0.01);
        let objects = self.alone.objects / changing;
        let bytes = self.blocks(objects * costs.object_bytes + BATCH_HEADER_BYTES as f64);
        let file = costs.write as f64
            + costs.added_call as f64
            + bytes * (costs.write_byte + costs.added_byte) * 1000.0;
        let memory = costs.force as f64 + costs.force_object as f64 * objects;
        changing * if is_file(self.scheme) { file } else { memory } / 1000.0
    }

    pub(super) fn model(&self) -> Model {
        let costs = self.costs();
        let rest = self.alone.cpu - self.force_alone(&costs);
        Model {
            scheme: self.scheme,
            scripts: self.recorded.scripts(self.pieces.change, rest, self.parts.clock),
            rows: self.recorded.places.rows,
            pages: self.recorded.places.pages,
            costs,
        }
    }
}
