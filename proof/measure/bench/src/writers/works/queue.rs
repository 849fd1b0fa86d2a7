//! A queue. Writers put tasks in at one end, and take them out at the other.

use super::turn::{Effects, Turn, Workload};
use crate::writers::client::{Client, Done};

/// The number of tasks in the queue when a run begins.
const TASKS: i64 = 1000;
const PUT: &str = "INSERT INTO tasks(v, pad) VALUES(?1, substr(hex(zeroblob(50)),1,100))";

/// A workload in which each writer alternately puts a task into the queue and takes one out.
pub(super) struct Queue;

impl Workload for Queue {
    fn tables(&self) -> String {
        "CREATE TABLE tasks(id INTEGER PRIMARY KEY AUTOINCREMENT, v INTEGER NOT NULL, pad TEXT NOT NULL)"
            .to_owned()
    }

    fn fill(&self, client: &mut dyn Client, _: i64) -> Done<Effects> {
        for value in 0..TASKS {
            client.run(PUT, &[value])?;
        }
        Ok([TASKS, TASKS * (TASKS - 1) / 2, 0, 0])
    }

    fn work(&self, turn: &mut Turn<'_>) -> Done<Effects> {
        if turn.number.is_multiple_of(2) {
            let value = turn.random.i64(0..TASKS);
            turn.write(PUT, &[value])?;
            turn.think();
            return Ok([1, value, 0, 0]);
        }
        let Some(first) = turn.client.ask("SELECT min(id) FROM tasks", &[])? else {
            return Ok([0; 4]);
        };
        let value = turn.read("SELECT v FROM tasks WHERE id=?1", &[first])?;
        turn.write("DELETE FROM tasks WHERE id=?1", &[first])?;
        turn.think();
        Ok([-1, -value, 0, 0])
    }

    fn sums(&self) -> &'static [&'static str] {
        &["SELECT count(*) FROM tasks", "SELECT sum(v) FROM tasks"]
    }
}
