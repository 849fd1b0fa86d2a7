//! Draws pictures of tables of measurements. It reads CSV files, and writes SVG and PNG files.
//!
//! The program first draws every picture as SVG. An SVG is text without embedded fonts, so tests can compare
//! it, and browsers and the book show it directly. For a PNG, the program renders the SVG.

mod bars;
mod draw;
mod figures;
mod legend;
mod lines;
mod picture;
#[cfg_attr(not(feature = "png"), path = "without_png.rs")]
mod png;
mod scale;
mod style;
mod table;

pub use draw::{draw_known, draw_known_in, draw_table};
pub use figures::is_known;
pub use png::png_beside;
