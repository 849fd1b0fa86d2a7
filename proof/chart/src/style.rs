//! What all pictures have in common.

use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoTextStyle, RGBColor, TextStyle};

pub(crate) const INK: RGBColor = RGBColor(30, 30, 30);
pub(crate) const GRID: RGBColor = RGBColor(225, 225, 225);
/// Pixels.
pub(crate) const TITLE: u32 = 20;
pub(crate) const FONT: u32 = 14;
/// The width of a letter of [`FONT`], about.
pub(crate) const LETTER: i32 = 8;

/// Colours that can be told apart, also by those who see no red.
const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(150, 140, 20),
];

pub(crate) fn colour(number: usize) -> RGBColor {
    PALETTE.get(number % PALETTE.len()).copied().unwrap_or(INK)
}

/// Text of a size, anchored at its left or right end, or in its middle.
pub(crate) fn text(size: u32, anchor: HPos) -> TextStyle<'static> {
    ("sans-serif", size)
        .with_color(INK.to_rgba())
        .into_text_style(&(0, 0))
        .pos(Pos::new(anchor, VPos::Center))
}

/// A number as it stands in a picture.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.1}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}
