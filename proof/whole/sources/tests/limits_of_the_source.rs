//! Checks the limits that the source must keep: the lengths of files and functions, no unused dependency, and
//! format documents that agree with the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::collections::BTreeMap;
use std::fmt::Write as _;

use duralite_wal::engines::ENGINES;

use super::limits::{File, constants, dependencies, files, functions, modules};

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

/// The compiler ignores a file that no other file declares as a module, so its tests would never run. This test finds
/// such a file, in the tests of a crate and in its source.
#[test]
fn every_file_is_a_module_of_a_program() {
    let dirs = ["archive", "crates", "store", "proof"];
    let (manifests, sources) = (files(&dirs, &["toml"]), files(&dirs, &["rs"]));
    let manifests: Vec<File> =
        manifests.into_iter().filter(|file| file.path.ends_with("/Cargo.toml")).collect();
    let forgotten: Vec<String> =
        modules::forgotten(&manifests, &sources).into_iter().map(str::to_owned).collect();
    assert_none("files that are in no program", &forgotten);
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
    let file = |(path, text): (&str, &str)| File { path: path.into(), text: text.into() };
    let manifest = file(("x/Cargo.toml", "autotests = false\n[[test]]\nname = \"all\""));
    let sources = [
        (
            "x/src/lib.rs",
            "mod a { mod inner; } #[path = \"moved.rs\"] mod b; #[cfg_attr(not(x), path = \"c2.rs\")] mod c;",
        ),
        ("x/src/c.rs", ""),
        ("x/src/c2.rs", ""),
        ("x/src/a/inner.rs", ""),
        ("x/src/moved.rs", ""),
        ("x/src/lost.rs", ""),
        ("x/tests/all.rs", "mod common; mod one; #[path = \"../../y/two.rs\"] mod two;"),
        ("x/tests/common/mod.rs", "mod deep;"),
        ("x/tests/common/deep.rs", ""),
        ("x/tests/common/lost.rs", ""),
        ("x/tests/lost.rs", ""),
        ("x/tests/one.rs", "mod part;"),
        ("x/tests/one/part.rs", ""),
        ("x/tests/one/lost.rs", ""),
        ("y/two.rs", ""),
    ]
    .map(file);
    let lost = ["x/src/lost.rs", "x/tests/common/lost.rs", "x/tests/lost.rs", "x/tests/one/lost.rs"];
    assert_eq!(modules::forgotten(&[manifest], &sources), lost);
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
