//! Address over time, as PNG: figures 2, 11 and 12 of the WALDIO paper.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{Class, Trace};

/// How a request is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// A square whose area grows with the request (figures 2 and 11).
    Square,
    /// A circle whose radius is proportional to the request (figure 12).
    Circle,
}

const WIDTH: i64 = 1200;
const HEIGHT: i64 = 700;
const LEFT: i64 = 110;
const RIGHT: i64 = 40;
const TOP: i64 = 60;
const BOTTOM: i64 = 70;
const BLACK: [u8; 3] = [30, 30, 30];
const GREY: [u8; 3] = [210, 210, 210];
/// A letter's pixels, each drawn as 2 by 2.
const SCALE: i64 = 2;
const TICKS: u32 = 5;

struct Canvas {
    pixels: Vec<u8>,
}

impl Canvas {
    fn new() -> Self {
        Self { pixels: vec![255; (WIDTH * HEIGHT * 3) as usize] }
    }

    fn dot(&mut self, x: i64, y: i64, colour: [u8; 3]) {
        if (0..WIDTH).contains(&x) && (0..HEIGHT).contains(&y) {
            let at = ((y * WIDTH + x) * 3) as usize;
            self.pixels[at..at + 3].copy_from_slice(&colour);
        }
    }

    fn fill(&mut self, x: i64, y: i64, width: i64, height: i64, colour: [u8; 3]) {
        for y in y..y + height {
            (x..x + width).for_each(|x| self.dot(x, y, colour));
        }
    }

    fn circle(&mut self, x: i64, y: i64, radius: i64, colour: [u8; 3]) {
        let inner = (radius - 2).max(0);
        for dy in -radius..=radius {
            for dx in -radius..=radius {
                let distance = dx * dx + dy * dy;
                if distance <= radius * radius && distance >= inner * inner {
                    self.dot(x + dx, y + dy, colour);
                }
            }
        }
    }

    fn text(&mut self, x: i64, y: i64, text: &str) {
        let mut at = x;
        for letter in text.chars() {
            for (row, bits) in (0i64..).zip(glyph(letter)) {
                for column in (0..5i64).filter(|column| bits & 16 >> column != 0) {
                    self.fill(at + column * SCALE, y + row * SCALE, SCALE, SCALE, BLACK);
                }
            }
            at += 6 * SCALE;
        }
    }
}

fn colour_of(class: Class) -> [u8; 3] {
    match class {
        Class::Database => [31, 119, 180],
        Class::Log => [44, 160, 44],
        Class::Journal => [214, 39, 40],
        Class::Other => [148, 103, 189],
    }
}

/// Draws a trace into a PNG file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(trace: &Trace, title: &str, marker: Marker, path: &Path) -> Result<()> {
    let mut canvas = Canvas::new();
    let seconds = trace.writes.iter().map(|write| write.seconds).fold(1e-6, f64::max);
    let lowest = trace.writes.iter().map(|write| write.offset).min().unwrap_or(0);
    let highest = trace.writes.iter().map(|write| write.offset + write.bytes).max().unwrap_or(1);
    let span = (highest - lowest).max(1) as f64;
    let (plot_width, plot_height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    canvas.text(LEFT, 12, title);
    canvas.text(LEFT + plot_width / 2 - 60, HEIGHT - 24, "TIME, MS");
    canvas.text(6, 36, "MIB");
    for tick in 0..=TICKS {
        let part = f64::from(tick) / f64::from(TICKS);
        let (x, y) = (
            LEFT + (plot_width as f64 * part) as i64,
            TOP + plot_height - (plot_height as f64 * part) as i64,
        );
        canvas.fill(x, TOP, 1, plot_height, GREY);
        canvas.fill(LEFT, y, plot_width, 1, GREY);
        canvas.text(x - 20, TOP + plot_height + 10, &short(seconds * part * 1e3));
        canvas.text(6, y - 6, &short((lowest as f64 + span * part) / f64::from(1 << 20)));
    }
    let mut x = LEFT;
    for class in [Class::Database, Class::Log, Class::Journal, Class::Other] {
        canvas.fill(x, 36, 12, 12, colour_of(class));
        let name = class.name().to_uppercase();
        canvas.text(x + 18, 36, &name);
        x += 18 + (name.len() as i64 + 2) * 6 * SCALE;
    }
    for write in &trace.writes {
        let x = LEFT + (write.seconds / seconds * plot_width as f64) as i64;
        let y = TOP + plot_height - ((write.offset - lowest) as f64 / span * plot_height as f64) as i64;
        let blocks = write.bytes as f64 / 4096.0;
        let colour = colour_of(write.class);
        match marker {
            Marker::Square => {
                let side = (5.0 * blocks.sqrt()).clamp(3.0, 60.0) as i64;
                canvas.fill(x - side / 2, y - side / 2, side, side, colour);
            }
            Marker::Circle => canvas.circle(x, y, (4.0 * blocks).clamp(2.0, 80.0) as i64, colour),
        }
    }
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&canvas.pixels)?;
    Ok(())
}

fn short(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// The 5 by 7 bits of a letter, a row per byte.
fn glyph(letter: char) -> [u8; 7] {
    match letter.to_ascii_uppercase() {
        '0' => [14, 17, 19, 21, 25, 17, 14],
        '1' => [4, 12, 4, 4, 4, 4, 14],
        '2' => [14, 17, 1, 2, 4, 8, 31],
        '3' => [31, 2, 4, 2, 1, 17, 14],
        '4' => [2, 6, 10, 18, 31, 2, 2],
        '5' => [31, 16, 30, 1, 1, 17, 14],
        '6' => [6, 8, 16, 30, 17, 17, 14],
        '7' => [31, 1, 2, 4, 8, 8, 8],
        '8' => [14, 17, 17, 14, 17, 17, 14],
        '9' => [14, 17, 17, 15, 1, 2, 12],
        'A' => [14, 17, 17, 31, 17, 17, 17],
        'B' => [30, 17, 17, 30, 17, 17, 30],
        'C' => [14, 17, 16, 16, 16, 17, 14],
        'D' => [30, 17, 17, 17, 17, 17, 30],
        'E' => [31, 16, 16, 30, 16, 16, 31],
        'F' => [31, 16, 16, 30, 16, 16, 16],
        'G' => [14, 17, 16, 23, 17, 17, 15],
        'H' => [17, 17, 17, 31, 17, 17, 17],
        'I' => [14, 4, 4, 4, 4, 4, 14],
        'J' => [7, 2, 2, 2, 2, 18, 12],
        'K' => [17, 18, 20, 24, 20, 18, 17],
        'L' => [16, 16, 16, 16, 16, 16, 31],
        'M' => [17, 27, 21, 21, 17, 17, 17],
        'N' => [17, 17, 25, 21, 19, 17, 17],
        'O' => [14, 17, 17, 17, 17, 17, 14],
        'P' => [30, 17, 17, 30, 16, 16, 16],
        'Q' => [14, 17, 17, 17, 21, 18, 13],
        'R' => [30, 17, 17, 30, 20, 18, 17],
        'S' => [15, 16, 16, 14, 1, 1, 30],
        'T' => [31, 4, 4, 4, 4, 4, 4],
        'U' => [17, 17, 17, 17, 17, 17, 14],
        'V' => [17, 17, 17, 17, 17, 10, 4],
        'W' => [17, 17, 17, 21, 21, 21, 10],
        'X' => [17, 17, 10, 4, 10, 17, 17],
        'Y' => [17, 17, 17, 10, 4, 4, 4],
        'Z' => [31, 1, 2, 4, 8, 16, 31],
        '.' => [0, 0, 0, 0, 0, 12, 12],
        ',' => [0, 0, 0, 0, 12, 4, 8],
        '-' | '_' => [0, 0, 0, 31, 0, 0, 0],
        '/' => [1, 1, 2, 4, 8, 16, 16],
        ':' => [0, 12, 12, 0, 12, 12, 0],
        '=' => [0, 0, 31, 0, 31, 0, 0],
        _ => [0; 7],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Write;

    #[test]
    fn a_trace_becomes_a_picture_with_its_colours() {
        let dir = tempfile::tempdir().unwrap();
        let write = |seconds, offset, class| Write { seconds, offset, bytes: 8192, class };
        let trace = Trace {
            writes: vec![write(0.0, 0, Class::Log), write(0.5, 1 << 20, Class::Journal)],
            flushes: 1,
            lost: 0,
        };
        for marker in [Marker::Square, Marker::Circle] {
            let path = dir.path().join("trace.png");
            draw(&trace, "A title: 10 inserts", marker, &path).unwrap();
            let decoder = png::Decoder::new(std::io::BufReader::new(File::open(&path).unwrap()));
            let mut reader = decoder.read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            for class in [Class::Log, Class::Journal] {
                let count =
                    pixels.as_chunks::<3>().0.iter().filter(|pixel| **pixel == colour_of(class)).count();
                assert!(count > 150, "{class:?}: {count} pixels, the legend's included");
            }
        }
    }
}
