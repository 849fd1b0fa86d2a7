//! Lines through points, in panels side by side.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::style::{FONT, GRID, INK, TITLE, colour, short};

/// A line.
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Ascending by the first number.
    pub points: Vec<(f64, f64)>,
    /// Of somebody else's figures: no marks.
    pub is_reference: bool,
}

/// Lines that are compared.
pub struct LinesPanel {
    /// Above it.
    pub name: String,
    /// Its lines.
    pub series: Vec<Series>,
}

/// A picture of lines.
pub struct Lines {
    /// Above all panels.
    pub title: String,
    /// Below each panel.
    pub x: String,
    /// Beside each panel.
    pub y: String,
    /// Whether both axes are logarithmic; otherwise the one beside begins at 0.
    pub is_log: bool,
    /// From left to right.
    pub panels: Vec<LinesPanel>,
}

const PANEL: (u32, u32) = (560, 420);

impl Lines {
    /// Draws the picture into an SVG file.
    ///
    /// # Errors
    /// There is nothing to draw, or the file cannot be written.
    pub fn draw(&self, path: &Path) -> Result<()> {
        let size = (PANEL.0 * self.panels.len().max(1) as u32, PANEL.1 + 40);
        let root = SVGBackend::new(path, size).into_drawing_area();
        self.draw_on(&root).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
    }

    fn draw_on(&self, root: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        root.fill(&WHITE)?;
        let plot = root.titled(&self.title, ("sans-serif", TITLE))?;
        for (panel, area) in self.panels.iter().zip(plot.split_evenly((1, self.panels.len().max(1)))) {
            let points = || panel.series.iter().flat_map(|series| &series.points);
            let (x, y) = (extent(points().map(|point| point.0)), extent(points().map(|point| point.1)));
            let (x, y) = x.zip(y).ok_or_else(|| anyhow!("no figures"))?;
            if self.is_log {
                let wide = |(from, to): (f64, f64)| (from / 1.2..to * 1.2).log_scale();
                self.panel(&area, panel, wide(x), wide(y))?;
            } else {
                let margin = (x.1 - x.0).max(1.0) * 0.04;
                self.panel(&area, panel, x.0 - margin..x.1 + margin, 0.0..y.1 * 1.08)?;
            }
        }
        Ok(root.present()?)
    }

    fn panel<X, Y>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        panel: &LinesPanel,
        x: X,
        y: Y,
    ) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.name, ("sans-serif", FONT + 2))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x, y)
            .map_err(|error| anyhow!("{error}"))?;
        let format = |value: &f64| short(*value);
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&format)
            .y_label_formatter(&format)
            .label_style(("sans-serif", FONT))
            .draw()
            .map_err(|error| anyhow!("{error}"))?;
        for (number, series) in panel.series.iter().enumerate() {
            let colour = colour(number);
            let width = if series.is_reference { 1 } else { 2 };
            chart
                .draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(width)))
                .map_err(|error| anyhow!("{error}"))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(width)));
            let marks = series.points.iter().filter(|_| !series.is_reference);
            chart
                .draw_series(marks.map(|point| Circle::new(*point, 3, colour.filled())))
                .map_err(|error| anyhow!("{error}"))?;
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", FONT - 2))
            .background_style(WHITE.mix(0.85))
            .border_style(INK.mix(0.3))
            .position(SeriesLabelPosition::UpperRight)
            .draw()
            .map_err(|error| anyhow!("{error}"))
    }
}

/// The least and the largest.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |found: Option<(f64, f64)>, value| {
        let (least, most) = found.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}
