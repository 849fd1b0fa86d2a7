//! Draws a table as a picture. The description of the figure says how.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::bars::{Bars, Group, Panel};
use crate::figures::{self, Along, Each, FIGURES, Figure, Grouped, Kind, Plot};
use crate::lines::{Lines, LinesPanel, Series};
use crate::picture::Format;
use crate::table::{Table, quantity};

/// Draws `NAME.csv` into `NAME.svg` beside it, for each known table in a directory. Returns the paths of the
/// pictures.
///
/// # Errors
/// An error if a file cannot be read or written, or lacks a column.
pub fn draw_known_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let sources = FIGURES.iter().map(|figure| dir.join(figure.table).with_extension("csv"));
    let drawn = sources.filter(|source| source.exists()).map(|source| draw_known(&source));
    Ok(drawn.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Draws `NAME.csv` into `NAME.svg` beside it, if the table is known. Returns the path of the picture.
///
/// # Errors
/// An error if the file cannot be read or written, or lacks a column.
pub fn draw_known(source: &Path) -> Result<Option<PathBuf>> {
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let Some(figure) = figures::of(&name) else { return Ok(None) };
    let path = source.with_extension("svg");
    Format::Svg.write(&path, &draw(&Table::read(source)?, figure)?)?;
    Ok(Some(path))
}

/// Draws any table. The extension of the picture's file says whether the picture is SVG or PNG. The first
/// column names the bars, and each further column is a panel. For a cell without a number there is no bar.
/// Bars have the same colour if their names begin with the same word.
///
/// # Errors
/// An error if a file cannot be read or written, if the extension is neither `.svg` nor `.png`, or if no font
/// has one of the letters of a PNG.
pub fn draw_table(source: &Path, path: &Path, title: &str, is_log: bool) -> Result<()> {
    let format = Format::of(path)?;
    let table = Table::read(source)?;
    let rows = 0..table.rows.len();
    let labels = rows.clone().map(|row| table.text(row, 0).to_owned()).collect();
    let panels = (1..table.columns.len()).map(|column| Panel {
        name: table.columns.get(column).cloned().unwrap_or_default(),
        values: rows.clone().map(|row| vec![table.number(row, column)]).collect(),
    });
    let groups = alone(labels);
    let (panels, title) = (panels.collect(), title.to_owned());
    let bars =
        Bars { title, legend: Vec::new(), groups, panels, is_one_scale: false, is_log, is_stacked: false };
    format.write(path, &bars.svg()?)
}

fn draw(table: &Table, figure: &Figure) -> Result<String> {
    let title = figure.title.to_owned();
    match &figure.kind {
        Kind::Bars(grouped) => bars(table, grouped, title)?.svg(),
        Kind::Lines { per_row, plots } => {
            let panels = plots.iter().map(|plot| panels(table, plot)).collect::<Result<Vec<_>>>()?;
            let panels = panels.into_iter().flatten().filter(LinesPanel::has_points).collect();
            Lines { title, panels, per_row: *per_row }.svg()
        }
    }
}

/// Returns groups of one bar each. Groups whose labels begin with the same word have the same colour.
fn alone(labels: Vec<String>) -> Vec<Group> {
    let mut words: Vec<String> = Vec::new();
    let colour = |label: &str| {
        let word = label.split([' ', ',']).next().unwrap_or("").to_owned();
        let number = words.iter().position(|known| *known == word).unwrap_or(words.len());
        if number == words.len() {
            words.push(word);
        }
        number
    };
    let colours: Vec<usize> = labels.iter().map(String::as_str).map(colour).collect();
    labels.into_iter().zip(colours).map(|(label, colour)| Group { label, colours: vec![colour] }).collect()
}

/// A bar: the label of its group, the name of its panel, its own name, and its value.
struct Bar {
    label: String,
    panel: String,
    name: String,
    value: f64,
}

fn bars(table: &Table, grouped: &Grouped, title: String) -> Result<Bars> {
    let found = all_bars(table, grouped)?;
    let labels = distinct(found.iter().map(|bar| bar.label.clone()));
    let names = distinct(found.iter().map(|bar| bar.name.clone()));
    let is_alone = matches!(grouped.bars, Each::Row(_));
    let groups = if is_alone {
        alone(labels)
    } else {
        let of = |label: &String| {
            let has = |name: &String| found.iter().any(|bar| bar.label == *label && bar.name == *name);
            (0..names.len()).filter(|number| names.get(*number).is_some_and(has)).collect()
        };
        labels.into_iter().map(|label| Group { colours: of(&label), label }).collect()
    };
    let length = |panel: &str, label: &str, name: Option<&String>| {
        let is_it = |bar: &&Bar| {
            bar.panel == panel
                && bar.label == label
                && (is_alone || name.is_some_and(|name| bar.name == *name))
        };
        found.iter().find(is_it).map(|bar| bar.value)
    };
    let panels = distinct(found.iter().map(|bar| bar.panel.clone())).into_iter().map(|panel| {
        let of = |group: &Group| {
            let bars = group.colours.iter();
            bars.map(|number| length(&panel, &group.label, names.get(*number))).collect()
        };
        let values = groups.iter().map(of).collect();
        let name = if panel.is_empty() {
            grouped.measure.to_owned()
        } else {
            format!("{panel}: {}", grouped.measure)
        };
        Panel { name, values }
    });
    let panels = panels.collect();
    let legend = if is_alone { Vec::new() } else { names };
    let Grouped { is_log, is_stacked, .. } = *grouped;
    Ok(Bars { title, legend, groups, panels, is_one_scale: true, is_log, is_stacked })
}

/// Returns the bars for all cells that hold a number, row by row.
fn all_bars(table: &Table, grouped: &Grouped) -> Result<Vec<Bar>> {
    let label = table.columns_of(grouped.label)?;
    let panel = grouped.panels.map(|column| table.column(column)).transpose()?;
    let mut found = Vec::new();
    for row in 0..table.rows.len() {
        let mut push = |name: &str, column: usize| {
            if let Some(value) = table.number(row, column) {
                let panel = panel.map_or("", |panel| table.text(row, panel)).to_owned();
                found.push(Bar { label: table.joined(row, &label), panel, name: name.to_owned(), value });
            }
        };
        match grouped.bars {
            Each::Row(figure) => push("", table.column(figure)?),
            Each::Column(names) => {
                for name in names {
                    push(without_unit(name, grouped.measure), table.column(name)?);
                }
            }
            Each::RowOf { name, figure } => push(table.text(row, table.column(name)?), table.column(figure)?),
        }
    }
    Ok(found)
}

fn panels(table: &Table, plot: &Plot) -> Result<Vec<LinesPanel>> {
    let by = table.columns_of(plot.panels)?;
    let only =
        plot.only.map(|(column, text)| Ok::<_, anyhow::Error>((table.column(column)?, text))).transpose()?;
    let is_meant = |row: &usize| only.is_none_or(|(column, text)| table.text(*row, column).contains(text));
    let rows: Vec<usize> = (0..table.rows.len()).filter(is_meant).collect();
    let names = distinct(rows.iter().map(|row| table.joined(*row, &by)));
    let panel = |name: String| {
        let rows: Vec<usize> = rows.iter().copied().filter(|row| table.joined(*row, &by) == name).collect();
        Ok(LinesPanel { series: lines(table, plot, &rows)?, name, x: plot.x, y: plot.y })
    };
    names.into_iter().map(panel).collect()
}

fn lines(table: &Table, plot: &Plot, rows: &[usize]) -> Result<Vec<Series>> {
    match plot.lines {
        Along::Column { over, of } => {
            let over = table.column(over)?;
            let line = |name: &&str| {
                let column = table.column(name)?;
                let point =
                    |row: &usize| Some((quantity(table.text(*row, over))?, table.number(*row, column)?));
                let points = rows.iter().filter_map(point).collect();
                let name = without_unit(name, plot.y.name).to_owned();
                Ok(Series { name, points, sizes: Vec::new() })
            };
            of.iter().map(line).collect()
        }
        Along::Headings { name, before, unit } => {
            let name = table.column(name)?;
            let number = |(column, heading): (usize, &String)| {
                let rest = heading.strip_prefix(before)?;
                let end = rest.find(|letter: char| !letter.is_ascii_digit())?;
                let (digits, after) = rest.split_at_checked(end)?;
                after.starts_with(unit).then_some((column, digits.parse::<f64>().ok()?))
            };
            let headings: Vec<_> = table.columns.iter().enumerate().filter_map(number).collect();
            ensure!(!headings.is_empty(), "no heading is {before}NUMBER{unit}");
            let line = |row: &usize| {
                let point = |&(column, x): &(usize, f64)| Some((x, table.number(*row, column)?));
                let points = headings.iter().filter_map(point).collect();
                Series { name: table.text(*row, name).to_owned(), points, sizes: Vec::new() }
            };
            Ok(rows.iter().map(line).collect())
        }
        Along::Marks { over, of, name, size } => {
            let (over, of) = (table.column(over)?, table.column(of)?);
            let (size, name) = (table.column(size)?, table.column(name)?);
            let names = distinct(rows.iter().map(|row| table.text(*row, name).to_owned()));
            let series = |name_of: String| {
                let own = rows.iter().filter(|row| table.text(**row, name) == name_of);
                let mark = |row: &usize| {
                    // A logarithmic axis cannot show a 0, which is the address of a device's first byte.
                    let y = table.number(*row, of).filter(|y| !plot.y.is_log || *y > 0.0)?;
                    Some(((table.number(*row, over)?, y), table.number(*row, size)?))
                };
                let (points, sizes): (Vec<_>, Vec<_>) = own.filter_map(mark).unzip();
                Series { name: name_of, points, sizes }
            };
            let found = names.into_iter().map(series);
            Ok(found.filter(|series| !series.points.is_empty()).collect())
        }
    }
}

/// Returns a heading without its unit, which the picture states elsewhere. The unit is at the end of the
/// heading, or in parentheses.
fn without_unit<'a>(heading: &'a str, unit: &str) -> &'a str {
    let bare = heading.strip_suffix(unit).filter(|bare| !bare.is_empty()).unwrap_or(heading);
    bare.split(" (").next().unwrap_or(bare).trim_end()
}

/// Removes duplicates and keeps the order.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_said_once() {
        assert_eq!(without_unit("log MB", "MB"), "log");
        assert_eq!(without_unit("seconds", "seconds"), "seconds");
        assert_eq!(without_unit("baseline (tx/s)", "transactions/s"), "baseline");
        assert_eq!(without_unit("write-back, flushes free", "transactions/s"), "write-back, flushes free");
    }

    #[test]
    fn every_table_is_described_once() {
        for figure in FIGURES {
            assert_eq!(
                FIGURES.iter().filter(|other| other.table == figure.table).count(),
                1,
                "{}",
                figure.table
            );
        }
    }
}
