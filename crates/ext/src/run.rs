//! Transactions that run again when another connection has overtaken them.

use std::hash::{BuildHasher as _, RandomState};
use std::thread;
use std::time::Duration;

use duralite_sqlite_ffi as ffi;

/// How often a transaction may lose to others before it takes the write lock when it begins.
const CONFLICTS: u32 = 5;
/// The longest pause before the second attempt, in microseconds. Each one after it may be twice as long.
const PAUSE: u64 = 2000;

/// Runs a transaction, and runs it again if it has lost to another connection (`SQLITE_BUSY`,
/// `SQLITE_BUSY_SNAPSHOT`), after a short random pause. After five conflicts it takes the write lock when it
/// begins, and cannot lose any more. Every other error is returned, also one of `COMMIT` that leaves open
/// whether the transaction is committed.
///
/// `transaction` begins as it is told, works, and commits; where it fails it rolls back, as drivers do when
/// their transaction is dropped. It may run several times, so it should change nothing but the database. `code`
/// is SQLite's code of an error of the driver's, extended or not.
///
/// ```
/// use rusqlite::{Connection, TransactionBehavior};
///
/// # let directory = tempfile::tempdir()?;
/// # std::env::set_current_dir(&directory)?;
/// duralite::register()?;
/// let mut conn = Connection::open(duralite::uri("app.db", &[("concurrent", "on")]))?;
/// conn.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES(0)")?;
/// let code = |error: &rusqlite::Error| error.sqlite_error().map(|error| error.extended_code);
/// duralite::run(code, |attempts| {
///     let takes_lock = attempts.takes_lock();
///     let behavior = if takes_lock { TransactionBehavior::Immediate } else { TransactionBehavior::Deferred };
///     let transaction = conn.transaction_with_behavior(behavior)?;
///     transaction.execute("UPDATE t SET x = x + 1", [])?;
///     transaction.commit()
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What `transaction` returns.
pub fn run<T, E>(
    code: impl Fn(&E) -> Option<i32>,
    mut transaction: impl FnMut(&Attempts) -> Result<T, E>,
) -> Result<T, E> {
    let mut attempts = Attempts::default();
    loop {
        let error = match transaction(&attempts) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match attempts.pause_after(code(&error)) {
            Some(pause) => thread::sleep(pause),
            None => return Err(error),
        }
    }
}

/// The attempts at one transaction: for drivers that wait in another way than [`run`] does, asynchronous ones.
#[derive(Debug, Default)]
pub struct Attempts {
    conflicts: u32,
}

impl Attempts {
    /// Whether this attempt takes the write lock when it begins. Then it is the last one.
    pub fn takes_lock(&self) -> bool {
        self.conflicts == CONFLICTS
    }

    /// The statement that begins this attempt.
    pub fn begin(&self) -> &'static str {
        if self.takes_lock() { "BEGIN IMMEDIATE" } else { "BEGIN" }
    }

    /// After an attempt that failed with this code, and was rolled back: how long to wait before the next one.
    /// `None` where there is none, because this was the last one, or the transaction has not lost to another.
    pub fn pause_after(&mut self, code: Option<i32>) -> Option<Duration> {
        let has_lost = code.is_some_and(|code| code & 0xff == ffi::BUSY);
        if self.takes_lock() || !has_lost {
            return None;
        }
        let longest = PAUSE << self.conflicts;
        self.conflicts += 1;
        Some(Duration::from_micros(RandomState::new().hash_one(self.conflicts) % longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_takes_the_lock() {
        let mut begins = Vec::new();
        let failed = run(
            |code| Some(*code),
            |attempts| -> Result<(), i32> {
                begins.push(attempts.begin());
                Err(ffi::BUSY_SNAPSHOT)
            },
        );
        assert_eq!(failed, Err(ffi::BUSY_SNAPSHOT));
        assert_eq!(begins, ["BEGIN", "BEGIN", "BEGIN", "BEGIN", "BEGIN", "BEGIN IMMEDIATE"]);
    }

    #[test]
    fn only_a_conflict_is_run_again() {
        for (code, expected) in
            [(Some(ffi::BUSY), 2), (Some(ffi::BUSY_SNAPSHOT), 2), (Some(ffi::IOERR), 1), (None, 1)]
        {
            let mut count = 0;
            let done = run(
                |()| code,
                |_| {
                    count += 1;
                    if count == 1 { Err(()) } else { Ok(()) }
                },
            );
            assert_eq!((count, done.is_ok()), (expected, expected == 2), "{code:?}");
        }
    }

    #[test]
    fn pauses_grow() {
        let mut attempts = Attempts::default();
        for longest in [2, 4, 8, 16, 32] {
            assert!(attempts.pause_after(Some(ffi::BUSY)).unwrap() < Duration::from_millis(longest));
        }
        assert_eq!(attempts.pause_after(Some(ffi::BUSY)), None);
    }
}
