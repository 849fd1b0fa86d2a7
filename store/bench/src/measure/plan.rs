//! Holds the parameters of the measurements, and runs several stores in turns.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use duralite_bench::workload::median;

use crate::kv::Db;
use crate::nv::Setup;
use crate::size::Sizes;
use crate::tatp::Tatp;
use crate::tpcb::TpcB;
use crate::tpcc::TpcC;
use crate::workload::{Run, Workload, run};

/// The plan of the measurements: where to measure, for how long, and how often.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// A directory on the disk that is measured.
    pub(crate) disk: PathBuf,
    /// A directory in memory. A log in this directory stands in for a log in NVRAM.
    pub(crate) memory: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    /// The number of threads in those tables that use only one number.
    pub(crate) threads: u64,
    /// Whether to run every measurement of the report's tables, with databases of full size.
    pub(crate) is_full: bool,
    /// The parameters of the measurements whose data is larger than the cache.
    pub(crate) sizes: Sizes,
}

impl Plan {
    pub(crate) fn tpcb(&self) -> TpcB {
        TpcB { branches: if self.is_full { 1000 } else { 100 }, accounts_of_a_branch: 1000 }
    }

    /// Returns a setup like this one, with a cache and a log that suit the size of the databases.
    pub(crate) fn sized(&self, mut setup: Setup) -> Setup {
        setup.options.cache_bytes = if self.is_full { 256 << 20 } else { 64 << 20 };
        setup.options.log_bytes = 128 << 20;
        setup
    }

    pub(crate) fn tpcc(&self) -> TpcC {
        if self.is_full {
            TpcC { warehouses: 16, customers_of_a_district: 300, items: 10_000 }
        } else {
            TpcC { warehouses: 8, customers_of_a_district: 90, items: 1000 }
        }
    }

    pub(crate) fn tatp(&self) -> Tatp {
        Tatp { subscribers: if self.is_full { 100_000 } else { 20_000 } }
    }
}

/// A store that takes part in a comparison, and its name in the table. The store is loaded with data.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) db: Box<dyn Db>,
}

/// The result of a contender: the median of its rounds, and their range.
#[derive(Clone, Debug)]
pub(crate) struct Scored {
    pub(crate) name: String,
    pub(crate) per_second: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    pub(crate) runs: Vec<Run>,
}

/// Runs the contenders in turns, so that a slow moment of the machine affects all of them. Checks the rows after each
/// run.
pub(crate) fn in_turns(
    contenders: &[Contender],
    workload: &dyn Workload,
    threads: u64,
    plan: &Plan,
) -> Result<Vec<Scored>> {
    let mut runs = vec![Vec::new(); contenders.len()];
    for _ in 0..plan.rounds {
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            let done = run(&*contender.db, workload, threads, plan.time);
            runs.push(done.with_context(|| format!("{} with {}", workload.name(), contender.name))?);
            let checked = contender.db.session().and_then(|mut session| workload.check(&mut *session));
            checked.with_context(|| format!("{} of {}", workload.name(), contender.name))?;
        }
    }
    let mut scored = Vec::new();
    for (contender, runs) in contenders.iter().zip(runs) {
        let rates: Vec<f64> = runs.iter().map(Run::per_second).collect();
        scored.push(Scored {
            name: contender.name.clone(),
            per_second: median(&rates),
            lowest: rates.iter().copied().fold(f64::INFINITY, f64::min),
            highest: rates.iter().copied().fold(0.0, f64::max),
            runs,
        });
    }
    Ok(scored)
}

/// Returns the ratio of `one` to `other`, as text.
pub(crate) fn times(one: f64, other: f64) -> String {
    if other > 0.0 { format!("{:.2}x", one / other) } else { "-".to_owned() }
}
