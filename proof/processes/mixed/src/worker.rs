//! The processes of a round.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::acks::Acks;
use crate::life::Life;
use crate::mind::Mind;
use crate::site::Paths;
use crate::slices::Slices;
use crate::{Plan, Side, audit};

/// The command that starts a process. The process must call [`worker_main`].
#[derive(Debug, Clone)]
pub struct Worker {
    /// The program.
    pub program: PathBuf,
    /// The arguments that come before those for [`worker_main`].
    pub arguments: Vec<OsString>,
}

/// The task of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    Create,
    Work,
    Audit,
}

/// The orders for a process. They are its first argument. The round's plan follows, in the form in which a
/// user writes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) task: Task,
    pub(crate) side: Side,
    pub(crate) parent: u32,
    /// The number of the process among all processes that the round starts.
    pub(crate) number: u32,
    pub(crate) start_ns: u64,
    pub(crate) paths: Paths,
}

impl Orders {
    pub(crate) fn argument(&self) -> Result<String> {
        serde_json::to_string(self).context("cannot say the orders")
    }

    fn parse(arguments: &[String]) -> Result<(Self, Plan)> {
        let [orders, plan @ ..] = arguments else {
            bail!("a worker is started by the rig, with its orders and a plan");
        };
        let orders = serde_json::from_str(orders).context("cannot read the orders")?;
        Ok((orders, Plan::parse(plan.iter().map(String::as_str))?))
    }
}

/// Returns the number under which a thread commits. This number also says which side the thread is on.
fn writer_of(process: u32, thread: u32, side: Side) -> i64 {
    (i64::from(process) * 16 + i64::from(thread)) * 2 + i64::from(side == Side::Stock)
}

/// Returns the side of a writer.
pub(crate) fn side_of(writer: i64) -> Side {
    if writer % 2 == 1 { Side::Stock } else { Side::Ours }
}

/// Runs one process of a round, until it is killed or the round is over.
#[must_use]
pub fn worker_main(arguments: &[String]) -> ExitCode {
    match Orders::parse(arguments).and_then(|(orders, plan)| work(&orders, &plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(orders: &Orders, plan: &Plan) -> Result<()> {
    // The kernel kills this process when its parent dies, so no process outlives the round.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask for a signal")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    ensure!(parent == Some(orders.parent), "the process that started this one is gone");
    match orders.task {
        Task::Create => audit::create(plan, &orders.paths),
        Task::Audit => audit::audit(plan, &orders.paths, orders.side),
        Task::Work => {
            std::thread::scope(|scope| {
                for thread in 0..plan.threads {
                    scope.spawn(move || live(orders, plan, thread));
                }
            });
            Ok(())
        }
    }
}

/// Runs one thread. If the thread fails, the whole process ends at once and closes no connection.
fn live(orders: &Orders, plan: &Plan, thread: u32) {
    // In some Duralite processes, every second thread uses stock SQLite.
    let side = if plan.both && thread % 2 == 1 { Side::Stock } else { orders.side };
    let writer = writer_of(orders.number, thread, side);
    let lived = Acks::open(&orders.paths.acks()).and_then(|acks| {
        let trace =
            File::options().append(true).create(true).open(orders.paths.traces().join(writer.to_string()))?;
        let rng =
            fastrand::Rng::with_seed(plan.seed ^ writer.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let slices = Slices::new(plan, orders.start_ns);
        Life { plan, side, paths: &orders.paths, slices, rng, mind: Mind::new(writer, acks), trace }.run()
    });
    if let Err(error) = lived {
        let why = (side == Side::Ours).then(duralite::last_error).flatten().unwrap_or_default();
        eprintln!("failure: writer {writer}: {error:#} {why}");
        std::process::exit(1);
    }
}
