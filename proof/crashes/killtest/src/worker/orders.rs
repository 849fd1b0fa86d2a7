//! The orders of a worker process, passed as its arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{Acknowledge, Role};

/// The orders of a worker process.
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
    pub(crate) log_dir: PathBuf,
    /// `PRAGMA wal_autocheckpoint` of all connections; if there is none, each connection chooses at random.
    pub(crate) autocheckpoint: Option<u32>,
    /// SQLite's journal mode.
    pub(crate) journal: String,
    /// The database's URIs, one for each of its names.
    pub(crate) uris: Vec<String>,
}

impl Orders {
    /// The orders as arguments of a process.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let early = self.acknowledge == Acknowledge::BeforeCommit;
        let numbers = [u64::from(self.parent), self.slot, self.id, self.seed, u64::from(early)];
        let mut arguments = vec![OsString::from(self.role.name())];
        arguments.extend(numbers.iter().map(|number| number.to_string().into()));
        arguments.push(self.busy.as_millis().to_string().into());
        arguments.extend([&self.board, &self.acks, &self.log_dir].map(|path| path.clone().into_os_string()));
        arguments.push(self.autocheckpoint.map_or(-1, i64::from).to_string().into());
        arguments.push(OsString::from(&self.journal));
        arguments.extend(self.uris.iter().map(OsString::from));
        arguments
    }

    pub(super) fn parse(arguments: &[String]) -> Result<Self> {
        let [
            role,
            parent,
            slot,
            id,
            seed,
            early,
            busy,
            board,
            acks,
            log_dir,
            autocheckpoint,
            journal,
            uris @ ..,
        ] = arguments
        else {
            bail!("a worker is started by the crash test, with 13 arguments or more");
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
            log_dir: log_dir.into(),
            autocheckpoint: u32::try_from(autocheckpoint.parse::<i64>()?).ok(),
            journal: journal.clone(),
            uris: uris.to_vec(),
        })
    }
}
