//! The scenarios to explore. Each has a few processes with small programs, and the files with which they
//! start.

use std::sync::OnceLock;

/// The VFS through which a process opens the database.
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
    /// Whether the process runs at the end, when it is alone and no other process can block it.
    pub is_auditor: bool,
    /// The operations: `open`, `close`, `insert` (one row), `read` (all rows), `yield` (lets others run),
    /// `nap` (lets others run until one of them has ended an operation), or SQL. If the program does not end
    /// with `close`, the process ends as if it were killed.
    pub program: &'static [&'static str],
}

/// The engine that the processes with Duralite use, as the value of a setting.
pub static ENGINE: OnceLock<String> = OnceLock::new();

impl Actor {
    /// Returns the URI with which the process opens the database.
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

/// Returns a process that checks the database at the end.
pub fn auditor(via: Via) -> Actor {
    let program = &["open", "read", "PRAGMA integrity_check", "close"];
    Actor { is_auditor: true, ..actor(via, program) }
}

/// The state of the database when a schedule begins.
#[derive(Debug, Clone, Copy)]
pub enum Start {
    /// A database in WAL mode that no process has open.
    Wal,
    /// A database in rollback mode.
    Rollback,
    /// An ordinary `-wal` with commits, left by a process that was killed.
    OrdinaryWal,
    /// A hot rollback journal, left by a process that was killed.
    HotJournal,
}

const TABLE: &str = "CREATE TABLE t(v INTEGER PRIMARY KEY, filler)";

impl Start {
    /// Returns the process that brings the database into this state.
    pub fn maker(self) -> Actor {
        stock(match self {
            Self::Wal => &["open", TABLE, "insert", "PRAGMA journal_mode=WAL", "insert", "close"],
            Self::Rollback | Self::HotJournal => &["open", TABLE, "insert", "insert", "close"],
            Self::OrdinaryWal => &["open", TABLE, "insert", "PRAGMA journal_mode=WAL", "insert", "insert"],
        })
    }

    /// Returns the process that leaves a hot journal, if this state has one. The leader kills that process
    /// just before it deletes its journal in order to commit.
    pub fn interrupted(self) -> Option<Actor> {
        matches!(self, Self::HotJournal).then_some(stock(&["open", "UPDATE t SET filler = 1", "insert"]))
    }
}

/// A scenario.
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub start: Start,
    /// A process that runs before the others start.
    pub before: Option<Actor>,
    pub actors: &'static [Actor],
    /// The auditors that run at the end, one after another.
    pub auditors: &'static [Via],
    /// Whether this scenario is a control: the exploration has to find a violation in it.
    pub is_control: bool,
}

/// Returns the scenario with this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

/// Reads page 1 and nothing else.
///
/// Stock SQLite can lose commits in two ways when a connection leaves WAL mode. The first way is a cache with
/// pages other than page 1: SQLite then checks only the change counter, and a commit through the WAL need not
/// change this counter. The second way is another process that opens the database at that time: it may commit
/// to a new `-wal`, which the connection does not read. So in these scenarios a process reads only page 1
/// before it leaves WAL mode, and meanwhile no other stock process opens the database. The scenario
/// `stock_leaves_wal` shows both losses.
const PEEK: &str = "SELECT name FROM sqlite_master";
const TO_DELETE: &str = "PRAGMA journal_mode=DELETE";
const TO_WAL: &str = "PRAGMA journal_mode=WAL";
const EXCLUSIVE: &str = "PRAGMA locking_mode=EXCLUSIVE";
const NORMAL: &str = "PRAGMA locking_mode=NORMAL";

const fn scenario(
    name: &'static str,
    start: Start,
    actors: &'static [Actor],
    about: &'static str,
) -> Scenario {
    let auditors = &[Via::Ours, Via::Stock];
    Scenario { name, about, start, before: None, actors, auditors, is_control: false }
}

pub static SCENARIOS: &[Scenario] = &[
    scenario(
        "leaving_wal_while_a_log_is_opened",
        Start::Wal,
        &[
            ours(&["open", "insert", "read", "insert", "close"]),
            stock(&["open", PEEK, "yield", TO_DELETE, "insert", "yield", "insert", "close"]),
        ],
        "one with Duralite opens the log of a database that a stock one takes out of WAL mode",
    ),
    scenario(
        "exclusive_over_an_ordinary_wal",
        Start::OrdinaryWal,
        &[
            ours(&["open", EXCLUSIVE, "insert", "insert", "read", "close"]),
            stock(&["open", "insert", "yield", "read", "insert", "yield", "close"]),
        ],
        "in exclusive locking mode one absorbs the -wal of a killed program, while a stock one opens",
    ),
    scenario(
        "reading_while_another_is_exclusive",
        Start::Wal,
        &[
            read_only(ours(&["open", "read", "read", "close"])),
            stock(&["open", EXCLUSIVE, "insert", "nap", "nap", "insert", "close"]),
        ],
        "a read-only connection opens while a stock one takes the database for itself and keeps it",
    ),
    scenario(
        "reading_while_another_leaves_wal",
        Start::Wal,
        &[
            read_only(ours(&["open", "read", "yield", "read", "close"])),
            stock(&["open", PEEK, TO_DELETE, EXCLUSIVE, "insert", "nap", "insert", "close"]),
        ],
        "a read-only connection opens while a stock one leaves WAL mode and writes",
    ),
    scenario(
        "a_hot_journal_is_left_meanwhile",
        Start::Wal,
        &[
            ours(&["open", "insert", "read", "close"]),
            stock(&["open", PEEK, "yield", TO_DELETE, "insert", "insert", "close"]),
            ours(&["open", "read", "insert", "close"]),
        ],
        "a stock one leaves WAL mode and may die with a hot journal, while two with Duralite open",
    ),
    scenario(
        "a_hot_journal_is_found",
        Start::HotJournal,
        &[
            ours(&["open", "read", TO_WAL, "insert", "read", "close"]),
            stock(&["open", "read", "insert", "yield", "insert", "close"]),
        ],
        "one with Duralite and a stock one find the hot journal of a killed program",
    ),
    scenario(
        "an_ordinary_wal_is_found",
        Start::OrdinaryWal,
        &[
            ours(&["open", "read", "insert", "close"]),
            read_only(ours(&["open", "read", "yield", "read", "close"])),
            stock(&["open", "read", "insert", "close"]),
        ],
        "two with Duralite, of which one may only read, and a stock one find the -wal of a killed program",
    ),
    Scenario {
        before: Some(ours(&["open", "insert", "insert"])),
        ..scenario(
            "a_log_is_found",
            Start::Wal,
            &[
                ours(&["open", "read", "insert", "close"]),
                read_only(ours(&["open", "read", "yield", "read", "close"])),
                stock(&["open", "read", "insert", "close"]),
            ],
            "two with Duralite and a stock one find the log of a killed program with Duralite",
        )
    },
    scenario(
        "into_wal_by_either",
        Start::Rollback,
        &[
            ours(&["open", "insert", TO_WAL, "insert", "yield", "read", "insert", "close"]),
            stock(&["open", "insert", "yield", TO_WAL, "insert", "yield", "read", "close"]),
        ],
        "one with Duralite and a stock one change a database to WAL mode and write",
    ),
    scenario(
        "to_and_fro_by_ours",
        Start::Wal,
        &[
            ours(&["open", "insert", "yield", "read", "insert", "close"]),
            ours(&["open", PEEK, TO_DELETE, "insert", TO_WAL, "insert", "close"]),
            read_only(ours(&["open", "read", "read", "close"])),
        ],
        "three with Duralite, of which one changes the mode to and fro",
    ),
    scenario(
        "exclusive_by_ours",
        Start::Wal,
        &[
            ours(&["open", EXCLUSIVE, "insert", "yield", NORMAL, "insert", "close"]),
            read_only(ours(&["open", "read", "yield", "read", "close"])),
            stock(&["open", "insert", "yield", "insert", "close"]),
        ],
        "one with Duralite takes the database for itself and gives it back, beside a reader and a stock writer",
    ),
    scenario(
        "transactions_beside_stock",
        Start::Wal,
        &[
            ours(&["open", "BEGIN", "read", "insert", "yield", "insert", "COMMIT", "read", "close"]),
            stock(&["open", "BEGIN IMMEDIATE", "insert", "yield", "insert", "COMMIT", "read", "close"]),
            ours(&["open", "BEGIN", "read", "yield", "read", "COMMIT", "insert", "close"]),
        ],
        "transactions of several statements, with Duralite and without",
    ),
    Scenario {
        auditors: &[Via::Stock],
        ..scenario(
            "stock_alone",
            Start::OrdinaryWal,
            &[
                stock(&["open", "insert", "yield", "read", "insert", "close"]),
                stock(&["open", EXCLUSIVE, "insert", "yield", NORMAL, "read", "close"]),
                stock(&["open", "BEGIN", "read", "insert", "COMMIT", "close"]),
            ],
            "stock SQLite by itself: the rules are those that it keeps",
        )
    },
    scenario(
        "ours_leaves_wal",
        Start::Wal,
        &[
            ours(&["open", "insert", "yield", "read", "insert", "close"]),
            ours(&["open", "read", TO_DELETE, "insert", TO_WAL, "insert", "close"]),
            stock(&["open", "read", "insert", "close"]),
        ],
        "one with Duralite and a warm cache leaves WAL mode beside another and a stock one, which stock SQLite does not survive",
    ),
    Scenario {
        auditors: &[Via::Stock],
        is_control: true,
        ..scenario(
            "stock_leaves_wal",
            Start::Wal,
            &[
                stock(&["open", "insert", "yield", "read", "insert", "close"]),
                stock(&["open", "read", TO_DELETE, "insert", "close"]),
            ],
            "what stock SQLite itself does not survive: a control, in which something has to be found",
        )
    },
];
