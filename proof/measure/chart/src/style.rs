//! Defines the colours, fonts and number formats that all pictures share.

use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoTextStyle, RGBColor, TextStyle, WHITE};

pub(crate) const INK: RGBColor = RGBColor(30, 30, 30);
pub(crate) const GRID: RGBColor = RGBColor(225, 225, 225);
/// The font size of titles in pixels. The next constant is the font size of all other text.
pub(crate) const TITLE: u32 = 20;
pub(crate) const FONT: u32 = 14;

/// Colours that all readers can tell apart, even those who see no red.
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

/// Returns the approximate width of a text in [`FONT`], in pixels.
pub(crate) fn letters(text: &str) -> i32 {
    text.chars().count() as i32 * 8
}

/// Returns the approximate width that a picture needs for its title, in pixels.
pub(crate) fn title_width(title: &str) -> i32 {
    title.chars().count() as i32 * 11 + 24
}

/// Returns a text style of this size, anchored at the left end, the right end or the middle of the text.
pub(crate) fn text(size: u32, anchor: HPos) -> TextStyle<'static> {
    inked(INK, size, anchor)
}

/// Returns a style for centred text on a palette colour. The text is dark or white, whichever is readable.
pub(crate) fn text_on(number: usize) -> TextStyle<'static> {
    let RGBColor(red, green, blue) = colour(number);
    let brightness = (u32::from(red) * 3 + u32::from(green) * 6 + u32::from(blue)) / 10;
    inked(if brightness > 125 { INK } else { WHITE }, FONT, HPos::Center)
}

fn inked(ink: RGBColor, size: u32, anchor: HPos) -> TextStyle<'static> {
    ("sans-serif", size)
        .with_color(ink.to_rgba())
        .into_text_style(&(0, 0))
        .pos(Pos::new(anchor, VPos::Center))
}

/// Formats a number for a picture, with about three digits.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if digits == 0 { &text } else { text.trim_end_matches('0').trim_end_matches('.') };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_say_no_more_than_they_know() {
        let cases =
            [(0.0, "0"), (0.05, "0.05"), (24.7, "24.7"), (36.0, "36"), (500.0, "500"), (9871.0, "9871")];
        let large = [
            (10_000.0, "10k"),
            (21_152.0, "21.2k"),
            (468_555.0, "469k"),
            (1e6, "1M"),
            (5_791_479.0, "5.79M"),
        ];
        for (value, text) in cases.into_iter().chain(large) {
            assert_eq!(short(value), text);
        }
    }
}
