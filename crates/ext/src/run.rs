//! Runs a transaction again if it fails because of another connection's transaction.

use std::hash::{BuildHasher as _, RandomState};
use std::thread;
use std::time::Duration;

use duralite_sqlite_ffi as ffi;

/// After this many conflicts, a transaction takes the write lock when it begins.
const CONFLICTS: u32 = 5;
/// The longest pause before the second attempt, in microseconds. The limit doubles with each further attempt.
const PAUSE: u64 = 2000;

/// Runs a transaction. If the transaction loses a conflict with another connection (`SQLITE_BUSY`,
/// `SQLITE_BUSY_SNAPSHOT`), runs it again after a short random pause. After five conflicts the transaction
/// takes the write lock when it begins, so that it can lose no further conflict. Returns every other error.
/// After some errors of `COMMIT`, it is not known whether the transaction is committed.
///
/// `transaction` must begin a transaction in the way that [`Attempts`] says, do its work, and commit. If it
/// fails, it must roll back, as drivers do when their transaction object is dropped. It may run several
/// times, so it should change nothing but the database. `code` takes an error of the driver and returns
/// SQLite's result code, extended or not.
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

/// A count of the attempts at one transaction. Asynchronous drivers, which cannot wait as [`run`] does, use
/// this type directly.
#[derive(Debug, Default)]
pub struct Attempts {
    conflicts: u32,
}

impl Attempts {
    /// Returns whether this attempt must take the write lock when it begins. If so, there is no further
    /// attempt after this one.
    pub fn takes_lock(&self) -> bool {
        self.conflicts == CONFLICTS
    }

    /// Returns the statement that begins this attempt.
    pub fn begin(&self) -> &'static str {
        if self.takes_lock() { "BEGIN IMMEDIATE" } else { "BEGIN" }
    }

    /// Returns how long to wait before the next attempt, after an attempt that failed with this code and was
    /// rolled back. Returns `None` if there is no next attempt, because the error is not a conflict, or
    /// because this was the last attempt.
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
