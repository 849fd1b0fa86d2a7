//! The tests of the pictures that are drawn of tables.

mod figures;
#[cfg(feature = "png")]
mod png;
