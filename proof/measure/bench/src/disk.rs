//! Makes a disk whose writes can be traced.

use anyhow::{Result, ensure};
use duralite_iotrace::{Trace, Tracer};
use duralite_testkit::LoopDisk;

/// The note under a table whose values need a traceable disk, if this machine cannot make one.
pub const NOT_TRACED: &str = "Not measured: needs root, mkfs.ext4, loop devices and tracefs.";

/// Makes a loop device with ext4 that can be traced. Returns `None` and prints the reason if that fails.
#[must_use]
pub fn traceable(mebibytes: u64) -> Option<LoopDisk> {
    let disk = LoopDisk::new(mebibytes)?;
    match Tracer::at(&disk.path()).run(|| ()) {
        Ok(_) => Some(disk),
        Err(error) => {
            eprintln!("writes are not told apart, because they cannot be traced: {error:#}");
            None
        }
    }
}

/// Traces what `body` writes. Returns the trace, and what `body` returns.
///
/// # Errors
/// An error of `body` or of the tracer; events of the trace were lost.
pub fn traced<T>(tracer: Tracer, body: impl FnOnce() -> Result<T>) -> Result<(Trace, T)> {
    let (trace, done) = tracer.run(body)?;
    ensure!(trace.lost == 0, "{} events of the trace were lost", trace.lost);
    Ok((trace, done?))
}
