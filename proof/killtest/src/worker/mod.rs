//! The processes that are killed.

mod checkpointer;
mod forker;
mod opener;
mod reader;
mod session;
mod writer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::acks::Acks;
use crate::board::Note;
use crate::{Acknowledge, Role, auditor};

use session::Session;
pub(crate) use session::{Kept, close, open, patiently};

/// How to start a process that calls [`worker_main`].
#[derive(Debug, Clone)]
pub struct Worker {
    /// The program.
    pub program: PathBuf,
    /// Arguments before those that [`worker_main`] is given.
    pub arguments: Vec<OsString>,
}

/// What a process is told.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    pub(crate) role: Role,
    pub(crate) parent: u32,
    pub(crate) slot: u64,
    pub(crate) id: u64,
    pub(crate) seed: u64,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) busy: Duration,
    pub(crate) board: PathBuf,
    pub(crate) acks: PathBuf,
    pub(crate) pool: PathBuf,
    /// `PRAGMA wal_autocheckpoint` of all connections; drawn for each if there is none.
    pub(crate) autocheckpoint: Option<u32>,
    /// The database by each of its names.
    pub(crate) uris: Vec<String>,
}

impl Orders {
    /// As arguments of a process.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let early = self.acknowledge == Acknowledge::BeforeCommit;
        let numbers = [u64::from(self.parent), self.slot, self.id, self.seed, u64::from(early)];
        let mut arguments = vec![OsString::from(self.role.name())];
        arguments.extend(numbers.iter().map(|number| number.to_string().into()));
        arguments.push(self.busy.as_millis().to_string().into());
        arguments.extend([&self.board, &self.acks, &self.pool].map(|path| path.clone().into_os_string()));
        arguments.push(self.autocheckpoint.map_or(-1, i64::from).to_string().into());
        arguments.extend(self.uris.iter().map(OsString::from));
        arguments
    }

    fn parse(arguments: &[String]) -> Result<Self> {
        let [role, parent, slot, id, seed, early, busy, board, acks, pool, autocheckpoint, uris @ ..] =
            arguments
        else {
            bail!("a worker is started by the crash test, with 12 arguments or more");
        };
        Ok(Self {
            role: Role::named(role).with_context(|| format!("{role} is no role"))?,
            parent: parent.parse()?,
            slot: slot.parse()?,
            id: id.parse()?,
            seed: seed.parse()?,
            acknowledge: if early == "1" { Acknowledge::BeforeCommit } else { Acknowledge::AfterCommit },
            busy: Duration::from_millis(busy.parse()?),
            board: board.into(),
            acks: acks.into(),
            pool: pool.into(),
            autocheckpoint: u32::try_from(autocheckpoint.parse::<i64>()?).ok(),
            uris: uris.to_vec(),
        })
    }
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
    // No process is left behind, whatever becomes of the one that started it.
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
        Role::Checkpointer => checkpointer::run(&mut session),
        Role::Opener => opener::run(&mut session),
        Role::Reader => reader::run(&mut session),
        Role::Forker => forker::run(&mut session),
        Role::Onlooker => reader::look_on(&mut session),
        Role::Keeper | Role::Auditor => reader::keep(&mut session),
    }
}
