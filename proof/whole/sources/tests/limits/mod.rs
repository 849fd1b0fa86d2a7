//! Reads and measures the source files.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

pub mod constants;
pub mod dependencies;
pub mod functions;
pub mod modules;

use std::path::{Path, PathBuf};

use crate::rooms::root;

/// A source file, by its path in the repository.
pub struct File {
    pub path: String,
    pub text: String,
}

/// Returns the files below these directories whose names have one of these endings.
pub fn files(below: &[&str], ends: &[&str]) -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    for dir in below {
        collect(&root.join(dir), ends, &mut found);
    }
    assert!(!found.is_empty(), "no source in {below:?}");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.iter().map(|path| File { path: name(path), text: std::fs::read_to_string(path).unwrap() }).collect()
}

fn collect(dir: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, ends, found);
            }
        } else if path.extension().is_some_and(|end| ends.iter().any(|one| end == *one)) {
            found.push(path);
        }
    }
}
