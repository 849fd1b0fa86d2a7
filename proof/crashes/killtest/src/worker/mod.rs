//! The processes that are killed.

mod auditor;
mod checkpointer;
mod concurrent;
mod forker;
mod opener;
mod orders;
mod reader;
mod session;
mod writer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::Role;
use crate::acks::Acks;
use crate::board::Note;

pub(crate) use auditor::{Answer, Question};
pub(crate) use orders::Orders;
use session::Session;

/// The command that starts a process that calls [`worker_main`].
#[derive(Debug, Clone)]
pub struct Worker {
    /// The program.
    pub program: PathBuf,
    /// The first of the program's arguments. After them come those that [`worker_main`] gets.
    pub arguments: Vec<OsString>,
}

/// Runs one process of a crash test until it is killed or told to end.
#[must_use]
pub fn worker_main(arguments: &[String]) -> ExitCode {
    let result = Orders::parse(arguments).and_then(|orders| {
        work(&orders).with_context(|| format!("{} {} in slot {}", orders.role.name(), orders.id, orders.slot))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(orders: &Orders) -> Result<()> {
    // The kernel kills this process when the process that started it dies, so no worker outlives the run.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask for a signal")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    ensure!(parent == Some(orders.parent), "the process that started this one is gone");
    let note = Note::open(&orders.board, orders.slot, orders.id)?;
    if orders.role == Role::Auditor {
        return auditor::serve(orders, &note);
    }
    let acks = Acks::open(&orders.acks)?;
    let rng = fastrand::Rng::with_seed(orders.seed ^ orders.id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut session = Session::new(orders, note, acks, rng);
    match orders.role {
        Role::Writer => writer::run(&mut session),
        Role::Concurrent => concurrent::run(&mut session),
        Role::Checkpointer => checkpointer::run(&mut session),
        Role::Opener => opener::run(&mut session),
        Role::Reader => reader::run(&mut session),
        Role::Forker => forker::run(&mut session),
        Role::Onlooker => reader::look_on(&mut session),
        Role::Keeper | Role::Auditor => reader::keep(&mut session),
    }
}
