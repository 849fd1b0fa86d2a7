//! Asks SQLite to check the database that the salvage wrote.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use duralite_format::guard::{DatabaseHeader, HEADER_BYTES, inspect};

use crate::program;
use crate::run::SHELL;

/// Returns the result of SQLite's `integrity_check`; `None` if SQLite's shell is not installed.
pub(super) fn check(out: &Path) -> Result<Option<String>> {
    let mut header = [0; HEADER_BYTES];
    let is_database = File::open(out).and_then(|mut file| file.read_exact(&mut header));
    if is_database.is_err() || !matches!(inspect(&header), DatabaseHeader::Plain { .. }) {
        return Ok(Some("it is no SQLite database".to_owned()));
    }
    let Ok(shell) = program::find(SHELL.as_ref()) else { return Ok(None) };
    // Pass the name as a URI with `immutable=1`. Otherwise SQLite would create files beside a database in WAL mode.
    let name = uri_of(&std::path::absolute(out)?);
    let output = Command::new(shell)
        .args(["-batch", "-init", "/dev/null"])
        .arg(name)
        .arg("PRAGMA integrity_check(20)")
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok(Some(String::from_utf8_lossy(&said).trim().to_owned()))
}

fn uri_of(path: &Path) -> std::ffi::OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut uri = b"file:".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' | b'?' | b'#' => uri.extend(format!("%{byte:02x}").bytes()),
            byte => uri.push(*byte),
        }
    }
    uri.extend(b"?immutable=1");
    std::ffi::OsString::from_vec(uri)
}
