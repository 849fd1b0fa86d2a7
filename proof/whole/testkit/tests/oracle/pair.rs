//! Runs statements on pairs of connections. One connection of a pair uses Duralite, and the other stock
//! SQLite.

use std::collections::VecDeque;

use duralite_testkit::{Engine, Fixture, Outcome, connect, run, stock};
use rusqlite::Connection;

/// The number of statements that the message of a failure shows.
const SHOWN: usize = 40;

struct Both {
    ours: Connection,
    theirs: Connection,
}

/// Connections to a database on Duralite, and as many to a database on stock SQLite.
pub struct Pair<'a> {
    fixture: &'a Fixture,
    settings: String,
    connections: Vec<Both>,
    latest: VecDeque<String>,
    /// The number of statements whose answer was not an error.
    pub answered: u64,
}

fn open(fixture: &Fixture, settings: &str) -> Both {
    Both {
        ours: connect(&fixture.uri("ours.db", settings)).unwrap(),
        theirs: stock(&fixture.path("theirs.db")),
    }
}

impl<'a> Pair<'a> {
    pub fn new(fixture: &'a Fixture, settings: &str, connections: usize) -> Self {
        let all = (0..connections).map(|_| open(fixture, settings)).collect();
        Self {
            fixture,
            settings: settings.to_owned(),
            connections: all,
            latest: VecDeque::new(),
            answered: 0,
        }
    }

    /// Runs a statement on both connections of a pair and compares the answers.
    pub fn run(&mut self, connection: usize, sql: &str) {
        // With `ppl`, SQLite on Duralite cannot map the database file. If stock SQLite mapped its own file,
        // the two would cache and spill different pages. So the test maps neither file.
        let maps = Engine::under_test() != Engine::PPL || !sql.starts_with("PRAGMA mmap_size");
        let sql = if maps { sql } else { "PRAGMA mmap_size=0" };
        let both = &self.connections[connection];
        let (ours, theirs) = (Outcome::of(run(&both.ours, sql)), Outcome::of(run(&both.theirs, sql)));
        let note = match &theirs {
            Outcome::Rows(rows) => format!("{} rows", rows.len()),
            Outcome::Error(code, text) => format!("error {code}: {text}"),
        };
        self.note(format!("{connection}: {sql} -> {note}"));
        self.answered += u64::from(matches!(theirs, Outcome::Rows(_)));
        if ours != theirs {
            let why = run(&self.connections[connection].ours, "SELECT duralite_last_error()");
            self.fail(&format!("Duralite: {ours:?}, {why:?}\nstock: {theirs:?}"));
        }
        let state = |conn: &Connection| (conn.is_autocommit(), conn.changes(), conn.last_insert_rowid());
        let both = &self.connections[connection];
        if state(&both.ours) != state(&both.theirs) {
            self.fail(&format!("Duralite: {:?}\nstock: {:?}", state(&both.ours), state(&both.theirs)));
        }
    }

    /// Returns whether a connection is in a transaction.
    pub fn in_transaction(&self, connection: usize) -> bool {
        !self.connections[connection].theirs.is_autocommit()
    }

    /// Closes a connection, whatever state it is in, and opens another.
    pub fn reopen(&mut self, connection: usize) {
        self.note(format!("{connection}: close and open"));
        let alone = self.connections.len() == 1;
        let both = self.connections.remove(connection);
        drop(both);
        if alone {
            self.fixture.assert_plain("ours.db");
        }
        self.connections.insert(connection, open(self.fixture, &self.settings));
    }

    /// Closes every connection.
    pub fn finish(self) {
        for both in self.connections {
            both.ours.close().unwrap();
            both.theirs.close().unwrap();
        }
    }

    fn note(&mut self, line: String) {
        let line = if line.len() > 300 { format!("{}...", &line[..300]) } else { line };
        self.latest.push_back(line);
        if self.latest.len() > SHOWN {
            self.latest.pop_front();
        }
    }

    fn fail(&self, what: &str) -> ! {
        for line in &self.latest {
            eprintln!("{line}");
        }
        panic!("the answers differ\n{what}");
    }
}
