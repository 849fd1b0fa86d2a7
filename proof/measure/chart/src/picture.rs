//! Writes a picture file in the format that its extension names.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The formats of a picture file.
#[derive(Clone, Copy)]
pub(crate) enum Format {
    Svg,
    Png,
}

impl Format {
    /// Returns the format for a file's extension, in lower or upper case.
    ///
    /// # Errors
    /// An error if the extension belongs to neither format.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match ending.as_str() {
            "svg" => Ok(Self::Svg),
            "png" => Ok(Self::Png),
            _ => bail!("{}: a picture is a file that ends in .svg or in .png", path.display()),
        }
    }

    /// Writes an SVG document into a file of this format.
    ///
    /// # Errors
    /// An error if the file cannot be written, or if this format cannot show the picture. In the second case
    /// the function writes nothing.
    pub(crate) fn write(self, path: &Path, svg: &str) -> Result<()> {
        let bytes = match self {
            Self::Svg => svg.as_bytes().to_vec(),
            Self::Png => {
                crate::png::of_svg(svg).with_context(|| format!("cannot draw {}", path.display()))?
            }
        };
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}
