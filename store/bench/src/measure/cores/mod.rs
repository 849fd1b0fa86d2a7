//! Models how fast the schemes would be on more cores than this machine has. The tables show what was measured, and
//! what the model derives from that. For the cores that this machine has, they compare the model with measurements.

mod inputs;
mod pieces;
mod sheet;
mod tables;

use anyhow::{Context, Result};
use duralite_bench::report::Table;
use duralite_store::{Media as _, Scheme, WhichLog};

use self::inputs::{Added, Cost, Inputs, Recorded, cost, middle};
use self::pieces::{Parts, log_pieces, parts};
use self::sheet::{COMMITS, CORES, Contention, Row, Sheet};
use super::plan::Plan;
use super::schemes::{Dirs, SCHEMES};
use crate::model::schemes::{Model, Outcome, is_file, run as simulate};
use crate::model::stations::{Machine, ns};
use crate::nv::{NvDb, Setup};
use crate::workload::{Workload, run};

/// The numbers of threads that are measured as well as modelled.
const CHECKED: [u64; 3] = [1, 2, 16];
/// The delays that the benchmark adds, in nanoseconds: per cache line, and per call that writes a log file. The flag
/// says whether this row is also measured with more than one thread.
const ADDED: [(Added, bool); 4] = [
    (Added { line_ns: 0, call_ns: 0 }, true),
    (Added { line_ns: 60, call_ns: 0 }, false),
    (Added { line_ns: 420, call_ns: 0 }, true),
    (Added { line_ns: 0, call_ns: 5000 }, false),
];
/// `SLICE_NS` is the time for which Linux lets a thread run while other threads are ready. `SPIN_NS` is the time for
/// which a thread spins for a mutex. Both are in nanoseconds.
const SLICE_NS: f64 = 3e6;
const SPIN_NS: f64 = 1500.0;
/// The largest number of rounds. There are many rows, so more rounds would take too long.
const ROUNDS: usize = 3;

/// Makes all four tables.
pub(crate) fn cores(plan: &Plan) -> Result<Vec<Table>> {
    let parts = parts();
    let workloads: [&dyn Workload; 3] = [&plan.tpcc(), &plan.tpcb(), &plan.tatp()];
    let sheet = |workload: &&dyn Workload| {
        sheet(plan, *workload, &parts).with_context(|| format!("{} on more cores", workload.name()))
    };
    let sheets = workloads.iter().map(sheet).collect::<Result<Vec<_>>>()?;
    Ok(vec![
        tables::inputs(&sheets, &parts),
        tables::checked(&sheets),
        tables::modelled(&sheets),
        tables::ratios(&sheets),
    ])
}

fn sheet(plan: &Plan, workload: &dyn Workload, parts: &Parts) -> Result<Sheet> {
    let dirs = Dirs::new(plan)?;
    let make = |name: &str, scheme| {
        let setup = plan.sized(Setup::fresh(dirs.pages.path(), dirs.logs.path(), name, scheme)?);
        workload.load(&setup.open(workload.schema())?)?;
        Ok::<_, anyhow::Error>(setup)
    };
    let setups = SCHEMES.map(|scheme| make(scheme.as_str(), scheme));
    let setups = setups.into_iter().collect::<Result<Vec<_>>>()?;
    let twin = make("twin", Scheme::FlushOnCommit)?.open(workload.schema())?;
    let of_commit = SCHEMES.iter().position(|scheme| *scheme == Scheme::FlushOnCommit).unwrap_or(0);
    let db = setups[of_commit].open(workload.schema())?;
    let recorded = Recorded::new(&db, workload)?;
    let contention = contention(plan, workload, [&db, &twin], parts)?;
    drop((db, twin));
    let bench = Bench { plan, workload, recorded, parts, contention };
    let mut cleaning = 0.0;
    let mut rows = Vec::new();
    for (added, is_checked) in ADDED {
        for setup in &setups {
            // A delay per call affects only a log file, so skip the row for schemes without a log file.
            if added.call_ns == 0 || is_file(setup.options.scheme) {
                rows.push(bench.row(setup, added, is_checked, &mut cleaning)?);
            }
        }
    }
    Ok(Sheet { workload: workload.name(), contention, changing: bench.recorded.changing(), rows })
}

/// Measures how much two threads slow each other down: once if each thread has a store of its own, and once if both use
/// the same store.
fn contention(plan: &Plan, workload: &dyn Workload, stores: [&NvDb; 2], parts: &Parts) -> Result<Contention> {
    let (mut alone, mut beside, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds.min(ROUNDS) * 2 {
        alone.push(cost(stores[0], workload, 1, plan)?);
        both.push(cost(stores[0], workload, 2, plan)?);
        let twins = std::thread::scope(|scope| {
            let twin = stores.map(|store| scope.spawn(move || run(store, workload, 1, plan.time / 4)));
            twin.map(|twin| twin.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        });
        for twin in twins {
            let twin = twin?;
            beside.push(twin.cpu_ns / twin.commits.max(1) as f64);
        }
    }
    let (alone, both) = (middle(&alone), middle(&both));
    let beside = (beside.into_iter().fold(f64::INFINITY, f64::min) / alone.cpu).max(1.0);
    let more = (both.cpu / alone.cpu - beside).max(0.0);
    // With two cores, half of the accesses find the cache line at the other core, on average.
    let uses = alone.objects * inputs::NUMBER_USES;
    let lines = uses * parts.transfer / 2.0 / alone.cpu;
    Ok(Contention { beside, sharing: (more - lines).max(0.0), lines: (more / lines.max(1e-9)).min(1.0) })
}

/// The inputs that all rows of a workload use.
struct Bench<'a> {
    plan: &'a Plan,
    workload: &'a dyn Workload,
    recorded: Recorded,
    parts: &'a Parts,
    contention: Contention,
}

impl Bench<'_> {
    /// Measures and models one row. `cleaning` is the cost of page cleaning. A scheme without a log daemon does no
    /// other background work, so its measured background work is stored there. A scheme with a daemon uses the stored
    /// value.
    fn row(&self, setup: &Setup, added: Added, is_checked: bool, cleaning: &mut f64) -> Result<Row> {
        let scheme = setup.options.scheme;
        let mut setup = setup.clone();
        (setup.rig.line_ns, setup.rig.call_ns) = (added.line_ns, added.call_ns);
        let block_bytes = f64::from(setup.rig.block_log(WhichLog::Existing(0))?.block_bytes());
        let db = setup.open(self.workload.schema())?;
        let pieces = log_pieces(&db, scheme)?;
        let threads: &[u64] = if is_checked { &CHECKED } else { &CHECKED[..1] };
        let mut costs = vec![Vec::new(); threads.len()];
        for _ in 0..self.plan.rounds.min(ROUNDS) {
            for (threads, costs) in threads.iter().zip(&mut costs) {
                costs.push(cost(&db, self.workload, *threads, self.plan)?);
            }
        }
        drop(db);
        let measured: Vec<Cost> = costs.iter().map(|costs| middle(costs)).collect();
        let alone = measured[0];
        let (recorded, parts) = (&self.recorded, self.parts);
        let inputs = Inputs { scheme, added, alone, pieces, recorded, parts, block_bytes };
        let mut model = inputs.model();
        match scheme {
            // The model simulates the daemon of these schemes separately, so this counts only page cleaning.
            Scheme::FlushOnCommit | Scheme::Distributed => model.costs.background = ns(*cleaning),
            _ => *cleaning = alone.background,
        }
        model.costs.number = (model.costs.number as f64 * self.contention.lines) as u64;
        let modelled = CORES.map(|cores| self.simulate(&model, cores, cores.max(16))).into();
        let check = |(threads, cost)| (threads, cost, self.simulate(&model, 2, threads as usize));
        let checked = threads.iter().copied().zip(measured).map(check).collect();
        Ok(Row { scheme, added, alone, pieces, model, checked, modelled })
    }

    fn simulate(&self, model: &Model, cores: usize, threads: usize) -> Outcome {
        let machine = Machine {
            cores,
            slice: ns(SLICE_NS),
            switch: ns(self.parts.switch),
            idle_wake: ns(self.parts.idle_wake),
            spin: ns(SPIN_NS),
            beside: self.contention.beside,
            sharing: self.contention.sharing,
        };
        simulate(model, machine, threads, COMMITS)
    }
}
