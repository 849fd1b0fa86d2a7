//! The file of a picture, of the kind that its name says.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::png;

/// The kinds of files.
#[derive(Clone, Copy)]
pub(crate) enum Format {
    Svg,
    Png,
}

impl Format {
    /// What a file's ending says, in small letters or in capitals.
    ///
    /// # Errors
    /// It is the ending of neither.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match ending.as_str() {
            "svg" => Ok(Self::Svg),
            "png" => Ok(Self::Png),
            _ => bail!("{}: a picture is a file that ends in .svg or in .png", path.display()),
        }
    }

    /// Writes an SVG document into a file of this kind.
    ///
    /// # Errors
    /// The file cannot be written, or its kind cannot show the picture; nothing is written then.
    pub(crate) fn write(self, path: &Path, svg: &str) -> Result<()> {
        let bytes = match self {
            Self::Svg => svg.as_bytes().to_vec(),
            Self::Png => png::of_svg(svg).with_context(|| format!("cannot draw {}", path.display()))?,
        };
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}
