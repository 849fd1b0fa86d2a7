//! Draws lines through points, in panels that form rows.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::figures::Axis;
use crate::legend::Legend;
use crate::scale::Scale;
use crate::style::{FONT, GRID, TITLE, colour, text, title_width};

/// A line.
pub(crate) struct Series {
    /// The name in the legend.
    pub(crate) name: String,
    /// The points in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// The sizes of the points. If there are any, the points are marks of these sizes, and no line joins them.
    pub(crate) sizes: Vec<f64>,
}

impl Series {
    /// Returns whether the line shows the paper's data. The points of such a line get no marks.
    fn is_reference(&self) -> bool {
        self.name.contains("paper")
    }

    /// Returns the marks, each with its point and its radius in pixels. Only series without a line have marks.
    /// Larger marks come first, so that they hide no smaller ones.
    fn marks(&self) -> Vec<((f64, f64), i32)> {
        let mut marks: Vec<_> = self.points.iter().copied().zip(self.sizes.iter().copied()).collect();
        marks.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let radius = |size: f64| (size * PIXELS).round().clamp(LEAST, MOST) as i32;
        marks.into_iter().map(|(point, size)| (point, radius(size))).collect()
    }
}

/// Lines that are compared in one panel.
pub(crate) struct LinesPanel {
    /// The heading of the panel.
    pub(crate) name: String,
    /// The axis below the panel.
    pub(crate) x: Axis,
    /// The axis at the left of the panel.
    pub(crate) y: Axis,
    /// The lines of the panel.
    pub(crate) series: Vec<Series>,
}

/// A picture of lines. Lines with the same name have the same colour. Panels in the same row have the same y scale.
pub(crate) struct Lines {
    /// The title of the picture.
    pub(crate) title: String,
    /// The panels from left to right, row by row.
    pub(crate) panels: Vec<LinesPanel>,
    /// The number of panels in a row.
    pub(crate) per_row: usize,
}

const TOP: i32 = 40;
const GAP: i32 = 12;
/// The radius of a mark in pixels is the mark's size times this number. The next constants are the bounds of the
/// radius.
const PIXELS: f64 = 0.75;
const LEAST: f64 = 2.0;
const MOST: f64 = 30.0;

impl Lines {
    /// Returns the picture as an SVG document.
    ///
    /// # Errors
    /// An error if a panel has no points.
    pub(crate) fn svg(&self) -> Result<String> {
        let names = self.names();
        let per_row = self.per_row.clamp(1, self.panels.len().max(1));
        let panel = if per_row < 3 { (560, 400) } else { (440, 320) };
        let width = (per_row as i32 * panel.0).max(title_width(&self.title));
        // A single line needs no legend, because the y axis says what the line is.
        let named = if names.len() > 1 { names.as_slice() } else { &[] };
        let legend = Legend::new(named, (GAP * 2, TOP), width);
        let rows = self.panels.chunks(per_row);
        let height = legend.bottom() + rows.len() as i32 * panel.1;
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        let draw = || -> Result<()> {
            root.fill(&WHITE)?;
            root.draw(&Text::new(self.title.as_str(), (GAP, 20), text(TITLE, HPos::Left)))?;
            legend.draw(&root)?;
            for (number, row) in rows.enumerate() {
                let top = legend.bottom() + number as i32 * panel.1;
                let measures: Vec<f64> =
                    row.iter().flat_map(LinesPanel::points).map(|point| point.1).collect();
                for (number, lines) in row.iter().enumerate() {
                    let left = number as i32 * panel.0;
                    let area = root.clone().shrink((left, top), panel);
                    let y =
                        Scale::of_measures(&measures, lines.y.is_log).ok_or_else(|| anyhow!("no figures"))?;
                    lines.draw(&area, y, &names)?;
                }
            }
            Ok(root.present()?)
        };
        draw().map_err(|error| anyhow!("cannot draw {:?}: {error}", self.title))?;
        drop(root);
        Ok(svg)
    }

    /// Returns the names of all lines, without duplicates.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name) {
                names.push(series.name.clone());
            }
        }
        names
    }
}

impl LinesPanel {
    /// Returns whether there is anything to draw.
    pub(crate) fn has_points(&self) -> bool {
        self.points().next().is_some()
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.series.iter().flat_map(|series| series.points.iter().copied())
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, y: Scale, names: &[String]) -> Result<()> {
        let choices: Vec<f64> = self.points().map(|point| point.0).collect();
        let x = Scale::of_choices(&choices, self.x.is_log).ok_or_else(|| anyhow!("no figures"))?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.name, ("sans-serif", FONT + 2))
            .margin(GAP)
            .margin_right(GAP * 2)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .x_desc(self.x.name)
            .y_desc(self.y.name)
            .label_style(("sans-serif", FONT))
            .draw()?;
        for series in &self.series {
            let colour = colour(names.iter().position(|name| *name == series.name).unwrap_or(0));
            if !series.sizes.is_empty() {
                let marks = series.marks();
                let disc = |(point, radius)| Circle::new(point, radius, colour.mix(0.5).filled());
                chart.draw_series(marks.into_iter().map(disc))?;
                continue;
            }
            let width = if series.is_reference() { 1 } else { 2 };
            chart.draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(width)))?;
            let marks = series.points.iter().filter(|_| !series.is_reference());
            chart.draw_series(marks.map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        Ok(())
    }
}
