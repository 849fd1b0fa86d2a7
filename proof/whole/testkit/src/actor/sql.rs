//! Runs the statements from its input, one a line, and prints each result as one line.

use std::io::{BufRead, Write};

use duralite_testkit::{connect, run};
use rusqlite::Connection;
use rusqlite::types::Value;

pub fn serve(uri: &str) {
    serve_or(uri, |_| false);
}

/// Runs statements as [`serve`] does, but passes each line to `takes` first. If `takes` returns true, prints
/// an empty line, and does not run the line as a statement.
pub fn serve_or(uri: &str, takes: impl Fn(&str) -> bool) {
    let conn = connect(uri);
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let answer = conn.as_ref().map_err(ToString::to_string).and_then(|conn| {
            let line = line.unwrap();
            if takes(&line) {
                return Ok(String::new());
            }
            answer(conn, &line)
        });
        writeln!(out, "{}", answer.unwrap_or_else(|error| format!("error: {error}"))).unwrap();
        out.flush().unwrap();
    }
}

/// Returns the rows of a statement in one line, or SQLite's error.
pub fn answer(conn: &Connection, statement: &str) -> Result<String, String> {
    let rows = run(conn, statement).map_err(|error| error.to_string())?;
    Ok(rows.iter().map(|row| text(row)).collect::<Vec<_>>().join(" "))
}

fn text(row: &[Value]) -> String {
    let columns = row.iter().map(|value| match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        // Each answer must be one line.
        Value::Text(text) => text.replace('\n', ";"),
        Value::Blob(bytes) => format!("{} bytes", bytes.len()),
    });
    columns.collect::<Vec<_>>().join("|")
}
