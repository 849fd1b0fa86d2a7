//! Tests of the pictures of tables.

mod figures;
#[cfg(feature = "png")]
mod png;
