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

use anyhow::{Result, ensure};

/// Makes the VFS `duralite` known to the SQLite that this crate is linked with.
///
/// # Errors
/// When SQLite refuses the extension.
#[allow(unsafe_code, reason = "handing the entry point to SQLite is an FFI call")]
pub fn register() -> Result<()> {
    static ONCE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let done = *ONCE.get_or_init(|| {
        type Entry = unsafe extern "C" fn(
            *mut rusqlite::ffi::sqlite3,
            *mut *mut std::ffi::c_char,
            *const rusqlite::ffi::sqlite3_api_routines,
        ) -> std::ffi::c_int;
        // SAFETY: the entry point has the signature that SQLite calls auto-extensions with; the
        // declarations on both sides describe the same C types under different names.
        let entry: Entry = unsafe { std::mem::transmute(duralite::sqlite3_duralite_auto as *const ()) };
        // SAFETY: `entry` is a function of the program and lives as long as it does.
        let code = unsafe { rusqlite::ffi::sqlite3_auto_extension(Some(entry)) };
        let registered = code == 0 && rusqlite::Connection::open_in_memory().is_ok();
        // SAFETY: as above. The VFS is registered now; later connections need not run it again.
        unsafe { rusqlite::ffi::sqlite3_cancel_auto_extension(Some(entry)) };
        registered
    });
    ensure!(done, "SQLite refused the extension");
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
