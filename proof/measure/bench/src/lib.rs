//! The workloads with which Duralite is measured. They include the measurements of the papers on which
//! Duralite builds.
//!
//! Results are medians of several rounds. The benchmark measures each result together with its reference in
//! the same run. The command `duralite bench` runs these measurements.

pub mod archive;
pub mod concurrent;
pub mod counting;
pub mod disk;
pub mod everyday;
pub mod flush;
pub mod machine;
pub mod nvwal;
pub mod ppl;
pub mod report;
pub mod scratchpad;
pub mod waldio;
pub mod waldio_bytes;
pub mod waldio_trace;
pub mod workload;
pub mod writers;

use anyhow::Result;

/// Registers the VFS `duralite` with the SQLite that this crate is linked to.
///
/// # Errors
/// An error if SQLite refuses the extension.
pub fn register() -> Result<()> {
    duralite::register()?;
    Ok(())
}

/// Runs work that uses databases. If the work fails, adds the reason for Duralite's refusal to the error,
/// because SQLite's message lacks that reason.
///
/// # Errors
/// The errors of `work`.
pub fn with_reason<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = duralite::last_refusal();
    work().map_err(|error| match duralite::last_error() {
        Some(reason) if duralite::last_refusal() != before => error.context(reason),
        _ => error,
    })
}
