//! Pictures of tables of figures: CSV files in, SVG files out.
//!
//! SVG is text without fonts of its own: it needs no font library to be made, can be compared, and browsers and the book show it
//! as it is.

mod bars;
mod figures;
mod lines;
mod style;
mod table;

pub use bars::{Bars, Panel};
pub use figures::{draw_known, draw_table};
pub use lines::{Lines, LinesPanel, Series};
