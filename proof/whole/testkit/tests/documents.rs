//! Checks the documents: every link has a target, every page is in the table of contents, and the front page
//! stays short.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The most lines of the front page.
const FRONT_PAGE: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// The files below these directories that have one of these extensions.
fn files_below(directories: &[&str], extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories: Vec<_> = directories.iter().map(|name| root().join(name)).collect();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if extensions
                .iter()
                .any(|extension| path.extension().is_some_and(|found| found == *extension))
            {
                found.push(path);
            }
        }
    }
    found
}

/// The documents to check: those beside the front page, all below `docs`, and those beside the code.
fn documents() -> Vec<PathBuf> {
    let beside = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        beside.filter(|path| path.extension().is_some_and(|found| found == "md")).collect();
    found.extend(files_below(&["docs", "crates", "store", "proof"], &["md"]));
    found
}

/// The targets of links in Markdown, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        let outside: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        if !in_block {
            found.extend(
                outside.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned),
            );
        }
    }
    found
}

/// The anchor of a heading: its words in lower case, with hyphens between.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

/// The targets of a document's links to other documents or into itself: the link's text, the file and the
/// heading.
fn targets(document: &Path) -> Vec<(String, PathBuf, String)> {
    let text = std::fs::read_to_string(document).unwrap();
    let local = links(&text).into_iter().filter(|link| !link.contains("://"));
    let target = |link: String| {
        let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
        let file = if path.is_empty() { document.to_owned() } else { document.parent().unwrap().join(path) };
        let heading = heading.to_owned();
        (link, file, heading)
    };
    local.map(target).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for document in documents() {
        for (link, file, heading) in targets(&document) {
            let leads = file.exists()
                && (heading.is_empty()
                    || anchors(&std::fs::read_to_string(&file).unwrap()).contains(&heading));
            if !leads {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = links(&summary).into_iter().map(|link| docs.join(link)).collect();
    let pages =
        documents().into_iter().filter(|path| path.starts_with(&docs) && !path.ends_with("SUMMARY.md"));
    assert_eq!(pages.collect::<BTreeSet<_>>(), listed);
}

/// Only pages below `docs` are on the site.
#[test]
fn pages_link_to_pages_only() {
    let docs = root().join("docs");
    let pages = documents().into_iter().filter(|path| path.starts_with(&docs));
    let leads_out = |page: &PathBuf| {
        targets(page)
            .iter()
            .any(|(_, file, _)| file.canonicalize().is_ok_and(|file| !file.starts_with(&docs)))
    };
    let outside: Vec<_> = pages.filter(leads_out).collect();
    assert!(outside.is_empty(), "{outside:#?}");
}

/// The text of all Rust and Python files that may have tests.
fn sources() -> String {
    let files = files_below(&["crates", "store", "proof", "python"], &["rs", "py"]);
    files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Whether a text has a name, not only as the beginning of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| !text[at + word.len()..].starts_with(is_name))
}

/// The page on invariants must have no number twice, and the code and tests that it names must exist.
#[test]
fn the_page_on_invariants_is_true() {
    let page = std::fs::read_to_string(root().join("docs/invariants.md")).unwrap();
    let sources = sources();
    let is_wrong = |word: &&str| {
        let is_path = ["crates/", "store/", "proof/", "python/"].iter().any(|room| word.starts_with(room));
        let is_test =
            word.starts_with("inv") && word.contains('_') && !word.contains(' ') && !word.contains("...");
        is_path && !root().join(word).exists() || is_test && !has_word(&sources, word)
    };
    let wrong: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let numbers: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("**")?.split_once(". ")).map(|(n, _)| n).collect();
    assert!(numbers.len() > 40);
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len(), "{numbers:?}");
    for at in page.split("\n**").skip(1) {
        assert!(at.contains("- Kept by: ") && at.contains("- Attacked by: "), "{at}");
    }
}

/// The page on compatibility: the files that it names must exist, it must name every directory of golden
/// files, and its version of the written format must be that of the format's document.
#[test]
fn the_page_on_compatibility_is_true() {
    let docs = root().join("docs");
    let page = std::fs::read_to_string(docs.join("compatibility.md")).unwrap();
    let is_path = |word: &&str| ["testdata/", "crates/", "store/"].iter().any(|room| word.starts_with(room));
    let named: BTreeSet<&str> = page.split('`').filter(is_path).collect();
    for name in &named {
        assert!(root().join(name).exists(), "{name}");
    }
    for dir in ["testdata/format", "store/testdata"] {
        for entry in std::fs::read_dir(root().join(dir)).unwrap() {
            let name = format!("{dir}/{}", entry.unwrap().file_name().display());
            assert!(
                name.ends_with("README.md") || named.contains(name.as_str()),
                "{name} is not on the page"
            );
        }
    }
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| [")).collect();
    assert_eq!(rows.len(), 5, "a row for each format with a version");
    for row in rows {
        let format = std::fs::read_to_string(docs.join(&links(row)[0])).unwrap();
        let written = row.split('|').nth(2).unwrap().trim();
        let heading = format.lines().next().unwrap();
        assert!(heading.ends_with(&format!("version {written}")), "{heading}: {row}");
    }
}

#[test]
fn the_front_page_is_short() {
    let lines = std::fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines < FRONT_PAGE, "{lines} lines");
}

#[test]
fn links_in_code_are_none() {
    assert_eq!(links("[a](b#c) `[d](e)`\n```\n[f](g)\n```\n[h](i)"), ["b#c", "i"]);
    assert_eq!(anchor(" Is my `data` safe?"), "is-my-data-safe");
}
