//! Uses the system's SQLite, and loads Duralite into it as an application would.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

/// The environment variable with the path of libduralite.so, if that file is not beside this program.
const VARIABLE: &str = "DURALITE_LIBRARY";

/// Returns the path of a file that the build leaves beside this program.
///
/// # Errors
/// An error if the file is missing.
pub(crate) fn built(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is missing; run `make demo`, which builds it", path.display());
    Ok(path)
}

/// Returns the path of libduralite.so.
///
/// # Errors
/// An error if the file is missing.
pub(crate) fn library() -> Result<PathBuf> {
    let Some(named) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        return built("libduralite.so");
    };
    ensure!(named.is_file(), "{}, which {VARIABLE} names, is missing", named.display());
    Ok(named)
}

/// Loads libduralite.so through a connection that it then closes. The VFS stays registered until the process ends.
///
/// # Errors
/// An error if the library is missing, or if SQLite cannot load it.
pub(crate) fn load_duralite() -> Result<()> {
    load(&library()?)
}

#[allow(unsafe_code)]
fn load(library: &Path) -> Result<()> {
    let conn = Connection::open_in_memory()?;
    // SAFETY: the library is an SQLite extension that was built with this program or that the user named. This
    // connection runs no other SQL while it allows extensions.
    let loaded = unsafe {
        conn.load_extension_enable()?;
        conn.load_extension(library, None::<&str>)
    };
    conn.load_extension_disable()?;
    loaded.with_context(|| format!("cannot load {}", library.display()))
}

/// Returns the version of SQLite that this process uses, and where its library comes from.
pub(crate) fn describe() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let shared = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.contains("/libsqlite3.so"));
    match shared {
        Some(path) => format!("SQLite {} of this system ({path})", rusqlite::version()),
        None => format!("SQLite {}, built into this program", rusqlite::version()),
    }
}
