//! `AndroBench`: 1,024 inserts, updates and deletes on one table of 17 columns. Each statement is a
//! transaction.

use crate::ppl::app::{App, Order, update};
use crate::ppl::model::Model;
use crate::ppl::paper::ANDROBENCH;
use rusqlite::types::Value;

const SCHEMA: &str = "
CREATE TABLE runs(_id INTEGER PRIMARY KEY, state INTEGER, started INTEGER);
CREATE TABLE records(_id INTEGER PRIMARY KEY AUTOINCREMENT, c1 TEXT, c2 TEXT, c3 TEXT, c4 TEXT, c5 TEXT,
    c6 TEXT, c7 TEXT, c8 TEXT, c9 INTEGER, c10 INTEGER, c11 INTEGER, c12 INTEGER, c13 INTEGER, c14 INTEGER,
    c15 REAL, c16 REAL);
";

/// The number of transactions before the three phases.
const RUN: u32 = 10;

pub(super) static APP: App = App {
    paper: &ANDROBENCH,
    schema: SCHEMA,
    fill: &[],
    reads_alone: 0,
    order: Order::Phases(&[RUN, 1024, 1024, 1024]),
    kinds: &[
        update((0, 0), "INSERT INTO runs(_id, state, started) VALUES(?1, ?2, ?3)", |model| {
            vec![model.append("runs"), model.number(4), model.now()]
        }),
        update(
            (0, 0),
            "INSERT INTO records VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            |model| {
                let mut values = vec![model.append("records")];
                values.extend(columns(model));
                values
            },
        ),
        update(
            (0, 0),
            "UPDATE records SET c1=?2, c2=?3, c3=?4, c4=?5, c5=?6, c6=?7, c7=?8, c8=?9, c9=?10, c10=?11, c11=?12, \
             c12=?13, c13=?14, c14=?15, c15=?16, c16=?17 WHERE _id=?1",
            |model| {
                // The statements update each row once, in the order of the rows.
                let mut values = vec![model.append("updated")];
                values.extend(columns(model));
                values
            },
        ),
        update((0, 0), "DELETE FROM records WHERE _id=?1", |model| vec![model.remove_oldest("records")]),
    ],
};

/// Draws values for all columns but the key.
fn columns(model: &mut Model) -> Vec<Value> {
    let mut values: Vec<Value> = (0..8).map(|_| model.text(12..16)).collect();
    values.extend((0..6).map(|_| model.number(1 << 20)));
    values.extend((0..2).map(|_| {
        let Value::Integer(number) = model.number(1 << 20) else { return Value::Null };
        Value::Real(number as f64 / 7.0)
    }));
    values
}
