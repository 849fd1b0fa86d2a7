//! Finds the directories of the crates in the workspace.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::path::{Path, PathBuf};

/// The directories that hold crates. A crate's directory may contain the directories of other crates.
const ROOMS: [&str; 4] = ["archive", "crates", "store", "proof"];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Returns the directory of each crate, as a path in the repository, sorted.
pub fn crates() -> Vec<String> {
    let root = root();
    let mut found = Vec::new();
    for room in ROOMS {
        collect(&root, room, &mut found);
    }
    found.sort();
    found
}

fn collect(root: &Path, dir: &str, found: &mut Vec<String>) {
    let path = root.join(dir);
    if path.join("Cargo.toml").is_file() {
        found.push(dir.to_owned());
    }
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !["src", "tests", "target"].contains(&name.as_str()) {
            collect(root, &format!("{dir}/{name}"), found);
        }
    }
}
