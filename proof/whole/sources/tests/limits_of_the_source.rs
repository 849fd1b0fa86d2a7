//! Checks the limits that the source must keep: the lengths of files and functions, no unused dependency, and
//! format documents that agree with the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::collections::BTreeMap;
use std::fmt::Write as _;

use duralite_wal::engines::ENGINES;

use super::limits::{File, constants, dependencies, files, functions};

/// The largest number of lines in a file, and the largest number in a function. Nobody reads a longer file or
/// function as a whole. `make check` prints a reminder long before a file reaches its limit.
const FILE_LINES: usize = 1200;
const FUNCTION_LINES: usize = 120;

fn assert_none(what: &str, found: &[String]) {
    let mut list = String::new();
    for one in found {
        let _ = write!(list, "\n  {one}");
    }
    assert!(found.is_empty(), "{what}:{list}");
}

#[test]
fn no_file_is_longer_than_one_reads_at_once() {
    let long: Vec<String> =
        files(&["archive", "crates", "store", "proof", "fuzz/fuzz_targets", "python/tests"], &["rs", "py"])
            .iter()
            .map(|file| (file, file.text.lines().count()))
            .filter(|(_, lines)| *lines > FILE_LINES)
            .map(|(file, lines)| format!("{}: {lines} lines", file.path))
            .collect();
    assert_none("files of more than 1,200 lines", &long);
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let long: Vec<String> = files(&["archive", "crates", "store", "proof", "fuzz/fuzz_targets"], &["rs"])
        .iter()
        .flat_map(|file| functions::of(file).into_iter().map(move |function| (file, function)))
        .filter(|(_, function)| function.lines > FUNCTION_LINES)
        .map(|(file, function)| {
            format!("{}:{}: {} has {} lines", file.path, function.line, function.name, function.lines)
        })
        .collect();
    assert_none("functions of more than 120 lines", &long);
}

/// If all tests of a crate are one program, the compiler ignores a file that neither the program's root nor
/// the manifest names. This test finds such a file.
#[test]
fn every_file_of_tests_is_a_module_of_its_program() {
    let sources = files(&["archive", "crates", "store", "proof"], &["rs"]);
    let is_forgotten = |path: &str| {
        let (package, file) = path.split_once("/tests/")?;
        let program = sources.iter().find(|file| file.path == format!("{package}/tests/all.rs"))?;
        let module = file.strip_suffix("/mod.rs").or_else(|| file.strip_suffix(".rs"))?;
        let manifest = std::fs::read_to_string(crate::rooms::root().join(package).join("Cargo.toml")).ok()?;
        let has = |text: &str, wanted: String| text.lines().any(|line| line == wanted);
        // Skip files in a module's directory, because this test does not check whether the module declares
        // them.
        Some(
            !module.contains('/')
                && !has(&program.text, format!("mod {module};"))
                && !has(&manifest, format!("name = \"{module}\"")),
        )
    };
    let forgotten: Vec<String> = sources
        .iter()
        .filter(|file| is_forgotten(&file.path).unwrap_or(false))
        .map(|file| file.path.clone())
        .collect();
    assert_none("files of tests that are in no program", &forgotten);
}

#[test]
fn every_dependency_is_used() {
    assert_none("dependencies that nothing uses", &dependencies::unused());
}

#[test]
fn format_documents_have_the_constants_of_the_code() {
    let engines = ENGINES.iter().map(|engine| engine.name);
    let formats: Vec<&str> = engines.chain(["page_change", "store"]).collect();
    for format in formats.iter().copied() {
        let of_others: Vec<&str> = formats.iter().copied().filter(|other| *other != format).collect();
        let code = constants::in_code(format, &of_others);
        let page = match format {
            "store" => "docs/store/format.md".to_owned(),
            format => format!("docs/format/{}.md", format.replace('_', "-")),
        };
        let document = constants::in_document(&page);
        assert!(document.len() >= 10, "{page} has no table of constants");
        let wrong: BTreeMap<&str, (&str, Option<&str>)> = document
            .iter()
            .map(|(name, value)| (name.as_str(), (value.as_str(), code.get(name).map(String::as_str))))
            .filter(|(_, (document, code))| Some(*document) != *code)
            .collect();
        assert!(wrong.is_empty(), "{page} says (left) what the code (right) does not: {wrong:?}");
    }
}

#[test]
fn the_limits_find_what_breaks_them() {
    let long =
        format!("fn short() {{}}\nmod m {{\nimpl T {{\nfn long() {{\n{}}}\n}}\n}}", "f();\n".repeat(70));
    let found = functions::of(&File { path: "x.rs".into(), text: long });
    let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.lines)).collect();
    assert_eq!(found, [("short", 1), ("long", 72)]);
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nused-one.workspace = true\nunused = \"1\"\n\
                    [dev-dependencies]\nonly_test = { version = \"1\" }\n";
    let product = ["use used_one::x; // unused_other"];
    let tests = ["only_test::run(unused::x())"];
    assert_eq!(dependencies::unused_in(manifest, &product, &tests), ["unused"]);
    let code = "pub const A: u64 = 3 * B; const B: u64 = 1 << 12; pub const M: [u8; 2] = *b\"XY\";";
    let found = constants::evaluate(&[code]);
    assert_eq!(found.get("A").map(String::as_str), Some("12288"));
    assert_eq!(found.get("M").map(String::as_str), Some("XY"));
    assert_eq!(constants::normal("2^29"), "536870912");
    assert_eq!(constants::normal("`0xD17A6E0F`"), "3514461711");
}
