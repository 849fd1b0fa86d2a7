//! Draws horizontal bars in groups. The panels stand side by side and share the labels at the left.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::legend::Legend;
use crate::style::{FONT, TITLE, colour, letters, short, text, text_on, title_width};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Bars that belong together. They lie below each other or, if they are stacked, end to end.
pub(crate) struct Group {
    /// The label at the left of the group.
    pub(crate) label: String,
    /// The number of each bar's colour.
    pub(crate) colours: Vec<usize>,
}

/// A column of bars.
pub(crate) struct Panel {
    /// The heading of the panel.
    pub(crate) name: String,
    /// For each group, a value for each of its bars; `None` draws no bar.
    pub(crate) values: Vec<Vec<Option<f64>>>,
}

/// A picture of bars.
pub(crate) struct Bars {
    /// The title of the picture.
    pub(crate) title: String,
    /// The meanings of the colours. Empty if the labels already name them.
    pub(crate) legend: Vec<String>,
    /// The groups from top to bottom.
    pub(crate) groups: Vec<Group>,
    /// The panels from left to right.
    pub(crate) panels: Vec<Panel>,
    /// Whether all panels have the same scale.
    pub(crate) is_one_scale: bool,
    /// Whether the scale is logarithmic.
    pub(crate) is_log: bool,
    /// Whether the bars of a group form a single bar of several colours.
    pub(crate) is_stacked: bool,
}

const ROW: i32 = 22;
const BAR: i32 = 16;
const PANEL: i32 = 420;
/// The space in pixels for the number after the longest bar.
const NUMBER: i32 = 64;
const TOP: i32 = 40;
const HEADING: i32 = 32;
const GAP: i32 = 12;

impl Bars {
    /// Returns the picture as an SVG document.
    ///
    /// # Errors
    /// An error if the picture cannot be drawn.
    pub(crate) fn svg(&self) -> Result<String> {
        let left = GAP * 2 + self.groups.iter().map(|group| letters(&group.label)).max().unwrap_or(0);
        let width = (left + self.panels.len().max(1) as i32 * PANEL).max(title_width(&self.title));
        let legend = Legend::new(&self.legend, (GAP * 2, TOP), width);
        let top = legend.bottom() + HEADING;
        let rows = self.rows(top);
        let height = rows.last().map_or(top, |row| row.end) + GAP;
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        let draw = || -> Result<()> {
            root.fill(&WHITE)?;
            root.draw(&Text::new(self.title.as_str(), (GAP, 20), text(TITLE, HPos::Left)))?;
            legend.draw(&root)?;
            for (group, row) in self.groups.iter().zip(&rows) {
                let at = (left - GAP, (row.begin + row.end) / 2);
                root.draw(&Text::new(group.label.as_str(), at, text(FONT, HPos::Right)))?;
            }
            for (number, panel) in self.panels.iter().enumerate() {
                let from = left + number as i32 * PANEL;
                let note = if self.is_log { ", log scale" } else { "" };
                let name = format!("{}{note}", panel.name);
                root.draw(&Text::new(name, (from, top - HEADING / 2), text(FONT, HPos::Left)))?;
                self.draw_panel(&root, panel, from, &rows)?;
            }
            Ok(root.present()?)
        };
        draw().map_err(|error| anyhow!("cannot draw {:?}: {error}", self.title))?;
        drop(root);
        Ok(svg)
    }

    /// Returns the vertical positions of the groups, with gaps between them if a group may have several bars.
    fn rows(&self, top: i32) -> Vec<Row> {
        let is_single = self.is_stacked || self.groups.iter().all(|group| group.colours.len() == 1);
        let gap = if is_single { 0 } else { GAP };
        let mut end = top - gap;
        let rows = self.groups.iter().map(|group| {
            let begin = end + gap;
            let count = if self.is_stacked { 1 } else { group.colours.len() as i32 };
            end = begin + count * ROW;
            Row { begin, end }
        });
        rows.collect()
    }

    fn draw_panel(&self, root: &Area<'_>, panel: &Panel, from: i32, rows: &[Row]) -> Result<()> {
        let scale = self.scale(panel);
        let pixels = |value: f64| (scale.length(value) * f64::from(PANEL - NUMBER)).round() as i32;
        for ((group, values), row) in self.groups.iter().zip(&panel.values).zip(rows) {
            let (mut begin, mut y) = (from, row.begin + ROW / 2);
            for (&kind, value) in group.colours.iter().zip(values) {
                if let Some(value) = *value {
                    let end = begin + pixels(value);
                    let corners = [(begin, y - BAR / 2), (end.max(begin + 1), y + BAR / 2)];
                    root.draw(&Rectangle::new(corners, colour(kind).filled()))?;
                    let number = short(value);
                    if !self.is_stacked {
                        root.draw(&Text::new(number, (end + 6, y), text(FONT, HPos::Left)))?;
                    } else if end - begin > letters(&number) {
                        root.draw(&Text::new(number, ((begin + end) / 2, y), text_on(kind)))?;
                    }
                    begin = if self.is_stacked { end } else { begin };
                }
                y += if self.is_stacked { 0 } else { ROW };
            }
        }
        Ok(())
    }

    fn scale(&self, panel: &Panel) -> Scale {
        let panels = self.panels.iter().filter(|other| self.is_one_scale || std::ptr::eq(*other, panel));
        let groups = panels.flat_map(|panel| &panel.values);
        if self.is_stacked {
            return Scale::new(groups.map(|group| group.iter().flatten().sum()), false);
        }
        Scale::new(groups.flatten().flatten().copied(), self.is_log)
    }
}

struct Row {
    begin: i32,
    end: i32,
}

/// Maps values to lengths of bars.
struct Scale {
    least: f64,
    most: f64,
    is_log: bool,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, is_log: bool) -> Self {
        let known: Vec<f64> = values.filter(|value| *value > 0.0).collect();
        let most = known.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        Self { least: known.iter().copied().fold(most, f64::min) / 2.0, most, is_log }
    }

    /// Returns the length of a bar as a fraction of the longest, between 0 and 1. On a logarithmic scale the
    /// shortest bar is a third of a decade long.
    fn length(&self, value: f64) -> f64 {
        match self.is_log {
            _ if value <= 0.0 => 0.0,
            true => (value / self.least).log10() / (self.most / self.least).log10(),
            false => value / self.most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_numbers() {
        let linear = Scale::new([50.0, 100.0, 0.0].into_iter(), false);
        assert_eq!([50.0, 100.0, 0.0].map(|value| linear.length(value)), [0.5, 1.0, 0.0]);
        let log = Scale::new([1000.0, 10.0, 100.0, 0.0].into_iter(), true);
        let log = [1000.0, 10.0, 100.0, 0.0].map(|value| log.length(value));
        assert!((log[0] - 1.0).abs() < 1e-9 && log[3] == 0.0, "{log:?}");
        assert!((log[0] - log[2] - (log[2] - log[1])).abs() < 1e-9, "decades are equally long: {log:?}");
    }
}
