//! Tracing a command.

use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Once};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::{Trace, Tracer};

/// How often signals are looked for.
const TICK: Duration = Duration::from_millis(2);
/// Whether no command is traced: signals do then what they do by default.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Whether to end the command.
static TERMINATED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Signals that would end this process before it has taken down what it set up.
struct Deferred;

impl Deferred {
    fn new() -> Result<Self> {
        static ONCE: Once = Once::new();
        IDLE.store(false, Ordering::SeqCst);
        let mut result: std::io::Result<()> = Ok(());
        ONCE.call_once(|| {
            result = [SIGINT, SIGTERM, SIGHUP].into_iter().try_for_each(|signal| {
                flag::register_conditional_default(signal, Arc::clone(&IDLE))?;
                // An interrupt from the terminal reaches the command too.
                if signal == SIGINT {
                    return Ok(());
                }
                flag::register(signal, Arc::clone(&TERMINATED)).map(drop)
            });
        });
        result.context("cannot watch for signals")?;
        Ok(Self)
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        IDLE.store(true, Ordering::SeqCst);
    }
}

impl Tracer {
    /// Traces a command. An interrupt from the terminal is the command's to heed, as it gets it too; a
    /// request to terminate is passed on to it. What was set up in the kernel is taken down either way.
    ///
    /// # Errors
    /// As [`Tracer::run`], and when the command cannot be started: then with the [`std::io::Error`].
    /// The command's own failure is its status.
    pub fn command(self, command: &mut Command) -> Result<(Trace, ExitStatus)> {
        let _deferred = Deferred::new()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let (trace, status) = self.run(|| {
            let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
            wait(&mut child)
        })?;
        Ok((trace, status?))
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if TERMINATED.swap(false, Ordering::SeqCst)
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        std::thread::sleep(TICK);
    }
}
