//! Duralite's workloads, and the measurements of the papers it builds on.
//!
//! Figures are medians of several rounds, taken beside what they are compared with in the same
//! run; nothing here is a test. `duralite bench` is the front end.

pub mod concurrent;
pub mod counting;
pub mod everyday;
pub mod flush;
pub mod machine;
pub mod nvwal;
pub mod ppl;
pub mod report;
pub mod scratchpad;
pub mod waldio;
pub mod workload;

use anyhow::Result;

/// Makes the VFS `duralite` known to the SQLite that this crate is linked with.
///
/// # Errors
/// When SQLite refuses the extension.
pub fn register() -> Result<()> {
    duralite::register()?;
    Ok(())
}

/// Does what uses databases; an error says why Duralite refused, which SQLite's text does not.
///
/// # Errors
/// Those of the work.
pub fn with_reason<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = duralite::last_refusal();
    work().map_err(|error| match duralite::last_error() {
        Some(reason) if duralite::last_refusal() != before => error.context(reason),
        _ => error,
    })
}
