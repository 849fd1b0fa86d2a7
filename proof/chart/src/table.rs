//! A table as it comes from a CSV file.

use std::path::Path;

use anyhow::{Context, Result};

/// Column headings, and rows of cells.
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// # Errors
    /// The file cannot be read, is not CSV, or has rows of different lengths.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let read = || -> Result<Self, csv::Error> {
            let mut reader = csv::Reader::from_path(path)?;
            let owned = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect::<Vec<_>>();
            let columns = owned(reader.headers()?);
            let rows = reader.records().map(|record| record.map(|record| owned(&record)));
            Ok(Self { columns, rows: rows.collect::<Result<_, _>>()? })
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    /// # Errors
    /// There is no such column.
    pub(crate) fn column(&self, name: &str) -> Result<usize> {
        let found = self.columns.iter().position(|column| column == name);
        found.with_context(|| format!("there is no column {name:?} among {}", self.columns.join(", ")))
    }

    /// The number in a cell; `None` where it holds none.
    pub(crate) fn number(&self, row: usize, column: usize) -> Option<f64> {
        number(self.text(row, column))
    }

    pub(crate) fn text(&self, row: usize, column: usize) -> &str {
        self.rows.get(row).and_then(|row| row.get(column)).map_or("", String::as_str)
    }

    /// What stands in a column, each once, in its order.
    pub(crate) fn distinct(&self, column: usize) -> Vec<&str> {
        let mut found = Vec::new();
        for row in 0..self.rows.len() {
            let text = self.text(row, column);
            if !found.contains(&text) {
                found.push(text);
            }
        }
        found
    }
}

/// The number that a text begins with, such as `400 ns`; `None` where it begins otherwise.
pub(crate) fn number(text: &str) -> Option<f64> {
    let word = text.split_whitespace().next()?;
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_are_no_numbers_are_left_out() {
        assert_eq!(number("400 ns"), Some(400.0));
        assert_eq!(number("-"), None);
        assert_eq!(number(""), None);
        assert_eq!(number("NaN"), None);
        assert_eq!(number("2.5"), Some(2.5));
    }
}
