//! Reads a table from a CSV file.

use std::path::Path;

use anyhow::{Context, Result};

/// Column headings, and rows of cells.
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// An error if the file cannot be read, is not CSV, or has rows of different lengths.
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

    /// Returns the index of the column with this name.
    ///
    /// # Errors
    /// An error if there is no such column.
    pub(crate) fn column(&self, name: &str) -> Result<usize> {
        let found = self.columns.iter().position(|column| column == name);
        found.with_context(|| format!("there is no column {name:?} among {}", self.columns.join(", ")))
    }

    /// Returns the number in a cell; `None` if the cell holds no number.
    pub(crate) fn number(&self, row: usize, column: usize) -> Option<f64> {
        number(self.text(row, column))
    }

    pub(crate) fn text(&self, row: usize, column: usize) -> &str {
        self.rows.get(row).and_then(|row| row.get(column)).map_or("", String::as_str)
    }

    /// Returns the indexes of the columns with these names.
    ///
    /// # Errors
    /// An error if one of the columns is missing.
    pub(crate) fn columns_of(&self, names: &[&str]) -> Result<Vec<usize>> {
        names.iter().map(|name| self.column(name)).collect()
    }

    /// Returns the cells of some columns of a row, joined.
    pub(crate) fn joined(&self, row: usize, columns: &[usize]) -> String {
        columns.iter().map(|column| self.text(row, *column)).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the number at the beginning of a text such as `400 ns` or `0.86x`; `None` if the text does not
/// begin with a number.
pub(crate) fn number(text: &str) -> Option<f64> {
    let word = text.strip_suffix('x').unwrap_or(text).split_whitespace().next()?;
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Returns the first number in a text such as `log of 10^3 frames`. Converts gigabytes to megabytes.
pub(crate) fn quantity(text: &str) -> Option<f64> {
    let mut words =
        text.split_whitespace().skip_while(|word| !word.starts_with(|first: char| first.is_ascii_digit()));
    let word = words.next()?;
    let (base, power) = word.split_once('^').unwrap_or((word, "1"));
    let number = base.parse::<f64>().ok()?.powi(power.parse().ok()?);
    Some(if words.next() == Some("GB") { number * 1000.0 } else { number })
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
        assert_eq!(number("0.86x"), Some(0.86));
        assert_eq!(number("1.62x - 2.72x"), None);
    }

    #[test]
    fn a_size_is_the_first_number_in_its_text() {
        assert_eq!(quantity("log of 10^3 frames"), Some(1000.0));
        assert_eq!(quantity("database of 1 GB"), Some(1000.0));
        assert_eq!(quantity("database of 100 MB"), Some(100.0));
        assert_eq!(quantity("262144"), Some(262_144.0));
        assert_eq!(quantity("none"), None);
    }
}
