//! Starts the child processes, each in a process group of its own. An interrupt, or the end of the demonstration, kills
//! all of them.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

#[derive(Default)]
struct State {
    interrupted: AtomicBool,
    /// The ids of the child processes that the demonstration has not waited for yet. Each child leads its process
    /// group, so the id is also that of the group.
    groups: Mutex<Vec<Pid>>,
}

impl State {
    fn groups(&self) -> std::sync::MutexGuard<'_, Vec<Pid>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_all(&self) {
        for group in self.groups().iter() {
            // A group that has already ended needs no signal.
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}

/// All processes that the demonstration has started and has not waited for.
pub(crate) struct Processes(Arc<State>);

impl Processes {
    /// Begins to handle signals. After that, an interrupt or the loss of the terminal kills all processes, and
    /// [`Self::check`] reports the interrupt.
    ///
    /// # Errors
    /// An error if no signal handler can be installed.
    pub(crate) fn new() -> Result<Self> {
        let state = Arc::new(State::default());
        let (mut signals, seen) = (Signals::new([SIGHUP, SIGINT, SIGTERM])?, Arc::clone(&state));
        std::thread::spawn(move || {
            for _ in signals.forever() {
                seen.interrupted.store(true, Ordering::SeqCst);
                seen.end_all();
            }
        });
        Ok(Self(state))
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.interrupted.load(Ordering::SeqCst)
    }

    /// Checks whether an interrupt has come.
    ///
    /// # Errors
    /// An error after an interrupt.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_interrupted() {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Starts a process. The caller must pass it to [`Self::ended`].
    ///
    /// # Errors
    /// An error if the process cannot be started, or after an interrupt.
    pub(crate) fn start(&self, command: &mut Command) -> Result<Child> {
        let child = command.process_group(0).spawn();
        let child = child.with_context(|| format!("cannot run {}", command.get_program().display()))?;
        self.0.groups().extend(pid(&child));
        if self.is_interrupted() {
            self.0.end_all();
        }
        Ok(child)
    }

    /// Waits for a process, and reads the rest of its piped output.
    ///
    /// # Errors
    /// An error if the output cannot be read, or after an interrupt.
    pub(crate) fn ended(&self, child: Child) -> Result<Output> {
        let leader = pid(&child);
        let output = child.wait_with_output()?;
        self.0.groups().retain(|group| Some(*group) != leader);
        self.check()?;
        Ok(output)
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// An error if the command cannot be run, or after an interrupt.
    pub(crate) fn output(&self, command: &mut Command) -> Result<Output> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.ended(self.start(command)?)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}
