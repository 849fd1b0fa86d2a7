//! Checks the documents: every link has a target, every page is in the table of contents, and the front page
//! stays short.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::rooms::root;

/// The largest number of lines on the front page.
const FRONT_PAGE: usize = 100;

/// Returns the files below these directories that have one of these extensions.
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

/// Returns the documents to check: those in the root directory, all below `docs`, and those in the directories of code.
pub(crate) fn documents() -> Vec<PathBuf> {
    let beside = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        beside.filter(|path| path.extension().is_some_and(|found| found == "md")).collect();
    found.extend(files_below(&["docs", "archive", "crates", "store", "proof"], &["md"]));
    found
}

/// Returns the targets of links in Markdown, outside of code.
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

/// Returns the anchor of a heading: its words in lower case, joined by hyphens.
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

/// Returns the targets of a document's links to itself or to other documents. Each item has the link's text, the file,
/// and the heading.
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

/// The website has only the pages below `docs`, so these pages must not link to other files.
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

/// Returns the Rust and Python files that may have tests, by path, with their text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let files =
        files_below(&["archive", "crates", "store", "proof", "python", "fuzz/fuzz_targets"], &["rs", "py"]);
    let read = |path: PathBuf| {
        (path.strip_prefix(&root).unwrap().display().to_string(), std::fs::read_to_string(&path).unwrap())
    };
    files.into_iter().map(read).collect()
}

/// Returns the name of the function whose definition begins in this line. If the line is an entry in a list from which
/// a macro makes tests, returns the name of that test.
fn function(line: &str) -> Option<&str> {
    let after = |keyword| line.split_once(keyword).map(|(_, rest)| rest);
    let listed = Some(line.trim_start()).filter(|line| line.starts_with("inv"));
    let rest = after("fn ").or_else(|| after("def ")).or(listed)?;
    rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

/// Returns the comment in a line. For a line without a comment, returns a full stop, because such a line ends a
/// sentence in the comments above it.
fn comment(line: &str) -> &str {
    line.split_once("//").map_or(".", |(_, comment)| comment.trim_start_matches(['/', '!']))
}

/// Returns the invariants that the comments of a source name by number, alone or in lists: "invariant 3", "invariants 4
/// to 6, 8 and 9", "Invariants kept here: 1, 2".
fn invariants_in_comments(source: &str) -> BTreeSet<u32> {
    let words: Vec<&str> = source.lines().map(comment).flat_map(str::split_whitespace).collect();
    let mut found = BTreeSet::new();
    let mut rest = &words[..];
    while let [word, after @ ..] = rest {
        rest = after;
        let word = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        if word != "invariant" && word != "invariants" {
            continue;
        }
        if let ["kept", "here:", after @ ..] = rest {
            rest = after;
        }
        let (mut last, mut first) = (0, None);
        while let [word, after @ ..] = rest {
            let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
            let (number, end) = word.split_at(digits);
            match (number.parse(), end) {
                (Ok(number), _) => {
                    found.extend(first.take().unwrap_or(number)..=number);
                    last = number;
                }
                (Err(_), "to") => first = Some(last),
                (Err(_), "and") => {}
                (Err(_), _) => break,
            }
            rest = after;
            if !["", ",", "to", "and"].contains(&end) {
                break;
            }
        }
    }
    found
}

/// An invariant as docs/invariants.md states it: its number, the words in backticks after "Kept by", and those after
/// "Attacked by".
struct Invariant<'a> {
    number: u32,
    kept_by: Vec<&'a str>,
    attacked_by: Vec<&'a str>,
}

fn in_backticks(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the invariant in a paragraph that begins with the invariant's number.
fn invariant(text: &str) -> Option<Invariant<'_>> {
    let (number, text) = text.split_once(". ")?;
    let (_, places) = text.split_once("- Kept by: ")?;
    let (kept_by, rest) = places.split_once("- Attacked by: ")?;
    let attacked_by = rest.split("\n\n").next()?;
    Some(Invariant {
        number: number.parse().ok()?,
        kept_by: in_backticks(kept_by),
        attacked_by: in_backticks(attacked_by),
    })
}

fn invariants(page: &str) -> Vec<Invariant<'_>> {
    page.split("\n**").skip(1).map(|text| invariant(text).unwrap_or_else(|| panic!("{text}"))).collect()
}

/// Checks that each invariant on the page has its own number, and that every file and test that the page names exists.
/// Also checks that the page names a test for each invariant, and a file that says in a comment that it keeps the
/// invariant.
#[test]
fn the_page_on_invariants_is_true() {
    let page = std::fs::read_to_string(root().join("docs/invariants.md")).unwrap();
    let invariants = invariants(&page);
    let numbers: BTreeSet<u32> = invariants.iter().map(|invariant| invariant.number).collect();
    assert!(numbers.len() > 40);
    assert_eq!(numbers.len(), invariants.len(), "a number stands there twice");

    let sources = sources();
    let functions: BTreeSet<&str> =
        sources.iter().flat_map(|(_, text)| text.lines().filter_map(function)).collect();
    let commented: BTreeMap<&str, BTreeSet<u32>> =
        sources.iter().map(|(path, text)| (path.as_str(), invariants_in_comments(text))).collect();
    let mut wrong = Vec::new();
    for Invariant { number, kept_by, attacked_by } in &invariants {
        let own = format!("inv{number:02}_");
        let is_said = |path: &&str| commented.get(path).is_some_and(|numbers| numbers.contains(number));
        if !kept_by.iter().any(is_said) {
            wrong.push(format!("{number}: no file that keeps it says so in a comment"));
        }
        if !attacked_by.iter().any(|name| name.contains(&own)) {
            wrong.push(format!("{number}: no test is named"));
        }
    }
    for word in in_backticks(&page) {
        let is_path =
            ["archive/", "crates/", "store/", "proof/", "python/"].iter().any(|room| word.starts_with(room));
        let is_test = word.contains('_') && word.split('_').any(|part| invariant_of(part).is_some());
        let is_one = !word.contains(' ') && !word.contains("...");
        if is_one && (is_path && !root().join(word).exists() || is_test && !functions.contains(word)) {
            wrong.push(format!("there is no {word}"));
        }
    }
    for (path, named) in &commented {
        wrong.extend(
            named.difference(&numbers).map(|number| format!("{path}: there is no invariant {number}")),
        );
    }
    for name in &functions {
        let named = name.split('_').filter_map(invariant_of).filter(|number| !numbers.contains(number));
        wrong.extend(named.map(|number| format!("{name}: there is no invariant {number}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the invariant's number if this part of a test's name gives one, as `inv12` does.
fn invariant_of(part: &str) -> Option<u32> {
    part.strip_prefix("inv")?.parse().ok()
}

#[test]
fn invariants_are_read_from_comments_and_pages() {
    let source = "//! Begins (invariant 3). 7 pages.\nlet a = 1; // invariants 4 to\n// 6, 8 and 9: all\n\
                  let invariant = 5;\n/// Invariants kept here: 1,\n/// 2. Invariant 10, said alone";
    assert_eq!(invariants_in_comments(source).into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 8, 9, 10]);
    let page = "x\n**2. A.** Text `t`.\n\n- Kept by: `a` in `b`.\n- Attacked by: `c`.\n\n## `d`";
    let found = invariants(page);
    assert_eq!(
        (found[0].number, &*found[0].kept_by, &*found[0].attacked_by),
        (2, &["a", "b"][..], &["c"][..])
    );
    let lines = ["    fn a_b(c: u8) {", "def d():", "    inv01_e F g,", "let h = 1;"];
    assert_eq!(lines.map(function), [Some("a_b"), Some("d"), Some("inv01_e"), None]);
}

/// Checks docs/compatibility.md. The files that it names must exist, and it must name every directory of golden files.
/// It must give the same version of the written format as the document about that format.
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
