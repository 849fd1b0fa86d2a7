//! Finds dependencies that no source uses.

use super::files;
use crate::rooms::{self, root};

/// Returns `crate: dependency` for each dependency that no source of the crate names.
pub fn unused() -> Vec<String> {
    let mut crates = rooms::crates();
    crates.push("fuzz".to_owned());
    let mut found = Vec::new();
    for dir in &crates {
        let manifest = std::fs::read_to_string(root().join(dir).join("Cargo.toml")).unwrap();
        let mut sources = files(&[dir], &["rs"]);
        let inside: Vec<String> = crates
            .iter()
            .filter(|other| other.starts_with(&format!("{dir}/")))
            .map(|other| format!("{other}/"))
            .collect();
        sources.retain(|file| !inside.iter().any(|other| file.path.starts_with(other)));
        sources.extend(elsewhere(dir, &manifest));
        let is_test = |path: &str| path.starts_with(&format!("{dir}/tests/"));
        let (tests, product): (Vec<_>, Vec<_>) = sources.iter().partition(|file| is_test(&file.path));
        let texts = |files: &[&super::File]| files.iter().map(|file| file.text.clone()).collect::<Vec<_>>();
        let (product, tests) = (texts(&product), texts(&tests));
        let product: Vec<&str> = product.iter().map(String::as_str).collect();
        let tests: Vec<&str> = tests.iter().map(String::as_str).collect();
        found.extend(unused_in(&manifest, &product, &tests).into_iter().map(|name| format!("{dir}: {name}")));
    }
    found
}

/// Returns the source files of the crate's programs. Leaves out those in the crate's own directory.
fn elsewhere(dir: &str, manifest: &str) -> Vec<super::File> {
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
    let outside = paths.filter(|path| path.starts_with("..") && path.ends_with(".rs"));
    let read = |path: &str| std::fs::read_to_string(root().join(dir).join(path)).unwrap();
    outside.map(|path| super::File { path: path.to_owned(), text: read(path) }).collect()
}

/// Returns the unused dependencies of a manifest. An ordinary dependency counts as used if a file in
/// `product` names it. A dependency of the tests counts as used if any file names it.
pub fn unused_in(manifest: &str, product: &[&str], tests: &[&str]) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(name) = line.trim().strip_prefix('[') {
            section = name.trim_end_matches(']');
            continue;
        }
        let Some((key, _)) = line.split_once('=') else { continue };
        let name = key.trim().split('.').next().unwrap_or_default();
        let uses = |texts: &[&str]| texts.iter().any(|text| names(text, &name.replace('-', "_")));
        let used = match section {
            "dependencies" => uses(product),
            "dev-dependencies" => uses(product) || uses(tests),
            _ => true,
        };
        if !used {
            found.push(name.to_owned());
        }
    }
    found
}

/// Returns whether the text contains the word as a whole word.
fn names(text: &str, word: &str) -> bool {
    let belongs = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(belongs) && !text[at + word.len()..].starts_with(belongs))
}
