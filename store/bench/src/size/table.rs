//! The table of results. It measures each of its rows with every store. The stores take turns.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use duralite_bench::report::{Table, number};
use duralite_bench::workload::median;

use super::case::{Case, Kind};
use super::child::{Found, STORE, Task};
use super::probe::{Disk, probe};
use super::{SHARE_BYTES, Sizes, group};
use crate::measure::plan::{Plan, times};
use crate::peers::{PEERS, title};

const COLUMNS: [&str; 16] = [
    "row",
    "store",
    "per second",
    "lowest - highest",
    "store / it",
    "p99 us",
    "p99.9 us",
    "written / user byte",
    "read bytes each",
    "byte bound",
    "read bound",
    "of the bound",
    "space / data",
    "memory MiB",
    "resident MiB",
    "failed",
];

/// The longest time for a turn that scans, in seconds.
const LONGEST_SCANNING: f64 = 5.0;

/// The results of one store in a row, turn by turn.
#[derive(Debug, Default)]
struct Score {
    turns: Vec<Found>,
    failure: Option<String>,
}

impl Score {
    fn values(&self, name: &str) -> Vec<f64> {
        self.turns.iter().filter_map(|found| found.get(name).copied()).collect()
    }

    /// Returns the median over the turns, or 0 if nothing was measured.
    fn middle(&self, name: &str) -> f64 {
        let values = self.values(name);
        if values.is_empty() { 0.0 } else { median(values) }
    }

    fn sum(&self, name: &str) -> f64 {
        self.values(name).iter().sum()
    }
}

fn stores(sizes: &Sizes) -> Result<Vec<String>> {
    // Turso keeps its log in memory, so it takes part only in the other tables.
    let built = PEERS.iter().filter(|(name, is_built)| *is_built && *name != "turso");
    let all: Vec<String> =
        std::iter::once(STORE).chain(built.map(|(name, _)| *name)).map(str::to_owned).collect();
    if let Some(unknown) = sizes.stores.iter().find(|name| !all.contains(name)) {
        bail!("there is no store {unknown}; there are {}", all.join(", "));
    }
    Ok(if sizes.stores.is_empty() { all } else { sizes.stores.clone() })
}

fn chosen(sizes: &Sizes) -> Result<Vec<Case>> {
    let found: Vec<Case> = match (sizes.is_all, sizes.rows.is_empty()) {
        (true, _) => Case::all(),
        (false, true) => Case::usual(),
        (false, false) => {
            let all = Case::all();
            let is_whole = |part: &str| all.iter().any(|case| case.name() == part);
            let (whole, parts): (Vec<&String>, Vec<&String>) =
                sizes.rows.iter().partition(|part| is_whole(part));
            let is_wanted = |case: &&Case| {
                let name = case.name();
                whole.contains(&&name) || parts.iter().any(|part| name.contains(part.as_str()))
            };
            all.iter().filter(is_wanted).copied().collect()
        }
    };
    if found.is_empty() {
        bail!("no row has one of {} in its name", sizes.rows.join(", "));
    }
    Ok(found)
}

/// A store's directory with data, and the result of loading it. The data is loaded only once, for all rows of the table
/// that use it.
struct Loaded {
    dir: tempfile::TempDir,
    load: Result<Found>,
}

struct Rig<'p> {
    plan: &'p Plan,
    sizes: &'p Sizes,
    has_groups: bool,
    loaded: BTreeMap<String, Loaded>,
}

impl Rig<'_> {
    fn task(&self, store: &str, case: Case, dir: &Path, is_load: bool) -> Task {
        let Sizes { cache_bytes, seconds, turns, .. } = *self.sizes;
        let turn = seconds / f64::from(turns);
        // Many scans would tell no more than a few, so limit the time.
        let seconds = if case.kind == Kind::Scan { turn.min(LONGEST_SCANNING) } else { turn };
        Task { store: store.to_owned(), dir: dir.to_owned(), case, is_load, cache_bytes, seconds }
    }

    fn load(&self, store: &str, case: Case) -> Result<Loaded> {
        let dir = tempfile::tempdir_in(&self.plan.disk)?;
        let load = self.task(store, case, dir.path(), true).run(self.has_groups);
        eprintln!("  {store}: {} loaded", case.data());
        Ok(Loaded { dir, load })
    }

    /// Measures one row with all stores.
    fn row(&mut self, case: Case, stores: &[String]) -> Result<BTreeMap<String, Score>> {
        for store in stores {
            if !self.loaded.contains_key(store) {
                self.loaded.insert(store.clone(), self.load(store, case)?);
            }
        }
        let mut scores: BTreeMap<String, Score> = BTreeMap::new();
        for turn in 0..self.sizes.turns {
            for store in stores {
                let score = scores.entry(store.clone()).or_default();
                if score.failure.is_some() {
                    continue;
                }
                let found = if case.is_load() {
                    // The data was loaded once before the turns, because other rows of the table use it. That load
                    // serves as the first turn. Each later turn loads the data again, into another directory.
                    if turn > 0 { self.load(store, case)?.load } else { self.loaded_again(store)? }
                } else {
                    let loaded = self.loaded.get(store).context("nothing is loaded")?;
                    match &loaded.load {
                        Ok(_) => self.task(store, case, loaded.dir.path(), false).run(self.has_groups),
                        Err(error) => Err(anyhow::anyhow!("loading: {error:#}")),
                    }
                };
                match found {
                    Ok(found) => score.turns.push(found),
                    Err(error) => score.failure = Some(format!("{error:#}")),
                }
            }
        }
        Ok(scores)
    }

    fn loaded_again(&self, store: &str) -> Result<Result<Found>> {
        let loaded = self.loaded.get(store).context("nothing is loaded")?;
        Ok(match &loaded.load {
            Ok(found) => Ok(found.clone()),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        })
    }
}

/// Converts what was measured into rates per second, as the kind of row requires.
fn finish(case: Case, cache_bytes: u64, score: &mut Score) {
    for found in &mut score.turns {
        let rows = case.data_bytes(cache_bytes) as f64 / (case.row_bytes + 8) as f64;
        match case.kind {
            Kind::Load | Kind::LoadByTransactions => {
                found.insert("commits".to_owned(), rows);
                found.insert("per_second".to_owned(), rows / found["seconds"]);
            }
            Kind::Scan => {
                let scans = found["commits"];
                found.insert("per_second".to_owned(), found["per_second"] * rows);
                found.insert("commits".to_owned(), scans * rows);
            }
            _ => {}
        }
    }
}

fn cells(case: Case, sizes: &Sizes, disk: Disk, store: &str, score: &Score, ours: f64) -> Vec<String> {
    let name = if store == STORE { "Duralite's store" } else { title(store) };
    let mut cells = vec![case.name(), name.to_owned()];
    if let Some(failure) = &score.failure {
        cells.extend((0..13).map(|_| "-".to_owned()));
        cells.push(failure.clone());
        return cells;
    }
    let (rate, commits) = (score.middle("per_second"), score.sum("commits").max(1.0));
    let rates = score.values("per_second");
    let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let (written, read) = (score.sum("written_bytes") / commits, score.sum("read_bytes") / commits);
    // Computes the rate that the disk alone would allow, if it writes this many bytes sequentially and reads this many
    // pages at random.
    let bound = |of: f64, by: f64| if by > 0.0 { of / by } else { f64::INFINITY };
    let byte_bound = bound(disk.write_bytes, written);
    let page = if case.kind == Kind::Scan { f64::INFINITY } else { 8192.0 };
    let read_bound = bound(disk.reads(case.threads) * page, read);
    let both = 1.0 / (1.0 / byte_bound + 1.0 / read_bound);
    let known = |value: f64| if value.is_finite() { number(value) } else { "-".to_owned() };
    let data = case.data_bytes(sizes.cache_bytes) as f64;
    cells.extend([
        number(rate),
        format!("{} - {}", number(lowest), number(highest)),
        times(ours, rate),
        number(score.middle("p99_us")),
        number(score.middle("p999_us")),
        case.user_bytes().map_or("-".to_owned(), |bytes| number(written / bytes)),
        number(read),
        known(byte_bound),
        known(read_bound),
        if both.is_finite() { format!("{:.2}x", rate / both) } else { "-".to_owned() },
        format!("{:.2}x", score.middle("space_bytes") / data),
        number(score.middle("group_bytes") / f64::from(1 << 20)),
        number(score.middle("resident_bytes") / f64::from(1 << 20)),
        String::new(),
    ]);
    cells
}

/// Measures the chosen rows.
pub(crate) fn measure(plan: &Plan) -> Result<Table> {
    let sizes = &plan.sizes;
    let (stores, cases) = (stores(sizes)?, chosen(sizes)?);
    let why_not = group::why_not();
    let disk = probe(&plan.disk)?;
    let mut table = Table::new("store_sizes", "Store: data of one, five and ten times the cache", &COLUMNS);
    let mut rig = Rig { plan, sizes, has_groups: why_not.is_none(), loaded: BTreeMap::new() };
    let mut data = String::new();
    for case in cases {
        if case.data() != data {
            // There is disk space for only one set of data at a time.
            rig.loaded.clear();
            data = case.data();
        }
        let mut scores = rig.row(case, &stores)?;
        scores.values_mut().for_each(|score| finish(case, sizes.cache_bytes, score));
        let ours = scores.get(STORE).map_or(0.0, |score| score.middle("per_second"));
        for store in &stores {
            let cells = cells(case, sizes, disk, store, &scores[store], ours);
            eprintln!("  {}", cells[..6].join("  "));
            table.row(cells);
        }
    }
    table.note = note(sizes, disk, why_not);
    Ok(table)
}

fn note(sizes: &Sizes, disk: Disk, why_not: Option<String>) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let held = match why_not {
        None => format!(
            "each in a process and a control group of its own, whose memory is the cache and {} MiB more, including the system's cache of the store's files",
            mib(SHARE_BYTES)
        ),
        Some(why) => format!(
            "each in a process of its own; there are no control groups here ({why}), so the system's cache of the store's files was emptied before each turn, but was not limited during the turn"
        ),
    };
    format!(
        "Cache {} MiB, {held}. {} s for a row and a store, in {} turns. Numbers are medians; bytes are totals of all turns. `1x` means data of four fifths of the cache, so that everything fits. Keys have 8 bytes. They are loaded in ascending order, in transactions of a thousand rows; only Duralite's store uses `Store::load` in `load`. A load ends when the store is closed. `scan` counts the rows of complete scans, for at most 5 s per turn; `mixed` is YCSB-B beside one thread that scans all rows again and again. TPC-B and TPC-C have rows of the specified sizes. All commits are durable: SQLite `synchronous=FULL` (its cache divided among its connections), redb `Durability::Immediate`, fjall `PersistMode::SyncData`, RocksDB with synced writes, LMDB by default; RocksDB and fjall have a quarter of the fixed share for what waits to be written. Bytes written and read are what the device did for the process until the store was closed, as the kernel counts. The disk alone: {} random pages of 8 KiB per second by one thread, {} by 16 threads, and {} MB/s of sequential writes. The bounds are the rates that this would allow for the bytes that were moved. Both together give `the bound`, which ignores the time that the processors need. Rows of YCSB compress well, and RocksDB compresses. When the store is loaded by transactions, it writes about as many bytes as the rows have for the log, as many zeros when the file grows, and twice as many for the pages (the double write). The rest is what log objects contain besides the rows. Stores that append or copy on write have less of that. LMDB reads from its mapped file without a copy. {}",
        mib(sizes.cache_bytes),
        number(sizes.seconds),
        sizes.turns,
        number(disk.reads_of_one),
        number(disk.reads_of_16),
        number(disk.write_bytes / 1e6),
        stamp(),
    )
}

/// Returns the commit that was measured, and the date.
fn stamp() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|text| !text.is_empty())
    };
    let commit = said("git", &["describe", "--always", "--dirty"]).unwrap_or_else(|| "unknown".to_owned());
    let date = said("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default();
    format!("Commit {commit}, {date}.")
}
