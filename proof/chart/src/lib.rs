//! Pictures of tables of figures: CSV files in, SVG files out.
//!
//! SVG is text without fonts of its own: it needs no font library to be made, can be compared, and browsers and the book show it
//! as it is.

mod bars;
mod draw;
mod figures;
mod legend;
mod lines;
mod scale;
mod style;
mod table;

pub use draw::{draw_known, draw_known_in, draw_table};
pub use figures::is_known;
