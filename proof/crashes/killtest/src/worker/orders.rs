//! The orders of a worker process, passed as its argument.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{Acknowledge, Role};

/// The orders of a worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    pub(crate) lane_acks: PathBuf,
    /// Whether processes write concurrently.
    pub(crate) concurrent: bool,
    pub(crate) log_dir: PathBuf,
    /// The value of `PRAGMA wal_autocheckpoint` of all connections; `None` if each connection chooses at
    /// random.
    pub(crate) autocheckpoint: Option<u32>,
    /// SQLite's journal mode.
    pub(crate) journal: String,
    /// The database's URIs, one for each of its names.
    pub(crate) uris: Vec<String>,
}

impl Orders {
    /// Returns the orders as the argument of a process.
    pub(crate) fn argument(&self) -> Result<String> {
        serde_json::to_string(self).context("cannot say the orders")
    }

    pub(super) fn parse(arguments: &[String]) -> Result<Self> {
        let [orders] = arguments else {
            bail!("a worker is started by the crash test, with its orders");
        };
        serde_json::from_str(orders).context("cannot read the orders")
    }
}
