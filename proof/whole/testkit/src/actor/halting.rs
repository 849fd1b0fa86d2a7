//! Runs statements. Stops its own process just before SQLite takes or releases the file lock with the given
//! number. After `.close` has closed the connection, the next statement opens a new one.

use std::io::{BufRead, Write};

use duralite_testkit::{connect, halt_before_lock};
use rusqlite::Connection;

pub fn serve(uri: &str, lock: u64) {
    let mut conn: Option<Connection> = None;
    halt_before_lock(lock);
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&mut conn, uri, &line.unwrap());
        writeln!(out, "{}", answer.unwrap_or_else(|error| format!("error: {error}"))).unwrap();
        out.flush().unwrap();
    }
}

fn answer(conn: &mut Option<Connection>, uri: &str, line: &str) -> Result<String, String> {
    if line == ".close" {
        return match conn.take().map(Connection::close) {
            Some(Err((_, error))) => Err(error.to_string()),
            _ => Ok(String::new()),
        };
    }
    if conn.is_none() {
        *conn = Some(connect(uri).map_err(|error| error.to_string())?);
    }
    conn.as_ref().map_or(Ok(String::new()), |conn| super::sql::answer(conn, line))
}
