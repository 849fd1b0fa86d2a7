//! Horizontal bars, in panels side by side that share the labels at the left.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::style::{FONT, LETTER, TITLE, colour, short, text};

/// A column of bars.
pub struct Panel {
    /// Above it.
    pub name: String,
    /// One for each label; `None` draws nothing there.
    pub values: Vec<Option<f64>>,
}

/// A picture of bars.
pub struct Bars {
    /// Above all.
    pub title: String,
    /// At the left, and a number that bars of the same colour share.
    pub labels: Vec<(String, usize)>,
    /// From left to right.
    pub panels: Vec<Panel>,
    /// Whether lengths are logarithmic.
    pub is_log: bool,
}

const ROW: i32 = 24;
const BAR: i32 = 16;
const PANEL: i32 = 420;
/// For the number after the longest bar.
const NUMBER: i32 = 64;
const TOP: i32 = 72;
const GAP: i32 = 12;

impl Bars {
    /// Draws the picture into an SVG file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn draw(&self, path: &Path) -> Result<()> {
        let longest = self.labels.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let left = GAP * 2 + longest as i32 * LETTER;
        let width = left + self.panels.len().max(1) as i32 * PANEL;
        let height = TOP + self.labels.len() as i32 * ROW + GAP;
        let root = SVGBackend::new(path, (width as u32, height as u32)).into_drawing_area();
        self.draw_on(&root, left).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
    }

    fn draw_on(&self, root: &DrawingArea<SVGBackend<'_>, Shift>, left: i32) -> Result<()> {
        root.fill(&WHITE)?;
        root.draw(&Text::new(self.title.as_str(), (GAP, 20), text(TITLE, HPos::Left)))?;
        for (row, (label, _)) in self.labels.iter().enumerate() {
            let at = (left - GAP, middle_of(row));
            root.draw(&Text::new(label.as_str(), at, text(FONT, HPos::Right)))?;
        }
        for (number, panel) in self.panels.iter().enumerate() {
            let from = left + number as i32 * PANEL;
            let note = if self.is_log { ", log scale" } else { "" };
            let name = format!("{}{note}", panel.name);
            root.draw(&Text::new(name, (from, 50), text(FONT, HPos::Left)))?;
            let lengths = lengths(&panel.values, self.is_log);
            for (row, (value, length)) in panel.values.iter().zip(lengths).enumerate() {
                let Some(value) = value else { continue };
                let end = from + (length * f64::from(PANEL - NUMBER)).round() as i32;
                let (y, kind) = (middle_of(row), self.labels.get(row).map_or(0, |label| label.1));
                let corners = [(from, y - BAR / 2), (end.max(from + 1), y + BAR / 2)];
                root.draw(&Rectangle::new(corners, colour(kind).filled()))?;
                root.draw(&Text::new(short(*value), (end + 6, y), text(FONT, HPos::Left)))?;
            }
        }
        Ok(root.present()?)
    }
}

fn middle_of(row: usize) -> i32 {
    TOP + row as i32 * ROW + ROW / 2
}

/// Of the longest bar, between 0 and 1. On a logarithmic scale the shortest is a third of a decade long.
fn lengths(values: &[Option<f64>], is_log: bool) -> Vec<f64> {
    let known = || values.iter().flatten().copied().filter(|value| *value > 0.0);
    let most = known().fold(f64::MIN_POSITIVE, f64::max);
    let least = known().fold(most, f64::min) / 2.0;
    let length = |value: f64| match is_log {
        _ if value <= 0.0 => 0.0,
        true => (value / least).log10() / (most / least).log10(),
        false => value / most,
    };
    values.iter().map(|value| value.map_or(0.0, length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_numbers() {
        let values = [Some(50.0), None, Some(100.0), Some(0.0)];
        assert_eq!(lengths(&values, false), [0.5, 0.0, 1.0, 0.0]);
        let log = lengths(&[Some(1000.0), Some(10.0), Some(100.0), Some(0.0)], true);
        assert!((log[0] - 1.0).abs() < 1e-9 && log[3] == 0.0, "{log:?}");
        assert!((log[0] - log[2] - (log[2] - log[1])).abs() < 1e-9, "decades are equally long: {log:?}");
    }
}
