//! Waiting for other processes: one of them may be stopped, and then it would be for ever. So whatever is waited
//! for is tried again, as often as the caller has patience for.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

/// Pauses before try number n, counted from 0; `false` when there is no patience left.
pub type Pause<'a> = &'a dyn Fn(u32) -> bool;

const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);

/// How long somebody waits for processes that open a log, or that die, who has no busy handler to ask.
const PATIENCE: Duration = Duration::from_secs(2);

/// The patience of somebody who has no busy handler to ask: two seconds.
pub(crate) fn pause() -> impl Fn(u32) -> bool {
    pause_for(PATIENCE)
}

/// Patience for so long.
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

/// Locks a file; whether that came about.
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

/// Locks a file if nobody is in the way; whether that came about. A signal is no reason to fail.
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
