//! The races. In each race, a few processes run small transactions on one database. The name of a race says
//! what is special about its transactions.

/// A process of a race.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The setting `concurrent` of the process's connection.
    pub concurrent: &'static str,
    /// The statements that the process runs before the race, while all other processes wait.
    pub before: &'static [&'static str],
    /// The transactions of the process, each as a list of operations. An operation consists of statements
    /// that are separated by `;`. With coarse grain it is one step. A `COMMIT` is always an operation of its
    /// own.
    pub transactions: &'static [&'static [&'static str]],
}

/// A race.
pub struct Mix {
    pub name: &'static str,
    pub about: &'static str,
    pub programs: &'static [Program],
    /// Whether the log has no commits when the race begins.
    pub has_new_log: bool,
}

/// Makes the tables. A page of 512 bytes holds four rows of `t`. So the rows 10, 100 and 190 are in three
/// different leaves. Each row of `big` and of `huge` has pages of its own. A tenth of the database's pages
/// are free.
pub const SETUP: &str = "
    CREATE TABLE t(k INTEGER PRIMARY KEY, v INTEGER, pad TEXT);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
        INSERT INTO t SELECT 10 * i, i, hex(zeroblob(50)) FROM n;
    CREATE TABLE big(k INTEGER PRIMARY KEY, v BLOB);
    INSERT INTO big VALUES(1, zeroblob(1500)), (2, zeroblob(1500)), (3, zeroblob(1500));
    CREATE TABLE huge(k INTEGER PRIMARY KEY, v BLOB);
    INSERT INTO huge VALUES(1, zeroblob(1500)), (2, zeroblob(1500)), (3, zeroblob(1500));
    DELETE FROM big WHERE k = 3;
    CREATE TABLE filler(v); INSERT INTO filler VALUES(0)";

/// Commits something to the log, on a page that no race uses.
pub const FILL: &str = "UPDATE filler SET v = v + 1";

/// Reads all rows.
pub const ROWS: &str = "SELECT 't', k, v FROM t UNION ALL SELECT 'big', k, length(v) FROM big
    UNION ALL SELECT 'huge', k, length(v) FROM huge ORDER BY 1, 2";

/// Reads a row.
macro_rules! read {
    ($row:literal) => {
        concat!("SELECT v FROM t WHERE k=", $row)
    };
}

/// Changes a row to a value that depends on another row. After several such changes, the values show the
/// order of the changes.
macro_rules! write {
    ($row:literal, $from:literal, $own:literal) => {
        concat!("UPDATE t SET v=v*10+(SELECT v FROM t WHERE k=", $from, ")+", $own, " WHERE k=", $row)
    };
}

const fn on(transactions: &'static [&'static [&'static str]]) -> Program {
    Program { concurrent: "on", before: &[], transactions }
}

const fn with(concurrent: &'static str, transactions: &'static [&'static [&'static str]]) -> Program {
    Program { concurrent, before: &[], transactions }
}

const fn after(before: &'static [&'static str], program: Program) -> Program {
    Program { before, ..program }
}

/// Reads all rows of `t`, so that they are in SQLite's cache.
const WARM: &[&str] = &["SELECT sum(v) FROM t"];
/// A transaction that leaves its connection with leases of free pages.
const LEASES_BIG: &[&str] = &["BEGIN", "INSERT INTO big VALUES(10, zeroblob(1500))", "COMMIT"];
const LEASES_HUGE: &[&str] = &["BEGIN", "INSERT INTO huge VALUES(10, zeroblob(1500))", "COMMIT"];

/// Returns the race with this name.
pub fn named(name: &str) -> Option<&'static Mix> {
    MIXES.iter().find(|mix| mix.name == name)
}

pub static MIXES: &[Mix] = &[
    Mix {
        name: "skew",
        has_new_log: false,
        about: "two that each read what the other one writes",
        programs: &[
            on(&[&[concat!("BEGIN;", read!(10)), write!(100, 10, 1), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", read!(100)), write!(10, 100, 2), "COMMIT"]]),
        ],
    },
    Mix {
        name: "new_log",
        has_new_log: true,
        about: "the same on a log without commits",
        programs: &[
            on(&[&[concat!("BEGIN;", read!(10)), write!(100, 10, 1), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", read!(100)), write!(10, 100, 2), "COMMIT"]]),
        ],
    },
    Mix {
        name: "skew_with_warm_caches",
        has_new_log: false,
        about: "the same, where both have all pages in their caches and one goes on",
        programs: &[
            after(
                WARM,
                on(&[
                    &[concat!("BEGIN;", write!(100, 10, 1)), "COMMIT"],
                    &[concat!("BEGIN;", read!(10), ";", write!(190, 100, 3)), "COMMIT"],
                ]),
            ),
            after(WARM, on(&[&[concat!("BEGIN;", read!(100)), write!(10, 100, 2), "COMMIT"]])),
        ],
    },
    Mix {
        name: "skew_and_a_reader",
        has_new_log: false,
        about: "two that each read what the other one writes, and one that reads both rows",
        programs: &[
            on(&[&[concat!("BEGIN;", write!(100, 10, 1)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 100, 2)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", read!(10)), concat!(read!(100), ";COMMIT")]]),
        ],
    },
    Mix {
        name: "ring",
        has_new_log: false,
        about: "three, each of which reads what the next one writes",
        programs: &[
            on(&[&[concat!("BEGIN;", write!(100, 10, 1)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(190, 100, 2)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 190, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "counter",
        has_new_log: false,
        about: "three that change the same row",
        programs: &[
            on(&[&[concat!("BEGIN;", write!(10, 10, 1)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 10, 2)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 10, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "apart",
        has_new_log: false,
        about: "three on pages of their own",
        programs: &[
            on(&[&[concat!("BEGIN;", write!(10, 20, 1)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(100, 110, 2)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(190, 200, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "in_turn",
        has_new_log: false,
        about: "two that go on with transactions on pages of their own, and one that reads what both write",
        programs: &[
            on(&[
                &[concat!("BEGIN;", write!(10, 20, 1)), "COMMIT"],
                &[concat!("BEGIN;", write!(10, 200, 2)), "COMMIT"],
            ]),
            on(&[&[concat!("BEGIN;", read!(10), ";", write!(190, 200, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "allocation",
        has_new_log: false,
        about: "two that allocate pages, and one that frees some",
        programs: &[
            on(&[&["BEGIN;INSERT INTO big VALUES(20, zeroblob(1500))", "COMMIT"]]),
            on(&[&["BEGIN;INSERT INTO huge VALUES(20, zeroblob(1500))", "COMMIT"]]),
            on(&[&["BEGIN;DELETE FROM huge WHERE k=2", "COMMIT"]]),
        ],
    },
    Mix {
        name: "leases",
        has_new_log: false,
        about: "two that allocate leased pages, one of which frees them again, beside one that writes elsewhere",
        programs: &[
            after(
                LEASES_BIG,
                on(&[
                    &[
                        "BEGIN;INSERT INTO big VALUES(20, zeroblob(1500));DELETE FROM big WHERE k=10",
                        "COMMIT",
                    ],
                    &["BEGIN;DELETE FROM big WHERE k=20", "COMMIT"],
                ]),
            ),
            after(LEASES_HUGE, on(&[&["BEGIN;INSERT INTO huge VALUES(20, zeroblob(3000))", "COMMIT"]])),
        ],
    },
    Mix {
        name: "split",
        has_new_log: false,
        about: "one that splits a leaf, beside two in other leaves of the table",
        programs: &[
            after(
                LEASES_BIG,
                on(&[&[
                    "BEGIN;INSERT INTO t VALUES(11, 1, hex(zeroblob(50))), (12, 1, hex(zeroblob(50)))",
                    "COMMIT",
                ]]),
            ),
            on(&[&[concat!("BEGIN;", read!(10), ";", write!(190, 200, 1)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(100, 110, 2)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "immediate",
        has_new_log: false,
        about: "one that takes the lock at once, and two that are validated",
        programs: &[
            on(&[&["BEGIN IMMEDIATE", write!(100, 10, 1), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 100, 2)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(190, 200, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "modes",
        has_new_log: false,
        about: "connections with each value of `concurrent`",
        programs: &[
            with("upgrade", &[&[concat!("BEGIN;", read!(10)), write!(100, 10, 1), "COMMIT"]]),
            with("off", &[&[concat!("BEGIN IMMEDIATE;", write!(10, 190, 2)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(190, 100, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "checkpoint",
        has_new_log: false,
        about: "a checkpoint beside two that read what the other one writes",
        programs: &[
            on(&[&[concat!("BEGIN;", write!(100, 10, 1)), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 100, 2)), "COMMIT"]]),
            with("off", &[&["PRAGMA wal_checkpoint(PASSIVE)"]]),
        ],
    },
    Mix {
        name: "log_that_starts_over",
        has_new_log: false,
        about: "complete checkpoints of a concurrent connection beside one that commits twice",
        programs: &[
            on(&[
                &[concat!("BEGIN;", write!(100, 10, 1)), "COMMIT"],
                &[concat!("BEGIN;", write!(10, 100, 2)), "COMMIT"],
            ]),
            on(&[&["PRAGMA wal_checkpoint(TRUNCATE)"], &["PRAGMA wal_checkpoint(RESTART)"]]),
            on(&[&[concat!("BEGIN;", read!(10)), concat!(write!(190, 100, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "start_over_by_sqlite",
        has_new_log: false,
        about: "connections that SQLite serves directly, one of which checkpoints and starts the log over, and a concurrent one",
        programs: &[
            with(
                "off",
                &[
                    &["PRAGMA wal_checkpoint(PASSIVE)"],
                    &[concat!("BEGIN IMMEDIATE;", write!(100, 10, 1)), "COMMIT"],
                ],
            ),
            with("off", &[&["BEGIN IMMEDIATE", write!(10, 100, 2), "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(190, 100, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "long_read",
        has_new_log: false,
        about: "one that reads row after row of what is in the log, beside two that write other rows",
        programs: &[
            after(&["UPDATE t SET v=v+1"], on(&[&[concat!("BEGIN;", write!(20, 20, 1)), "COMMIT"]])),
            on(&[&[
                concat!("BEGIN;", read!(50)),
                read!(100),
                concat!(read!(150), ";", write!(200, 200, 2)),
                "COMMIT",
            ]]),
            on(&[&[concat!("BEGIN;", write!(90, 90, 3)), "COMMIT"]]),
        ],
    },
    Mix {
        name: "schema",
        has_new_log: false,
        about: "one that makes a table, and two that write",
        programs: &[
            on(&[&["BEGIN;CREATE TABLE more(k);DROP TABLE more", "COMMIT"]]),
            on(&[&[concat!("BEGIN;", write!(10, 100, 2)), "COMMIT"]]),
            on(&[&["BEGIN;DELETE FROM big", "COMMIT"]]),
        ],
    },
];
