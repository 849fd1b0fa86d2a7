//! Checks that the program can draw every measurement in the documentation, with all of its values.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::path::{Path, PathBuf};

use duralite_chart::{draw_known_in, draw_table, is_known};

/// The directories with the tables and pictures of the documentation. Beside each directory is the document
/// that shows them.
const KEPT: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/bench"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/store/bench"),
];

fn pictures() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("a directory");
    for table in kept_tables() {
        std::fs::copy(&table, dir.path().join(table.file_name().expect("a name"))).expect("copy");
    }
    let drawn = draw_known_in(dir.path()).expect("pictures");
    (dir, drawn)
}

fn kept_tables() -> Vec<PathBuf> {
    let entries = KEPT.iter().flat_map(|dir| std::fs::read_dir(dir).expect("a directory of tables"));
    let files = entries.map(|entry| entry.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "csv")).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a picture")
}

#[test]
fn every_table_of_a_papers_figure_is_drawn_and_with_all_its_lines() {
    let (dir, drawn) = pictures();
    for table in kept_tables() {
        let name = table.file_stem().expect("a name").to_string_lossy();
        let has_figure = name.contains("figure");
        assert!(is_known(&name) || !has_figure, "{name} has a figure in its paper");
        let picture = dir.path().join(&*name).with_extension("svg");
        assert_eq!(drawn.contains(&picture), is_known(&name), "{name}");
    }
    let figure = read(&dir.path().join("figure7.svg"));
    for word in ["insert", "update", "delete", "UH+LS+Diff", "write latency (ns per line)"] {
        assert!(figure.contains(word), "{word}");
    }
    // There is a circle for each of three operations, six variants and six latencies.
    assert_eq!(figure.matches("<circle").count(), 3 * 6 * 6);
    // The rectangles are the background, four rows of five schemes, and the legend.
    let figure = read(&dir.path().join("store_figure12.svg"));
    assert_eq!(figure.matches("<rect").count(), 1 + 4 * 5 + 5);
}

/// The documents contain the same tables, and show each picture below its table.
#[test]
fn the_documents_show_the_kept_tables_and_pictures() {
    let documents = KEPT.map(|dir| read(&Path::new(dir).join("../benchmarks.md")));
    for table in kept_tables() {
        let name = table.file_stem().expect("a name").to_string_lossy();
        let mut rows: Vec<String> = Vec::new();
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(&table).expect("a table");
        for row in reader.records().map(|row| row.expect("a row")) {
            rows.push(format!("| {} |", row.iter().collect::<Vec<_>>().join(" | ")));
            if rows.len() == 1 {
                rows.push(format!("|{}", " --- |".repeat(row.len())));
            }
        }
        let mut text = rows.join("\n");
        if is_known(&name) {
            text.push_str("\n\n![");
        }
        let after = |document: &String| document.split_once(&text).map(|(_, after)| after.to_owned());
        let after =
            documents.iter().find_map(after).unwrap_or_else(|| panic!("no document has {name} as it is"));
        let link = format!("](bench/{name}.svg)");
        let line = after.lines().next().unwrap_or("");
        assert_eq!(line.ends_with(&link), is_known(&name), "below {name}: {line}");
    }
}

#[test]
fn the_pictures_in_the_documentation_are_those_of_their_tables() {
    let (_dir, drawn) = pictures();
    let tables = kept_tables();
    for path in drawn {
        let table = tables.iter().find(|table| table.file_stem() == path.file_stem()).expect("its table");
        let kept = table.with_extension("svg");
        assert!(read(&path) == read(&kept), "draw it again: duralite chart ({})", kept.display());
    }
}

#[test]
fn any_table_has_bars_for_its_numbers_and_room_for_what_is_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, path) = (dir.path().join("t.csv"), dir.path().join("t.svg"));
    std::fs::write(&source, "what,a <&> b,c\nstock one,10,-\nDuralite,1000,5\nstock two,,7\n")
        .expect("write");
    draw_table(&source, &path, "A title", true).expect("a picture");
    let picture = read(&path);
    for word in ["A title", "stock one", "Duralite", "a &lt;&amp;&gt; b", "1000"] {
        assert!(picture.contains(word), "{word} in {picture}");
    }
    // The rectangles are the background and four numbers.
    assert_eq!(picture.matches("<rect").count(), 1 + 4, "{picture}");
    std::fs::write(&source, "what,a\nx,1,2\n").expect("write");
    assert!(draw_table(&source, &path, "A title", true).is_err(), "rows of different lengths");
}

#[test]
fn requests_are_marks_of_their_sizes_and_what_has_no_address_is_left_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("waldio_figure2.csv");
    let rows = [
        "trace,ms,request,address KiB,KiB,purpose",
        "WAL,0.00,write,9000,8,log",
        "WAL,0.10,write,300000,16,file-system journal",
        "WAL,0.20,flush,-,-,-",
        "WAL,0.30,write,0,4,other",
        "OFF,0.00,write,8000,1,database",
    ];
    std::fs::write(&source, rows.join("\n")).expect("write");
    let drawn = draw_known_in(dir.path()).expect("a picture");
    let picture = read(drawn.first().expect("a picture"));
    let radii = |radius: u32| picture.matches(&format!(" r=\"{radius}\"")).count();
    assert_eq!(picture.matches("<circle").count(), 3, "{picture}");
    assert_eq!([radii(12), radii(6), radii(2)], [1, 1, 1], "{picture}");
    assert!(!picture.contains("stroke=\"#0072B2\""), "no line joins marks: {picture}");
    for word in ["WAL", "OFF", "log", "database", "ms since the first request"] {
        assert!(picture.contains(word), "{word}");
    }
}
