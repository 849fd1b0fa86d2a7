//! Compares the contents of a database with the input, row by row.

use std::path::Path;

use anyhow::{Result, bail};
use rusqlite::Connection;

use crate::modes::open_plain;
use crate::rows::Row;

/// The result of checking a database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) rows: usize,
    /// The first row that differs from the input, described as text.
    pub(crate) differs: Option<String>,
    /// The result of SQLite's `integrity_check`.
    pub(crate) integrity: String,
}

impl Found {
    /// Checks that the database is sound, that it holds at least `acknowledged` rows, and that its rows are
    /// the first rows of the input.
    ///
    /// # Errors
    /// An error that names the row that is missing or differs.
    pub(crate) fn expect_at_least(&self, acknowledged: usize) -> Result<()> {
        if self.rows < acknowledged {
            bail!("{acknowledged} rows were committed, and {} are there", self.rows);
        }
        if let Some(row) = &self.differs {
            bail!("a row is not that of the input: {row}");
        }
        if self.integrity != "ok" {
            bail!("integrity_check says {}", self.integrity);
        }
        Ok(())
    }
}

/// Reads the whole table and compares it with the input.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn examine(conn: &Connection, expected: &[Row]) -> Result<Found> {
    let mut statement = conn.prepare("SELECT line, code, name FROM characters ORDER BY line")?;
    let mut found = statement.query([])?;
    let (mut rows, mut differs) = (0, None);
    while let Some(row) = found.next()? {
        let row = Row { line: row.get(0)?, code: row.get(1)?, name: row.get(2)? };
        if differs.is_none() && expected.get(rows) != Some(&row) {
            differs = Some(format!("{row:?} instead of {:?}", expected.get(rows)));
        }
        rows += 1;
    }
    let integrity = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    Ok(Found { rows, differs, integrity })
}

/// Opens a closed database with plain SQLite, and checks that it holds the `expected` rows.
///
/// # Errors
/// An error that names the row that differs, or an error of SQLite.
pub(crate) fn expect_rows(database: &Path, expected: &[Row]) -> Result<()> {
    examine(&open_plain(database)?, expected)?.expect_at_least(expected.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use super::*;
    use crate::modes::find;
    use crate::rows::read;

    /// Returns the error of the check on a database of 100 rows, after this statement has changed the
    /// database.
    fn after(sql: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let (database, rows) = (dir.path().join("checked.db"), read(Some(100)));
        let conn = find("warm").unwrap().open(&database, dir.path(), true).unwrap();
        crate::child::insert(&conn, &rows, |_| Ok(true)).unwrap();
        conn.execute_batch(sql).unwrap();
        drop(conn);
        expect_rows(&database, &rows).err().map(|error| error.to_string())
    }

    #[test]
    fn a_whole_database_passes() {
        assert_eq!(after(""), None);
    }

    #[test]
    fn a_lost_row_is_noticed() {
        assert_eq!(
            after("DELETE FROM characters WHERE line=100").unwrap(),
            "100 rows were committed, and 99 are there"
        );
        let middle =
            after("DELETE FROM characters WHERE line=50; INSERT INTO characters VALUES(101, '', '')")
                .unwrap();
        assert!(middle.contains("line: 51") && middle.contains("instead of Some(Row { line: 50"), "{middle}");
    }

    #[test]
    fn a_changed_row_and_one_too_many_are_noticed() {
        let changed = after("UPDATE characters SET name='A' WHERE line=7").unwrap();
        assert!(changed.contains("line: 7") && changed.contains("AMPERSAND"), "{changed}");
        let more = after("INSERT INTO characters VALUES(101, '0', 'NOBODY')").unwrap();
        assert!(more.contains("NOBODY") && more.ends_with("instead of None"), "{more}");
    }
}
