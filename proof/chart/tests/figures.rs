//! The measurements that are kept in the documentation can be drawn, whole.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::path::{Path, PathBuf};

use duralite_chart::{draw_known, draw_table};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench");

fn pictures() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(KEPT).expect("docs/bench").filter_map(Result::ok) {
        if entry.path().extension().is_some_and(|ending| ending == "csv") {
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copy");
        }
    }
    let drawn = draw_known(dir.path()).expect("pictures");
    (dir, drawn)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a picture")
}

#[test]
fn every_kept_figure_is_drawn_with_all_its_lines() {
    let (dir, drawn) = pictures();
    let found = |name: &str| drawn.contains(&dir.path().join(name));
    for name in ["figure7.svg", "figure9.svg", "table2.svg", "waldio_crowds.svg", "ppl_figure6.svg"] {
        assert!(found(name), "{name} is missing among {drawn:?}");
    }
    let figure = read(&dir.path().join("figure7.svg"));
    for word in ["insert", "update", "delete", "UH+LS+Diff", "write latency (ns per line)"] {
        assert!(figure.contains(word), "{word}");
    }
    // Three operations by six variants by six latencies.
    assert!(figure.matches("<circle").count() >= 3 * 6 * 6, "{}", figure.matches("<circle").count());
}

#[test]
fn the_pictures_in_the_documentation_are_those_of_their_tables() {
    let (_dir, drawn) = pictures();
    for path in drawn {
        let name = path.file_name().expect("a name");
        let kept = read(&Path::new(KEPT).join(name));
        assert!(read(&path) == kept, "draw it again: duralite chart docs/bench ({})", name.display());
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
    // The ground, and four numbers.
    assert_eq!(picture.matches("<rect").count(), 1 + 4, "{picture}");
    std::fs::write(&source, "what,a\nx,1,2\n").expect("write");
    assert!(draw_table(&source, &path, "A title", true).is_err(), "rows of different lengths");
}
