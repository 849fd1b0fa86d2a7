//! Checks that PNG pictures are complete, show all letters, and are the same each time.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::path::{Path, PathBuf};

use duralite_chart::{draw_known, draw_table, png_beside};
use resvg::tiny_skia::Pixmap;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs");

fn decoded(path: &Path) -> Pixmap {
    Pixmap::decode_png(&std::fs::read(path).expect("a picture")).expect("a PNG")
}

fn table(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("t.csv");
    std::fs::write(&path, text).expect("write");
    path
}

/// Returns the number in an attribute of the first element.
fn pixels(svg: &str, attribute: &str) -> u32 {
    let (_, after) = svg.split_once(&format!(" {attribute}=\"")).expect("the attribute");
    after.split_once('"').and_then(|(number, _)| number.parse().ok()).expect("a number")
}

/// Returns the document without the text element that begins at this offset.
fn without_text(svg: &str, begin: usize) -> String {
    let (before, rest) = svg.split_at(begin);
    let (_, after) = rest.split_once("</text>").expect("the text's end");
    format!("{before}{after}")
}

#[test]
fn a_known_table_has_a_png_of_its_svgs_proportions_and_the_same_one_each_time() {
    let dir = tempfile::tempdir().expect("a directory");
    for kept in ["bench/figure7", "store/bench/store_figure15", "bench/everyday_sizes"] {
        let kept = Path::new(DOCS).join(kept).with_extension("csv");
        let name = kept.file_stem().expect("a name").to_string_lossy();
        let source = dir.path().join(&*name).with_extension("csv");
        std::fs::copy(&kept, &source).expect("copy");
        let svg = draw_known(&source).expect("a picture").expect("a known table");
        let png = png_beside(&svg).expect("a picture");
        assert_eq!(png, dir.path().join(&*name).with_extension("png"));
        let (text, picture) = (std::fs::read_to_string(&svg).expect("the SVG"), decoded(&png));
        assert_eq!(picture.width(), 2 * pixels(&text, "width"), "{name}");
        assert_eq!(picture.height(), 2 * pixels(&text, "height"), "{name}");
        let first = std::fs::read(&png).expect("a picture");
        png_beside(&svg).expect("a picture");
        assert!(std::fs::read(&png).expect("a picture") == first, "{name} differs the second time");
    }
}

/// A picture from which a text is removed must differ, but only at the place of that text.
#[test]
fn every_text_of_the_svg_is_seen_in_the_png_at_its_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let source =
        table(dir.path(), "what,milli\u{b5}s \u{2192} \u{e4}\u{df}\nstock SQLite,10\nDuralite,1000\n");
    let svg = dir.path().join("t.svg");
    draw_table(&source, &svg, "Commits (per second), 100 %", false).expect("a picture");
    let whole = std::fs::read_to_string(&svg).expect("the SVG");
    let picture = decoded(&png_beside(&svg).expect("a picture"));
    let texts: Vec<usize> = whole.match_indices("<text ").map(|(begin, _)| begin).collect();
    // The texts are the title, the panel's name, two labels and two numbers.
    assert_eq!(texts.len(), 6, "{whole}");
    for begin in texts {
        let element = whole.get(begin..).expect("an element");
        std::fs::write(&svg, without_text(&whole, begin)).expect("write");
        let lacking = decoded(&png_beside(&svg).expect("a picture"));
        let rows = lacking.data().chunks(4 * lacking.width() as usize);
        let differ = rows.zip(picture.data().chunks(4 * picture.width() as usize)).enumerate();
        let rows: Vec<u32> = differ.filter(|(_, (a, b))| a != b).map(|(row, _)| row as u32 / 2).collect();
        let (middle, line) = (pixels(element, "y"), 20);
        assert!(rows.len() > 8, "no letters: {element}");
        assert!(rows.iter().all(|row| row.abs_diff(middle) <= line), "at {rows:?} instead of {element}");
    }
}

#[test]
fn the_ending_says_the_kind_and_no_other_ending_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = table(dir.path(), "what,a\nx,1\n");
    let (small, capital) = (dir.path().join("a.png"), dir.path().join("b.PNG"));
    for path in [&small, &capital] {
        draw_table(&source, path, "A title", false).expect("a picture");
        assert!(decoded(path).width() > 400);
    }
    for name in ["c.jpg", "c.svg.gz", "c", "png", ".png"] {
        let path = dir.path().join(name);
        let error = draw_table(&source, &path, "A title", false).expect_err(name).to_string();
        assert!(error.contains("ends in .svg or in .png"), "{error}");
        assert!(!path.exists(), "{name} was written");
    }
}

/// None of the fonts has Chinese letters.
#[test]
fn a_letter_that_cannot_be_drawn_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = table(dir.path(), "what,a\nstock \u{5feb},1\n");
    let (svg, png) = (dir.path().join("t.svg"), dir.path().join("t.png"));
    let error = draw_table(&source, &png, "A title", false).expect_err("a letter is missing");
    assert!(format!("{error:#}").contains("no font has the letter '\u{5feb}'"), "{error:#}");
    draw_table(&source, &svg, "A title", false).expect("an SVG has letters of any kind");
    png_beside(&svg).expect_err("a letter is missing");
    assert!(!png.exists(), "a picture without its letters was written");
}

#[test]
fn what_is_no_svg_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let svg = dir.path().join("t.svg");
    png_beside(&svg).expect_err("there is none");
    std::fs::write(&svg, "what,a\n").expect("write");
    let error = png_beside(&svg).expect_err("it is a table");
    assert!(format!("{error:#}").contains("it is no SVG"), "{error:#}");
}
