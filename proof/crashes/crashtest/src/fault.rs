//! Describes a fault in a workload: which call fails, which faults a test tries, and what the test has found.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;

use anyhow::Result;

use crate::event::FileKind;
use crate::failure::Violation;
use crate::hooks::heap;
use crate::model::Contents;
use crate::recorder::{Call, Fault, Recorder};
use crate::setup::{Engine, Setup};
use crate::sql;
use crate::stage::Stage;
use crate::workload::{Bounds, Length};

/// The extent of a test.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// The engine.
    pub engine: Engine,
    /// The workload's seed.
    pub seed: u64,
    /// The number of steps of the workload.
    pub length: Length,
    /// The test makes one out of this many calls fail, each in a run of its own.
    pub every: u64,
    /// The test makes one out of this many memory allocations fail, each in a run of its own.
    pub every_allocation: u64,
    /// The number of crash states that the test checks after each fault.
    pub crashes: usize,
    /// Whether connections write concurrently.
    pub concurrent: bool,
}

/// The extent and the results of a test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// The number of faults, by the kind of call that failed.
    pub faults: BTreeMap<String, u64>,
    /// The number of faults that SQLite reported to the application.
    pub told: u64,
    /// The number of faults that SQLite did not report, because a second attempt succeeded or nothing
    /// depended on the call.
    pub absorbed: u64,
    /// The number of crash states that the test recovered after faults.
    pub crashes: u64,
}

impl FaultTally {
    /// Returns the number of faults.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Counts a fault.
    pub fn count(&mut self, what_failed: Option<&str>) {
        let what = what_failed.unwrap_or("calls that did not come");
        *self.faults.entry(what.to_owned()).or_default() += 1;
    }
}

impl AddAssign for FaultTally {
    fn add_assign(&mut self, other: Self) {
        for (what, count) in other.faults {
            *self.faults.entry(what).or_default() += count;
        }
        self.told += other.told;
        self.absorbed += other.absorbed;
        self.crashes += other.crashes;
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.faults.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let Self { told, absorbed, crashes, .. } = self;
        let total = self.total();
        write!(
            f,
            "{total} faults ({}), {told} told, {absorbed} made good; {crashes} crash states behind them",
            kinds.join(", ")
        )
    }
}

/// The call or allocation that is to fail.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// A call of any kind.
    Call(Fault),
    /// The memory allocation with this number, counted from 0 over SQLite's allocations.
    Allocation(u64),
}

impl Which {
    /// Returns the violation for a fault that broke a promise although there was no crash. `failed` is the
    /// call that failed.
    pub fn broken(self, setup: &Setup, seed: u64, failed: Option<&str>, what: &str) -> Violation {
        let what = format!("{self:?} ({}): {what}", failed.unwrap_or("nothing"));
        let (setup, bounds, contents) = (setup.clone(), Bounds::default(), Contents::new());
        Violation { what, setup, seed, position: 0, bounds, contents, disk: None }
    }

    /// Makes the chosen call or allocation fail. The count of calls and allocations begins now.
    pub fn begin(self, recorder: &Recorder) {
        match self {
            Self::Call(fault) => recorder.set_fault(Some(fault)),
            Self::Allocation(nth) => heap::refuse(Some(nth)),
        }
    }

    /// Removes the fault. Returns what failed, if anything has.
    pub fn end(self, recorder: &Recorder) -> Option<&'static str> {
        let what_failed = match self {
            Self::Call(_) => recorder.injected().map(|(call, _)| name_of(call)),
            Self::Allocation(_) => Some("requests of memory"),
        };
        heap::refuse(None);
        recorder.set_fault(None);
        what_failed
    }

    /// Returns a number that is different for each fault. The test adds it to the seed that chooses a power
    /// failure.
    pub fn seed(self) -> u64 {
        match self {
            Self::Call(fault) => fault.nth,
            Self::Allocation(nth) => nth << 32,
        }
    }
}

/// Puts a stage's database into WAL mode with stock SQLite, and returns a recorder for the stage. Switching
/// to WAL mode uses stock SQLite's rollback journal. The fault tests do not cover device failures at that
/// time, so the recording begins afterwards.
pub(crate) fn recorder_of(stage: &Stage, setup: &Setup) -> Result<Arc<Recorder>> {
    let plain = Setup { engine: Engine::Stock, ..setup.clone() };
    let conn = stage.connect(&plain)?;
    sql::use_mode(&conn, sql::WAL)?;
    conn.close().map_err(|(_, error)| error)?;
    let recorder = Arc::new(Recorder::default());
    recorder.begin_with(&stage.database(), FileKind::Sectors, std::fs::read(stage.database())?);
    Ok(recorder)
}

fn name_of(call: Call) -> &'static str {
    match call {
        Call::Read => "reads",
        Call::Write => "writes",
        Call::Sync => "syncs",
        Call::Allocate => "allocations of space",
        Call::Name => "openings and deletions",
        Call::Map => "mappings",
    }
}

/// Counts panics anywhere in the process, including panics that are caught before they reach C.
pub mod panics {
    use std::sync::Once;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PANICS: AtomicU64 = AtomicU64::new(0);
    static HOOK: Once = Once::new();

    pub fn count() -> u64 {
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                PANICS.fetch_add(1, Ordering::Relaxed);
                before(info);
            }));
        });
        PANICS.load(Ordering::Relaxed)
    }
}
