//! Tables of figures, as Markdown, CSV and JSON.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

/// One table or figure.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// File name without ending.
    pub name: &'static str,
    /// Heading.
    pub title: String,
    /// How it was measured, and why it differs from the paper.
    pub note: String,
    /// Column headings.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
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

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", self.title);
        let line = |out: &mut String, cells: &[String]| {
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        };
        line(&mut out, &self.columns);
        line(&mut out, &vec!["---".to_owned(); self.columns.len()]);
        self.rows.iter().for_each(|row| line(&mut out, row));
        let _ = writeln!(out, "\n{}", self.note);
        out
    }

    /// Writes `NAME.csv` into `dir`.
    ///
    /// # Errors
    /// The file system's.
    pub fn write_csv(&self, dir: &Path) -> Result<()> {
        let quote = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let mut out = String::new();
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            out.push_str(&row.iter().map(quote).collect::<Vec<_>>().join(","));
            out.push('\n');
        }
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(format!("{}.csv", self.name)), out)?;
        Ok(())
    }
}

/// A number with a sensible count of digits.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}
