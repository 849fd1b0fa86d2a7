//! The modes that the benchmark compares: stock SQLite, Duralite's engines with each value of `concurrent`,
//! and peers of SQLite if this program is built with them.

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::everyday::{NVWAL, WALDIO};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Engine {
    Stock,
    Waldio,
    Nvwal,
    #[cfg(feature = "turso")]
    Turso,
}

/// The value of the setting `concurrent`, and the statement with which transactions begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// `off`, and BEGIN IMMEDIATE.
    Immediate,
    /// `off`, and BEGIN.
    Plain,
    Upgrade,
    On,
    /// BEGIN CONCURRENT, which only peers have.
    Concurrent,
}

/// An engine, and the way in which its transactions begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mode {
    engine: Engine,
    way: Way,
}

/// The mode with which all others are compared.
pub(super) const STOCK: Mode = Mode { engine: Engine::Stock, way: Way::Immediate };

const fn mode(engine: Engine, way: Way) -> Mode {
    Mode { engine, way }
}

/// The modes of most tables: one writer at a time, and each value of `concurrent`.
const WAYS: [Mode; 7] = [
    STOCK,
    mode(Engine::Waldio, Way::Immediate),
    mode(Engine::Waldio, Way::Upgrade),
    mode(Engine::Waldio, Way::On),
    mode(Engine::Nvwal, Way::Immediate),
    mode(Engine::Nvwal, Way::Upgrade),
    mode(Engine::Nvwal, Way::On),
];

/// The modes for tables in which transactions begin without a lock. The mode with which all others are
/// compared still takes the lock.
const PLAIN: [Mode; 7] = [
    STOCK,
    mode(Engine::Stock, Way::Plain),
    mode(Engine::Waldio, Way::Plain),
    mode(Engine::Waldio, Way::Upgrade),
    mode(Engine::Waldio, Way::On),
    mode(Engine::Nvwal, Way::Upgrade),
    mode(Engine::Nvwal, Way::On),
];

/// Returns whether this program is linked to SQLite's branch `begin-concurrent`.
pub(super) fn is_branch() -> bool {
    Connection::open_in_memory().is_ok_and(|conn| conn.execute_batch("BEGIN CONCURRENT").is_ok())
}

/// Returns the modes of a table. If the writers are processes, leaves out Turso, whose writers can only be
/// threads.
pub(super) fn all(begins_plain: bool, by_processes: bool) -> Vec<Mode> {
    let mut modes = if begins_plain { PLAIN } else { WAYS }.to_vec();
    if is_branch() {
        modes.push(mode(Engine::Stock, Way::Concurrent));
    }
    #[cfg(feature = "turso")]
    if !by_processes {
        modes.push(mode(Engine::Turso, Way::Concurrent));
    }
    #[cfg(not(feature = "turso"))]
    let _ = by_processes;
    modes
}

impl Mode {
    pub(super) fn name(self) -> String {
        let engine = match self.engine {
            Engine::Stock => "stock WAL",
            Engine::Waldio => "waldio",
            Engine::Nvwal => "nvwal",
            #[cfg(feature = "turso")]
            Engine::Turso => "Turso, MVCC",
        };
        let way = match (self.way, self.engine) {
            (Way::Immediate, Engine::Stock) => "BEGIN IMMEDIATE",
            (Way::Immediate, _) => "off, BEGIN IMMEDIATE",
            (Way::Plain, Engine::Stock) => "BEGIN",
            (Way::Plain, _) => "off, BEGIN",
            (Way::Upgrade, _) => "upgrade",
            (Way::On, _) => "on",
            (Way::Concurrent, _) => "BEGIN CONCURRENT",
        };
        format!("{engine}, {way}")
    }

    #[cfg(feature = "turso")]
    pub(super) fn is_turso(self) -> bool {
        self.engine == Engine::Turso
    }

    /// Returns the value of `concurrent`; `None` for modes without Duralite.
    pub(super) fn concurrency(self) -> Option<&'static str> {
        let value = match self.way {
            Way::Immediate | Way::Plain => "off",
            Way::Upgrade => "upgrade",
            Way::On => "on",
            Way::Concurrent => return None,
        };
        matches!(self.engine, Engine::Waldio | Engine::Nvwal).then_some(value)
    }

    /// Returns the parameters of Duralite's URI.
    pub(super) fn parameters(self) -> Option<String> {
        let engine = if self.engine == Engine::Nvwal { NVWAL } else { WALDIO };
        self.concurrency().map(|value| format!("{engine}&concurrent={value}"))
    }

    /// Returns the statement with which every attempt begins; `None` if it depends on how many attempts have
    /// failed.
    pub(super) fn begin(self) -> Option<&'static str> {
        match self.way {
            Way::Concurrent => Some("BEGIN CONCURRENT"),
            Way::Immediate => Some("BEGIN IMMEDIATE"),
            Way::Plain | Way::Upgrade | Way::On => None,
        }
    }

    /// Returns the mode that has the same engine, but allows only one writer at a time.
    pub(super) fn switched_off(self) -> Self {
        Self { way: Way::Immediate, ..self }
    }
}
