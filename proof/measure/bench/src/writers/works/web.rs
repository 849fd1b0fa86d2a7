//! A web application: requests update their session, and some also write an event or increment a
//! counter.

use super::turn::{Effects, SHORT, Turn, Workload};
use crate::writers::client::{Client, Done};

const SESSIONS: i64 = 10_000;
const COUNTERS: i64 = 16;

/// The web application. Of ten requests, nine update their session, and three of these nine also write an
/// event. The tenth increments a counter.
pub(super) struct Web;

impl Workload for Web {
    fn tables(&self) -> String {
        "CREATE TABLE sessions(id INTEGER PRIMARY KEY, hits INTEGER NOT NULL, data TEXT NOT NULL);\
         CREATE TABLE events(id INTEGER PRIMARY KEY, session INTEGER NOT NULL, kind INTEGER NOT NULL);\
         CREATE INDEX events_of_session ON events(session);\
         CREATE TABLE counters(id INTEGER PRIMARY KEY, n INTEGER NOT NULL)"
            .to_owned()
    }

    fn fill(&self, client: &mut dyn Client, _: i64) -> Done<Effects> {
        let session = format!("INSERT INTO sessions VALUES(?1, 0, {SHORT})");
        for id in 0..SESSIONS {
            client.run(&session, &[id])?;
        }
        for id in 0..COUNTERS {
            client.run("INSERT INTO counters VALUES(?1, 0)", &[id])?;
        }
        Ok([0; 4])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        let kind = turn.random.i64(0..10);
        if kind == 9 {
            let counter = turn.random.i64(0..COUNTERS);
            turn.write("UPDATE counters SET n=n+1 WHERE id=?1", &[counter])?;
            turn.think();
            return Ok([0, 0, 1, 0]);
        }
        let session = turn.random.i64(0..SESSIONS);
        let hits = turn.read("SELECT hits FROM sessions WHERE id=?1", &[session])?;
        turn.think();
        turn.write("UPDATE sessions SET hits=?2 WHERE id=?1", &[session, hits + 1])?;
        if kind < 6 {
            return Ok([1, 0, 0, 0]);
        }
        turn.write("INSERT INTO events(session, kind) VALUES(?1, ?2)", &[session, kind])?;
        Ok([1, 1, 0, 0])
    }

    fn sums(&self) -> &'static [&'static str] {
        &[
            "SELECT sum(hits) FROM sessions",
            "SELECT count(*) FROM events",
            "SELECT sum(n) FROM counters",
            "SELECT count(*) FROM events LEFT JOIN sessions ON sessions.id=session WHERE sessions.id IS NULL",
        ]
    }
}
