//! Traces a command.

use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Once};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::{Trace, Tracer};

/// The time between two checks for signals.
const TICK: Duration = Duration::from_millis(2);
/// True while the tracer traces no command. Signals then have their default effect.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Whether the command must be terminated.
static TERMINATED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// While this value exists, a signal that would end this process has its effect only after the tracer has
/// removed its settings from the kernel.
struct Deferred;

impl Deferred {
    fn new() -> Result<Self> {
        static ONCE: Once = Once::new();
        IDLE.store(false, Ordering::SeqCst);
        let mut result: std::io::Result<()> = Ok(());
        ONCE.call_once(|| {
            result = [SIGINT, SIGTERM, SIGHUP].into_iter().try_for_each(|signal| {
                flag::register_conditional_default(signal, Arc::clone(&IDLE))?;
                // The terminal sends an interrupt to the command as well, so the tracer need not pass it on.
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
    /// Traces a command. An interrupt from the terminal reaches the command directly, so the command handles
    /// it. The tracer passes a request to terminate on to the command. In both cases the tracer removes its
    /// settings from the kernel.
    ///
    /// # Errors
    /// The errors of [`Tracer::run`]. If the command cannot be started, the cause is the [`std::io::Error`].
    /// If the command itself fails, its exit status says so.
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
