//! Waiting for other processes. Since one of them may be stopped, nothing waits without limit: every attempt is
//! repeated as often as the caller's patience permits.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

/// Pauses before attempt number n, counted from 0. Returns `false` when the caller's patience has ended.
pub type Pause<'a> = &'a dyn Fn(u32) -> bool;

const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);

/// How long a caller without a busy handler waits for processes that open a log, or that are dying.
const PATIENCE: Duration = Duration::from_secs(2);

/// The patience of a caller without a busy handler: two seconds.
pub(crate) fn pause() -> impl Fn(u32) -> bool {
    pause_for(PATIENCE)
}

/// Patience for `limit`.
pub fn pause_for(limit: Duration) -> impl Fn(u32) -> bool {
    let start = Instant::now();
    move |tries| {
        let left = limit.saturating_sub(start.elapsed());
        std::thread::sleep(FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST).min(left));
        !left.is_zero()
    }
}

/// How a file is locked, by `flock`.
#[derive(Clone, Copy)]
pub(super) enum Lock {
    Shared,
    Exclusive,
}

/// Locks a file. Returns whether it got the lock.
pub(super) fn lock(file: &File, how: Lock, pause: Pause<'_>) -> io::Result<bool> {
    for tries in 0.. {
        if try_lock(file, how)? {
            return Ok(true);
        }
        if !pause(tries) {
            break;
        }
    }
    Ok(false)
}

/// Locks a file if no other process is in the way. Returns whether it got the lock. A signal does not make it fail.
pub(super) fn try_lock(file: &File, how: Lock) -> io::Result<bool> {
    loop {
        let tried = match how {
            Lock::Shared => file.try_lock_shared(),
            Lock::Exclusive => file.try_lock(),
        };
        match tried {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}
