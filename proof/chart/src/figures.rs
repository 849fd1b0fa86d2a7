//! Which tables are drawn, and how.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::table::{Table, number};
use crate::{Bars, Lines, LinesPanel, Panel, Series};

type Draw = fn(&Table, &Path) -> Result<()>;

/// The measurements that have a picture, by the names of their tables.
const KNOWN: [(&str, Draw); 11] = [
    ("figure5_6", figure5_6),
    ("figure7", figure7),
    ("figure9", figure9),
    ("table2", table2),
    ("waldio_crowds", |table, path| {
        bars(table, path, &[0, 1], &[2], "Many connections, one insert per transaction", false)
    }),
    ("waldio_figure14", |table, path| {
        bars(table, path, &[0], &[1], "WALDIO figure 14: inserts per second by journal mode", false)
    }),
    ("waldio_figure15", |table, path| {
        bars(table, path, &[0], &[1], "WALDIO figure 15: bytes to the device per insert", false)
    }),
    ("ppl_figure6", |table, path| {
        by_workload(table, path, "ms", "SQLite/PPL figure 6: time for each workload, the database on disk")
    }),
    ("ppl_table4", |table, path| {
        by_workload(table, path, "by SQLite", "SQLite/PPL table 4: pages written to the device by SQLite")
    }),
    ("ppl_figure7", |table, path| {
        by_workload(table, path, "ms", "SQLite/PPL figure 7: size of a log sector")
    }),
    ("ppl_figure8", |table, path| {
        by_workload(table, path, "in PCM: ms", "SQLite/PPL figure 8: databases and logs in PCM")
    }),
];

/// Draws the measurements that are known and lie in a directory as `NAME.csv` into `NAME.svg` beside them; returns what was
/// drawn.
///
/// # Errors
/// A file cannot be read or written, or lacks a column.
pub fn draw_known(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut drawn = Vec::new();
    for (name, draw) in KNOWN {
        let source = dir.join(name).with_extension("csv");
        if source.exists() {
            let path = source.with_extension("svg");
            draw(&Table::read(&source)?, &path)?;
            drawn.push(path);
        }
    }
    Ok(drawn)
}

/// Draws any table: the first column names the bars, each other one is a panel. Cells that are no numbers are left out. Bars are of
/// the same colour whose names begin with the same word.
///
/// # Errors
/// A file cannot be read or written.
pub fn draw_table(source: &Path, path: &Path, title: &str, is_log: bool) -> Result<()> {
    let table = Table::read(source)?;
    let columns: Vec<usize> = (1..table.columns.len()).collect();
    bars(&table, path, &[0], &columns, title, is_log)
}

fn bars(
    table: &Table,
    path: &Path,
    label: &[usize],
    values: &[usize],
    title: &str,
    is_log: bool,
) -> Result<()> {
    let mut kinds: Vec<String> = Vec::new();
    let labels = (0..table.rows.len()).map(|row| {
        let label = label.iter().map(|column| table.text(row, *column)).collect::<Vec<_>>().join(", ");
        let kind = table.text(row, 0).split([' ', ',']).next().unwrap_or("").to_owned();
        let number = kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len());
        if number == kinds.len() {
            kinds.push(kind);
        }
        (label, number)
    });
    let labels = labels.collect();
    let panels = values.iter().map(|&column| Panel {
        name: table.columns.get(column).cloned().unwrap_or_default(),
        values: (0..table.rows.len()).map(|row| table.number(row, column)).collect(),
    });
    Bars { title: title.to_owned(), labels, panels: panels.collect(), is_log }.draw(path)
}

/// A bar for each mode of each workload, where the column has a number.
fn by_workload(table: &Table, path: &Path, column: &str, title: &str) -> Result<()> {
    let value = table.column(column)?;
    let modes = table.distinct(1);
    let rows: Vec<usize> = (0..table.rows.len()).filter(|row| table.number(*row, value).is_some()).collect();
    let labels = rows.iter().map(|&row| {
        let mode = table.text(row, 1);
        let number = modes.iter().position(|known| *known == mode).unwrap_or(0);
        (format!("{}, {mode}", table.text(row, 0)), number)
    });
    let values = rows.iter().map(|&row| table.number(row, value)).collect();
    let panel = Panel { name: column.to_owned(), values };
    Bars { title: title.to_owned(), labels: labels.collect(), panels: vec![panel], is_log: true }.draw(path)
}

fn figure5_6(table: &Table, path: &Path) -> Result<()> {
    let series = |column: usize| Series {
        name: table.columns.get(column).cloned().unwrap_or_default(),
        points: points(table, column, |row| table.number(row, 0)),
        is_reference: false,
    };
    let panel = LinesPanel { name: String::new(), series: vec![series(1), series(2)] };
    Lines {
        title: "NVWAL figure 5: cost of ordering at 500 ns".to_owned(),
        x: "inserts per transaction".to_owned(),
        y: "us per transaction".to_owned(),
        is_log: false,
        panels: vec![panel],
    }
    .draw(path)
}

fn figure7(table: &Table, path: &Path) -> Result<()> {
    let panels = table.distinct(0).into_iter().map(|operation| LinesPanel {
        name: operation.to_owned(),
        series: (0..table.rows.len())
            .filter(|row| table.text(*row, 0) == operation)
            .map(|row| along(table, row, 2, table.text(row, 1), false))
            .collect(),
    });
    Lines {
        title: "NVWAL figure 7: six variants over NVRAM write latency".to_owned(),
        x: "write latency (ns per line)".to_owned(),
        y: "transactions/s".to_owned(),
        is_log: false,
        panels: panels.collect(),
    }
    .draw(path)
}

fn figure9(table: &Table, path: &Path) -> Result<()> {
    let series = (1..table.columns.len()).map(|column| Series {
        name: table.columns.get(column).cloned().unwrap_or_default(),
        points: points(table, column, |row| table.number(row, 0)),
        is_reference: false,
    });
    Lines {
        title: "NVWAL figure 9: where NVRAM is as slow as this disk".to_owned(),
        x: "write latency (us per line)".to_owned(),
        y: "inserts/s".to_owned(),
        is_log: true,
        panels: vec![LinesPanel { name: String::new(), series: series.collect() }],
    }
    .draw(path)
}

fn table2(table: &Table, path: &Path) -> Result<()> {
    let rows = (0..table.rows.len()).filter(|row| table.text(*row, 0).contains("differences"));
    let series = rows.map(|row| {
        let name = table.text(row, 0);
        along(table, row, 1, name, name.contains("paper"))
    });
    Lines {
        title: "NVWAL table 2: bytes put into NVRAM".to_owned(),
        x: "operations per transaction".to_owned(),
        y: "bytes per transaction".to_owned(),
        is_log: true,
        panels: vec![LinesPanel { name: String::new(), series: series.collect() }],
    }
    .draw(path)
}

/// A row as a line over the numbers in the headings, from a column on.
fn along(table: &Table, row: usize, from: usize, name: &str, is_reference: bool) -> Series {
    let columns = (from..table.columns.len()).filter_map(|column| {
        let x = table.columns.get(column).and_then(|heading| number(heading))?;
        Some((x, table.number(row, column)?))
    });
    Series { name: name.to_owned(), points: columns.collect(), is_reference }
}

/// A column as points over something that each row has.
fn points(table: &Table, column: usize, x: impl Fn(usize) -> Option<f64>) -> Vec<(f64, f64)> {
    (0..table.rows.len()).filter_map(|row| Some((x(row)?, table.number(row, column)?))).collect()
}
