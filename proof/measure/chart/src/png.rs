//! Renders SVG as PNG, for programs that show no SVG, such as those for slides, chats and word processing.
//!
//! The fonts are part of this program and never come from the machine, so a picture is the same everywhere.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use epaint_default_fonts::{HACK_REGULAR, UBUNTU_LIGHT};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Source};
use resvg::usvg::{FontResolver, Options, Tree};

/// The number of pixels of the PNG for each pixel of the SVG, in each direction. With 2, text stays sharp on
/// high-resolution screens.
const SCALE: u32 = 2;

/// Renders `NAME.svg` into `NAME.png` beside it, with twice the width and height in pixels. Returns the path of the PNG.
///
/// # Errors
/// An error if the file cannot be read or is not SVG, if no font has one of its letters, or if the PNG cannot be
/// written. In the first two cases the function writes nothing.
pub fn png_beside(svg: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(svg).with_context(|| format!("cannot read {}", svg.display()))?;
    let path = svg.with_extension("png");
    let picture = of_svg(&text).with_context(|| format!("cannot draw {}", path.display()))?;
    std::fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Renders an SVG document into the bytes of a PNG file.
pub(crate) fn of_svg(svg: &str) -> Result<Vec<u8>> {
    let tree = parse(svg)?;
    let size = tree.size().to_int_size();
    let sides = size.width().checked_mul(SCALE).zip(size.height().checked_mul(SCALE));
    let mut pixels = sides
        .and_then(|(width, height)| Pixmap::new(width, height))
        .with_context(|| format!("{} x {} pixels are too many", size.width(), size.height()))?;
    resvg::render(&tree, Transform::from_scale(SCALE as f32, SCALE as f32), &mut pixels.as_mut());
    Ok(pixels.encode_png()?)
}

/// Parses an SVG document and turns all of its texts into shapes.
fn parse(svg: &str) -> Result<Tree> {
    let mut fonts = Database::new();
    let sans = *fonts
        .load_font_source(Source::Binary(Arc::new(UBUNTU_LIGHT)))
        .first()
        .context("the font for text cannot be read")?;
    // The second font has characters that the first lacks, such as arrows.
    fonts.load_font_source(Source::Binary(Arc::new(HACK_REGULAR)));
    let missing = Mutex::new(None);
    let other_font = FontResolver::default_fallback_selector();
    let options = Options {
        fontdb: Arc::new(fonts),
        font_resolver: FontResolver {
            select_font: Box::new(move |_, _| Some(sans)),
            // resvg calls this for a letter that the first fonts lack. A letter that no font has would appear as a
            // blank or a box, so this program reports an error instead.
            select_fallback: Box::new(|letter, tried, fonts| {
                let found = other_font(letter, tried, fonts);
                if found.is_none() {
                    *missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(letter);
                }
                found
            }),
        },
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options).map_err(|error| anyhow!("it is no SVG: {error}"))?;
    let missing = *missing.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(letter) = missing {
        bail!("no font has the letter {letter:?}; draw it as SVG");
    }
    Ok(tree)
}
