//! Forks children, which inherit everything that their parent has open.
#![allow(unsafe_code)] // forks, and ends a child without what `exit` runs

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

/// A child, made by [`fork`].
#[derive(Debug)]
pub struct Forked(Pid);

/// The way in which a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The child exited, and its body returned `true`.
    Well,
    /// The child exited, and its body returned `false` or panicked.
    Badly,
    /// A signal with this number ended the child.
    Killed(i32),
}

impl Ended {
    /// Returns how a child with this status has ended.
    #[must_use]
    pub fn of(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => Self::Well,
            (_, Some(signal)) => Self::Killed(signal),
            _ => Self::Badly,
        }
    }
}

/// Forks. The child runs `body`, and ends without dropping any value of its parent.
///
/// # Panics
/// Panics if the fork fails.
pub fn fork(body: impl FnOnce() -> bool) -> Forked {
    // SAFETY: the child continues with this thread alone. Apart from functions of C it calls SQLite and
    // Duralite. The tests check that these work after a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork: {}", std::io::Error::last_os_error());
    let Some(child) = Pid::from_raw(pid) else {
        let good = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: the call ends the child, and touches no memory.
        unsafe { libc::_exit(i32::from(!good)) }
    };
    Forked(child)
}

impl Forked {
    /// Kills the child with SIGKILL. The child may have ended already.
    pub fn kill(&self) {
        let _ = kill_process(self.0, Signal::KILL);
    }

    /// Returns how the child has ended, or `None` if it still runs.
    #[must_use]
    pub fn try_wait(&self) -> Option<Ended> {
        waitpid(Some(self.0), WaitOptions::NOHANG).unwrap().map(|(_, status)| Ended::of(status))
    }

    /// Waits until the child has ended.
    #[must_use]
    pub fn wait(&self) -> Ended {
        let (_, status) = waitpid(Some(self.0), WaitOptions::empty()).unwrap().unwrap();
        Ended::of(status)
    }
}
