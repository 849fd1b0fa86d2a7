//! A process of a schedule. The leader starts it, kills it, and waits for its end.
#![allow(unsafe_code)] // forks, and ends a child without what `exit` runs

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::board::board;
use crate::me;
use crate::watch;

/// A process that has been started.
pub struct Child {
    /// The number of the process on the board.
    pub process: usize,
    pid: Pid,
}

impl Child {
    /// Starts a process. The process waits for its first turn, runs `work`, and ends. A panic in `work` is a
    /// finding.
    pub fn start(process: usize, work: impl FnOnce()) -> Self {
        board().processes[process].alive.store(true, SeqCst);
        // SAFETY: this program has only one thread, so the child may call SQLite and Duralite.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no fork: {}", std::io::Error::last_os_error());
        if let Some(pid) = Pid::from_raw(pid) {
            return Self { process, pid };
        }
        // If the leader is killed, this process must end too. Otherwise it would wait for its turn for ever.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        me::become_process(process);
        watch::begin();
        board().begin(process);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
            board().finding(process, format_args!("{text}"));
        }
        board().done(process);
        // SAFETY: the call ends this process, and touches no memory.
        unsafe { libc::_exit(0) }
    }

    /// Waits until the process has ended.
    pub fn reap(&self) {
        board().processes[self.process].alive.store(false, SeqCst);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }

    pub fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
        self.reap();
    }
}
