//! Stands in for `png.rs` in a build without the feature `png`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Fails, because this build renders no PNG.
///
/// # Errors
/// Always.
pub fn png_beside(svg: &Path) -> Result<PathBuf> {
    of_svg("").map(|_| svg.to_owned())
}

/// Fails like [`png_beside`].
pub(crate) fn of_svg(_svg: &str) -> Result<Vec<u8>> {
    bail!("this program draws SVG files only; build it with `--features png`")
}
