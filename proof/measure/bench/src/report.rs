//! Tables of results, as Markdown, CSV and JSON.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// The data of one table or figure.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// The file name without its extension.
    pub name: &'static str,
    /// The heading.
    pub title: String,
    /// The text that says how the benchmark measured the values, and why they differ from the paper's.
    pub note: String,
    /// The column headings.
    pub columns: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without rows.
    pub fn new(name: &'static str, title: &str, columns: &[&str]) -> Self {
        Self {
            name,
            title: title.to_owned(),
            note: String::new(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the table as Markdown. `pictures` is the path of the directory of the pictures, relative to
    /// the Markdown file. If the path is given and the table has a picture, the Markdown shows the picture.
    #[must_use]
    pub fn markdown(&self, pictures: Option<&str>) -> String {
        let mut out = format!("## {}\n\n", self.title);
        let line = |out: &mut String, cells: &[String]| {
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        };
        line(&mut out, &self.columns);
        line(&mut out, &vec!["---".to_owned(); self.columns.len()]);
        self.rows.iter().for_each(|row| line(&mut out, row));
        if let Some(directory) = pictures.filter(|_| duralite_chart::is_known(self.name)) {
            let _ = writeln!(out, "\n![{}]({directory}/{}.svg)", self.title, self.name);
        }
        let _ = writeln!(out, "\n{}", self.note);
        out
    }

    /// Writes `NAME.csv` into `dir`, and the picture beside it if the table has one.
    ///
    /// # Errors
    /// An error of the file system, or a definition of the picture that does not fit the table.
    pub fn write_csv(&self, dir: &Path) -> Result<()> {
        let quote = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let mut out = String::new();
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            out.push_str(&row.iter().map(quote).collect::<Vec<_>>().join(","));
            out.push('\n');
        }
        std::fs::create_dir_all(dir)?;
        let path = dir.join(format!("{}.csv", self.name));
        std::fs::write(&path, out)?;
        duralite_chart::draw_known(&path)?;
        Ok(())
    }
}

/// Returns the path from a report to the directory `csv` with its CSV files and pictures. The path is
/// relative if `csv` is below the report's directory.
///
/// # Errors
/// An error if the report's directory does not exist, or if `csv` cannot be created.
pub fn pictures_of(report: &Path, csv: &Path) -> Result<String> {
    let parent = report.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(csv)?;
    let real = |path: &Path| {
        path.canonicalize().with_context(|| format!("there is no directory {}", path.display()))
    };
    let (parent, csv) = (real(parent)?, real(csv)?);
    let path = csv.strip_prefix(&parent).unwrap_or(&csv);
    let is_same = path.as_os_str().is_empty();
    Ok(if is_same { ".".to_owned() } else { path.to_string_lossy().into_owned() })
}

/// Formats a number with a sensible number of digits.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_drawn_shows_its_picture() {
        let dir = tempfile::tempdir().unwrap();
        let (report, csv) = (dir.path().join("report.md"), dir.path().join("a/b"));
        let pictures = pictures_of(&report, &csv).unwrap();
        assert_eq!(pictures, "a/b");
        assert_eq!(pictures_of(&report, dir.path()).unwrap(), ".");
        let mut table = Table::new("store_recovery", "A title", &["MiB of log", "seconds"]);
        table.row(["64".to_owned(), "0.5".to_owned()]);
        table.row(["256".to_owned(), "1.5".to_owned()]);
        table.write_csv(&csv).unwrap();
        assert!(std::fs::read_to_string(csv.join("store_recovery.svg")).unwrap().contains("MiB of log"));
        assert!(table.markdown(Some(&pictures)).contains("\n\n![A title](a/b/store_recovery.svg)\n\n"));
        assert!(!table.markdown(None).contains("!["), "no pictures were written");
        let other = Table::new("no_picture", "A title", &["a"]);
        other.write_csv(&csv).unwrap();
        assert!(!csv.join("no_picture.svg").exists() && !other.markdown(Some(&pictures)).contains("!["));
    }
}
