//! Pictures of tables of figures: CSV files in, SVG and PNG files out.
//!
//! Every picture is drawn as SVG, a text without fonts of its own: it can be compared, and browsers and the book show it as it is.
//! A PNG is made of that.

mod bars;
mod draw;
mod figures;
mod legend;
mod lines;
mod picture;
mod png;
mod scale;
mod style;
mod table;

pub use draw::{draw_known, draw_known_in, draw_table};
pub use figures::is_known;
pub use png::png_beside;
