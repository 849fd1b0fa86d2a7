//! Prints lines, a progress bar on a terminal, and tables.

use std::io::{Write, stdout};
use std::time::Instant;

use anyhow::Result;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Prints a line.
///
/// # Errors
/// An error if no process reads standard output any more.
pub(crate) fn say(line: &str) -> Result<()> {
    Ok(writeln!(stdout(), "{line}")?)
}

/// Shows a bar while rows are inserted, if standard output is a terminal. Prints one line at the
/// end in any case.
pub(crate) struct Progress {
    label: String,
    total: usize,
    first: usize,
    began: Instant,
    bar: ProgressBar,
}

impl Progress {
    /// Starts a bar of `total` rows, of which `first` are already in the database.
    pub(crate) fn new(label: &str, total: usize, first: usize) -> Self {
        // This draws nothing if standard output is no terminal.
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stdout());
        if let Ok(style) = ProgressStyle::with_template("  {prefix:<35} [{bar:28}] {pos:>6}/{len}  {rate}") {
            let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                // If this write fails, the bar lacks the rate until the library redraws it a moment later.
                let _ = write!(out, "{}/s", grouped(state.per_sec()));
            };
            bar.set_style(style.progress_chars("##.").with_key("rate", rate));
        }
        bar.set_prefix(label.to_owned());
        bar.set_position(first as u64);
        Self { label: label.to_owned(), total, first, began: Instant::now(), bar }
    }

    pub(crate) fn update(&self, done: usize) {
        self.bar.set_position(done as u64);
    }

    /// Prints the final line. `done` may be less than the total, because a run may stop early.
    ///
    /// # Errors
    /// An error if no process reads standard output any more.
    pub(crate) fn finish(self, done: usize) -> Result<()> {
        self.bar.finish_and_clear();
        let rate = (done - self.first.min(done)) as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
        let (done, total) = (grouped(done as f64), grouped(self.total as f64));
        say(&format!("  {:<35} {done:>7}/{total}  {:>9}/s", self.label, grouped(rate)))
    }
}

/// Returns a number without decimals, with commas between the thousands.
pub(crate) fn grouped(number: f64) -> String {
    HumanCount(number.round() as u64).to_string()
}

/// Returns a table with aligned columns. The first column is aligned to the left, and the others to the
/// right.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(ToString::to_string).collect();
    let length = |cell: Option<&String>| cell.map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> = (0..heading.len())
        .map(|i| rows.iter().chain([&heading]).map(|row| length(row.get(i))).max().unwrap_or(0))
        .collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(i, (cell, &width))| match i {
            0 => format!("  {cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let lines: Vec<String> = [&heading, &rule].into_iter().chain(rows).map(|row| line(row)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            ["7", "999", "1,000", "1,234,567"],
            [7.0, 999.0, 1000.0, 1_234_567.0].map(grouped).each_ref().map(String::as_str)
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["one".to_owned(), "1".to_owned()], vec!["two three".to_owned(), "12".to_owned()]];
        assert_eq!(
            table(&["", "n"], &rows),
            "              n\n  ---------  --\n  one         1\n  two three  12"
        );
    }
}
