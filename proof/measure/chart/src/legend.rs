//! Draws the legend: the meanings of a picture's colours, in lines above its panels.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::style::{FONT, colour, letters, text};

const LINE: i32 = 20;
const SWATCH: i32 = 12;
/// The gap in pixels between a swatch and its name. The gap before the next swatch is three times as wide.
const GAP: i32 = 6;

/// The names and their positions. The first name has the first colour, and so on.
pub(crate) struct Legend<'a> {
    entries: Vec<(&'a str, i32, i32)>,
    bottom: i32,
}

impl<'a> Legend<'a> {
    /// Places the names, beginning at this corner. A name that would exceed the width of the picture
    /// begins a new line.
    pub(crate) fn new(names: &'a [String], (left, top): (i32, i32), width: i32) -> Self {
        let (mut x, mut y) = (left, top);
        let mut entries = Vec::new();
        for name in names {
            let needed = SWATCH + GAP + letters(name) + 3 * GAP;
            if x > left && x + needed > width {
                (x, y) = (left, y + LINE);
            }
            entries.push((name.as_str(), x, y + LINE / 2));
            x += needed;
        }
        Self { bottom: if entries.is_empty() { top } else { y + LINE }, entries }
    }

    /// Returns the vertical position where the panels may begin.
    pub(crate) fn bottom(&self) -> i32 {
        self.bottom
    }

    /// Draws the legend.
    ///
    /// # Errors
    /// An error of the drawing backend.
    pub(crate) fn draw(&self, root: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        for (number, &(name, x, y)) in self.entries.iter().enumerate() {
            let corners = [(x, y - SWATCH / 2), (x + SWATCH, y + SWATCH / 2)];
            root.draw(&Rectangle::new(corners, colour(number).filled()))?;
            root.draw(&Text::new(name.to_owned(), (x + SWATCH + GAP, y), text(FONT, HPos::Left)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_fit_begin_a_line() {
        let names = ["one".to_owned(), "two".to_owned(), "three".to_owned()];
        let wide = Legend::new(&names, (10, 40), 1000);
        assert_eq!(wide.bottom(), 40 + LINE);
        assert!(wide.entries[0].1 < wide.entries[1].1 && wide.entries[0].2 == wide.entries[2].2);
        let narrow = Legend::new(&names, (10, 40), 30);
        assert_eq!(narrow.bottom(), 40 + 3 * LINE);
        assert!(narrow.entries.iter().all(|entry| entry.1 == 10));
        assert_eq!(Legend::new(&[], (10, 40), 30).bottom(), 40);
    }
}
