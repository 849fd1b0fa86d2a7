//! Moves money between accounts, or checks that the sum does not change.

use std::path::Path;
use std::time::Duration;

use duralite_testkit::{Rng, connect, one, run};
use rusqlite::Connection;

fn patient(uri: &str) -> Connection {
    // An open may fail while another process writes or removes the guard in the database's header, so try
    // again.
    for _ in 0..100 {
        if let Ok(conn) = connect(uri) {
            conn.busy_timeout(Duration::from_secs(30)).unwrap();
            return conn;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    connect(uri).unwrap()
}

/// Makes `count` transfers and prints `done`.
pub fn transfer(uri: &str, seed: u64, count: u64) {
    let conn = patient(uri);
    let mut rng = Rng::new(seed);
    let accounts: u64 = one::<i64>(&conn, "SELECT count(*) FROM accounts").try_into().unwrap();
    for _ in 0..count {
        let (from, to, amount) = (rng.below(accounts), rng.below(accounts), rng.below(100));
        let transfer = format!(
            "BEGIN IMMEDIATE;
             UPDATE accounts SET balance = balance - {amount} WHERE id = {from};
             UPDATE accounts SET balance = balance + {amount} WHERE id = {to};
             INSERT INTO history(who, amount) VALUES({seed}, {amount});"
        );
        conn.execute_batch(&transfer).unwrap();
        let end = if rng.chance(8) { "ROLLBACK" } else { "COMMIT" };
        conn.execute_batch(end).unwrap();
    }
    println!("done");
}

/// Checks the sum until the file `stop` exists. Prints how many states of the database it has seen.
pub fn audit(uri: &str, total: i64, stop: &str) {
    let conn = patient(uri);
    println!("ready");
    let (mut seen, mut states) = (-1, 0);
    while !Path::new(stop).exists() {
        let rows = run(
            &conn,
            "SELECT (SELECT sum(balance) FROM accounts), (SELECT count(*) FROM history),
                    (SELECT coalesce(max(id), 0) FROM history)",
        );
        let row = rows.unwrap().remove(0);
        let [sum, count, newest] = [0, 1, 2].map(|column: usize| match row[column] {
            rusqlite::types::Value::Integer(number) => number,
            ref other => panic!("{other:?}"),
        });
        assert_eq!(sum, total, "the sum changed");
        assert_eq!(count, newest, "the history has a hole");
        assert!(count >= seen, "the history went back from {seen} to {count}");
        states += i64::from(count > seen);
        seen = count;
    }
    println!("{states}");
}
