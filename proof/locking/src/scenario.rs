//! What is explored: a few processes, each with a small program, and what they find when they begin.

use std::sync::OnceLock;

/// Through which VFS a process opens the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Stock,
    Ours,
}

/// A process.
#[derive(Debug, Clone, Copy)]
pub struct Actor {
    pub via: Via,
    pub read_only: bool,
    /// It runs at the end, alone: nothing is in its way.
    pub is_auditor: bool,
    /// `open`, `close`, `insert` (one row), `read` (all rows), `yield` (others run), `nap` (others run until one of them has
    /// ended an operation), or SQL. A program without `close` at its end ends as if killed.
    pub program: &'static [&'static str],
}

/// The engine of the processes that have Duralite, as a setting.
pub static ENGINE: OnceLock<String> = OnceLock::new();

impl Actor {
    /// The URI of the database.
    pub fn uri(&self) -> String {
        match (self.via, ENGINE.get().map(String::as_str)) {
            (Via::Stock, _) => "file:db?vfs=shim".to_owned(),
            (Via::Ours, Some("nvwal")) => {
                "file:db?vfs=top&journal=nvwal&nvram=emulate&nvram_dir=.".to_owned()
            }
            (Via::Ours, engine) => format!("file:db?vfs=top&journal={}", engine.unwrap_or("waldio")),
        }
    }
}

const fn actor(via: Via, program: &'static [&'static str]) -> Actor {
    Actor { via, read_only: false, is_auditor: false, program }
}

const fn stock(program: &'static [&'static str]) -> Actor {
    actor(Via::Stock, program)
}

const fn ours(program: &'static [&'static str]) -> Actor {
    actor(Via::Ours, program)
}

const fn read_only(actor: Actor) -> Actor {
    Actor { read_only: true, ..actor }
}

/// Who looks at the end whether everything is there.
pub fn auditor(via: Via) -> Actor {
    let program = &["open", "read", "PRAGMA integrity_check", "close"];
    Actor { is_auditor: true, ..actor(via, program) }
}

/// What is there when a schedule begins.
#[derive(Debug, Clone, Copy)]
pub enum Start {
    /// A database in WAL mode that nobody has open.
    Wal,
    /// One with a rollback journal.
    Rollback,
    /// An ordinary `-wal` with commits, left by a process that was killed.
    OrdinaryWal,
    /// A hot rollback journal, left by a process that was killed.
    HotJournal,
}

const TABLE: &str = "CREATE TABLE t(v INTEGER PRIMARY KEY, filler)";

impl Start {
    /// Who makes it.
    pub fn maker(self) -> Actor {
        stock(match self {
            Self::Wal => &["open", TABLE, "insert", "PRAGMA journal_mode=WAL", "insert", "close"],
            Self::Rollback | Self::HotJournal => &["open", TABLE, "insert", "insert", "close"],
            Self::OrdinaryWal => &["open", TABLE, "insert", "PRAGMA journal_mode=WAL", "insert", "insert"],
        })
    }

    /// Who is killed as it is about to commit by deleting its journal.
    pub fn interrupted(self) -> Option<Actor> {
        matches!(self, Self::HotJournal).then_some(stock(&["open", "UPDATE t SET filler = 1", "insert"]))
    }
}

/// A scenario.
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub start: Start,
    /// A process that has run before, alone.
    pub before: Option<Actor>,
    pub actors: &'static [Actor],
    /// Who looks at the end, one after the other.
    pub auditors: &'static [Via],
}

const BOTH: &[Via] = &[Via::Ours, Via::Stock];

/// The scenario of this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "leaving_wal_while_a_log_is_opened",
        about: "a process with Duralite opens the log of a database that a stock one takes out of WAL mode",
        start: Start::Wal,
        before: None,
        actors: &[
            ours(&["open", "insert", "read", "insert", "close"]),
            stock(&[
                "open",
                "read",
                "yield",
                "PRAGMA journal_mode=DELETE",
                "insert",
                "yield",
                "insert",
                "close",
            ]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "exclusive_over_an_ordinary_wal",
        about: "in exclusive locking mode the -wal of a killed program is absorbed, while a stock program opens",
        start: Start::OrdinaryWal,
        before: None,
        actors: &[
            ours(&["open", "PRAGMA locking_mode=EXCLUSIVE", "insert", "insert", "read", "close"]),
            stock(&["open", "insert", "yield", "read", "insert", "yield", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "reading_where_the_writer_does_not_come_back",
        about: "a read-only connection with Duralite opens while a stock one takes the database for itself",
        start: Start::Wal,
        before: None,
        actors: &[
            read_only(ours(&["open", "read", "read", "close"])),
            stock(&["open", "PRAGMA locking_mode=EXCLUSIVE", "insert", "nap", "nap", "insert", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "a_hot_journal_while_a_log_is_opened",
        about: "a stock process leaves WAL mode, and may die with a hot journal, while one with Duralite opens",
        start: Start::Wal,
        before: None,
        actors: &[
            ours(&["open", "insert", "read", "close"]),
            stock(&["open", "read", "yield", "PRAGMA journal_mode=DELETE", "insert", "insert", "close"]),
            ours(&["open", "read", "insert", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "into_wal_mode_by_either",
        about: "a process with Duralite and a stock one both change a database to WAL mode and write",
        start: Start::Rollback,
        before: None,
        actors: &[
            ours(&[
                "open",
                "insert",
                "PRAGMA journal_mode=WAL",
                "insert",
                "yield",
                "read",
                "insert",
                "close",
            ]),
            stock(&[
                "open",
                "insert",
                "yield",
                "PRAGMA journal_mode=WAL",
                "insert",
                "yield",
                "read",
                "close",
            ]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "out_of_wal_mode_by_ours",
        about: "two processes with Duralite, one of which changes the mode to and fro, and a stock one",
        start: Start::Wal,
        before: None,
        actors: &[
            ours(&["open", "insert", "yield", "read", "insert", "close"]),
            ours(&[
                "open",
                "read",
                "PRAGMA journal_mode=DELETE",
                "insert",
                "PRAGMA journal_mode=WAL",
                "insert",
                "close",
            ]),
            stock(&["open", "read", "insert", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "a_hot_journal_is_found",
        about: "a process with Duralite and a stock one open a database with the hot journal of a killed program",
        start: Start::HotJournal,
        before: None,
        actors: &[
            ours(&["open", "read", "PRAGMA journal_mode=WAL", "insert", "read", "close"]),
            stock(&["open", "read", "insert", "yield", "insert", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "an_ordinary_wal_is_found",
        about: "two processes with Duralite, one of which may only read, and a stock one find the -wal of a killed program",
        start: Start::OrdinaryWal,
        before: None,
        actors: &[
            ours(&["open", "read", "insert", "close"]),
            read_only(ours(&["open", "read", "yield", "read", "close"])),
            stock(&["open", "read", "insert", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "a_log_is_found",
        about: "a log with commits, left by a process that was killed, is found by two processes with Duralite and a stock one",
        start: Start::Wal,
        before: Some(ours(&["open", "insert", "insert"])),
        actors: &[
            ours(&["open", "read", "insert", "close"]),
            read_only(ours(&["open", "read", "yield", "read", "close"])),
            stock(&["open", "read", "insert", "close"]),
        ],
        auditors: BOTH,
    },
    Scenario {
        name: "exclusive_beside_readers",
        about: "a process with Duralite takes the database for itself and gives it back, beside a reader and a stock writer",
        start: Start::Wal,
        before: None,
        actors: &[
            ours(&[
                "open",
                "PRAGMA locking_mode=EXCLUSIVE",
                "insert",
                "yield",
                "PRAGMA locking_mode=NORMAL",
                "insert",
                "close",
            ]),
            read_only(ours(&["open", "read", "yield", "read", "close"])),
            stock(&["open", "insert", "yield", "insert", "close"]),
        ],
        auditors: BOTH,
    },
];
