//! Compares the numbers that documents quote with the measurements from which they come.
//!
//! A comment after a number names the number's source: `10,516<!-- = waldio_single; waldio, layout=delta; per second
//! -->`. The parts are the name of a CSV file in `docs/bench` or `docs/store/bench`, cells that select one row of it,
//! and the column. For a ratio, a second source follows after ` over `. A number may have fewer digits than its source.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::path::Path;

use super::documents::documents;
use super::rooms::root;

const BEGIN: &str = "<!-- = ";
const END: &str = " -->";

/// Returns the cells of a CSV file, line by line, with the column headings first. The measurements put quotation marks
/// around every cell.
fn cells(csv: &str) -> Vec<Vec<String>> {
    let line = |line: &str| {
        let inner = line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap();
        inner.split("\",\"").map(|cell| cell.replace("\"\"", "\"")).collect()
    };
    csv.lines().map(line).collect()
}

fn read(name: &str) -> Result<Vec<Vec<String>>, String> {
    let places = ["docs/bench", "docs/store/bench"];
    let found = places.map(|place| root().join(place).join(format!("{name}.csv")));
    let found = found.iter().find_map(|path| std::fs::read_to_string(path).ok());
    found.map(|text| cells(&text)).ok_or_else(|| format!("there is no table {name}"))
}

/// Returns the text of the cell to which a source comment refers.
fn cell(source: &str) -> Result<String, String> {
    let parts: Vec<&str> = source.split("; ").collect();
    let [name, keys @ .., column] = parts.as_slice() else {
        return Err(format!("`{source}` names no column"));
    };
    let table = read(name)?;
    let (head, rows) = table.split_first().ok_or_else(|| format!("{name} is empty"))?;
    let at = head.iter().position(|found| found == column);
    let at = at.ok_or_else(|| format!("{name} has no column `{column}`"))?;
    let has = |row: &Vec<String>| keys.iter().all(|key| row.iter().any(|cell| cell == key));
    let chosen: Vec<_> = rows.iter().filter(|row| has(row)).collect();
    match chosen.as_slice() {
        [row] => Ok(row[at].clone()),
        rows => Err(format!("{} rows of {name} have the cells {keys:?}", rows.len())),
    }
}

/// Returns the number at the beginning of a cell, without the unit after it.
fn value(cell: &str) -> Result<f64, String> {
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(cell.len());
    cell[..end].parse().map_err(|_| format!("`{cell}` is no number"))
}

fn value_of(source: &str) -> Result<f64, String> {
    match source.split_once(" over ") {
        Some((upper, lower)) => Ok(value(&cell(upper)?)? / value(&cell(lower)?)?),
        None => value(&cell(source)?),
    }
}

/// Returns the last number in a text.
fn last_number(text: &str) -> Option<&str> {
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start =
        text[..end].rfind(|c: char| !c.is_ascii_digit() && c != ',' && c != '.').map_or(0, |at| at + 1);
    Some(&text[start..end])
}

/// Returns whether a quoted number is the measured one, rounded to as many digits as the quotation has.
fn is_quoted(number: &str, value: f64) -> bool {
    let plain = number.replace(',', "");
    let digits = plain.split_once('.').map_or(0, |(_, digits)| digits.len());
    format!("{value:.digits$}") == plain
}

/// Returns what is wrong with the quoted numbers in a line.
fn wrong(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices(BEGIN) {
        let rest = &line[at + BEGIN.len()..];
        let Some((source, _)) = rest.split_once(END) else {
            found.push(format!("`{rest}` has no end"));
            continue;
        };
        let before = &line[..at];
        let before = before.rfind(END).map_or(before, |end| &before[end + END.len()..]);
        match (last_number(before), value_of(source)) {
            (_, Err(error)) => found.push(error),
            (None, _) => found.push(format!("no figure in front of `{source}`")),
            (Some(number), Ok(value)) if !is_quoted(number, value) => {
                found.push(format!("{number}, but {source} is {value}"));
            }
            _ => {}
        }
    }
    found
}

/// Returns the cells of a table's line that have a digit but name no source. Leaves out the first cell, and ignores the
/// targets of links.
fn without_source(line: &str) -> Vec<&str> {
    let Some(inner) = line.strip_prefix("| ").and_then(|line| line.trim_end().strip_suffix('|')) else {
        return Vec::new();
    };
    let figures = inner.split(" | ").skip(1);
    figures.filter(|cell| cell.contains(|c: char| c.is_ascii_digit()) && !cell.contains(BEGIN)).collect()
}

/// Returns the lines of the tables that show measurements. On the front page this is the table that compares commits.
/// On the pages about engines these are the tables in the section `Figures`.
fn measured_lines(document: &Path, text: &str) -> Vec<String> {
    let in_engines = document.parent().is_some_and(|parent| parent.ends_with("docs/engines"));
    let (from, to) = match document.file_name().and_then(|name| name.to_str()) {
        Some("README.md") if document.parent() == Some(&root()) => ("| one insert per transaction", "\n## "),
        _ if in_engines => ("\n## Figures", "\n## How"),
        _ => return Vec::new(),
    };
    let start = text.find(from).unwrap_or_else(|| panic!("{} has no `{from}`", document.display()));
    let part = &text[start + 1..];
    let part = &part[..part.find(to).unwrap_or(part.len())];
    part.lines().filter(|line| line.starts_with("| ")).map(str::to_owned).collect()
}

#[test]
fn quoted_figures_are_those_of_the_tables() {
    let mut count = 0;
    let mut found = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        count += text.matches(BEGIN).count();
        let name = document.strip_prefix(root()).unwrap().display().to_string();
        for (number, line) in text.lines().enumerate() {
            found.extend(wrong(line).into_iter().map(|what| format!("{name}:{}: {what}", number + 1)));
        }
        for line in measured_lines(&document, &text) {
            found.extend(without_source(&line).iter().map(|cell| format!("{name}: `{cell}` names no table")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count >= 30, "only {count} figures name their source");
}

#[test]
fn tables_of_the_report_are_those_of_the_csv_files() {
    for (report, place) in
        [("docs/benchmarks.md", "docs/bench"), ("docs/store/benchmarks.md", "docs/store/bench")]
    {
        let text = std::fs::read_to_string(root().join(report)).unwrap();
        let is_table = |part: &&str| part.starts_with("| ");
        let mut tables: Vec<String> =
            text.split("\n\n").filter(is_table).map(|table| table.trim_end().to_owned()).collect();
        for entry in std::fs::read_dir(root().join(place)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "csv") {
                continue;
            }
            let mut rows = cells(&std::fs::read_to_string(&path).unwrap());
            rows.insert(1, vec!["---".to_owned(); rows[0].len()]);
            let lines: Vec<String> = rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect();
            let table = lines.join("\n");
            let at = tables.iter().position(|found| *found == table);
            tables.remove(at.unwrap_or_else(|| panic!("{report} has another table than {}", path.display())));
        }
        assert!(tables.is_empty(), "{report} has tables without a CSV file:\n{}", tables.join("\n\n"));
    }
}

#[test]
fn a_figure_that_is_not_its_tables_is_found() {
    let source = "waldio_single; waldio, layout=delta; per second";
    let measured = cell(source).unwrap();
    assert_eq!(wrong(&format!("{measured}<!-- = {source}")), [format!("`{source}` has no end")]);
    let line = |figure: &str, source: &str| format!("| x | **{figure}/s**<!-- = {source} --> |");
    assert_eq!(wrong(&line(&measured, source)), [""; 0]);
    assert_eq!(wrong(&line(&format!("1{measured}"), source)).len(), 1);
    for source in ["waldio_single; per second", "waldio_single; waldio; per second", "none; a; b", "none"] {
        assert_eq!(wrong(&line(&measured, source)).len(), 1, "{source}");
    }
    assert_eq!(wrong(&line("1.0", &format!("{source} over {source}"))), [""; 0]);
    assert_eq!(wrong("| none <!-- = none; a; b --> |").len(), 1);
    // A source belongs to the number right before it.
    let two = format!("{}{}", line(&measured, source), line("3", source));
    assert_eq!(wrong(&two).len(), 1);
    assert!(is_quoted("34", 34.2) && is_quoted("34.2", 34.2) && is_quoted("2,633", 2633.0));
    assert!(!is_quoted("35", 34.2) && !is_quoted("34.20", 34.25));
    assert_eq!(without_source("| a 5 | 6<!-- = a; b --> | 7 | - |"), ["7"]);
    assert_eq!(without_source("a line"), [""; 0]);
}
