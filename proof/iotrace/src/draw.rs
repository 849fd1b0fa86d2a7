//! Address over time, as PNG: figures 2, 11 and 12 of the WALDIO paper.
//!
//! Files and the file system's journal may lie far apart on a device; stretches of it that nothing was
//! written to are left out, and the axis is broken there.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};

use crate::ranges::{Range, common, normalise};
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
const HEIGHT: i64 = 720;
const LEFT: i64 = 130;
const RIGHT: i64 = 40;
const TOP: i64 = 92;
const BOTTOM: i64 = 64;
const PLOT_WIDTH: i64 = WIDTH - LEFT - RIGHT;
const PLOT_HEIGHT: i64 = HEIGHT - TOP - BOTTOM;
/// Pixels between the parts of a broken axis.
const BREAK: i64 = 14;
/// Pixels inside each end of the axes that no request's middle comes to.
const MARGIN: i64 = 22;
/// Parts of the axis at most.
const PARTS: usize = 6;

type Colour = [u8; 3];
const BLACK: Colour = [30, 30, 30];
const GREY: Colour = [225, 225, 225];
/// Behind the file system's journal, as in the paper.
const SHADE: Colour = [240, 240, 240];
const WHITE: Colour = [255, 255, 255];
/// A letter's pixels, each drawn as 2 by 2.
const SCALE: i64 = 2;
const LETTER: i64 = 6 * SCALE;
/// Ticks of the axis of time, about.
const TICKS: f64 = 6.0;
/// So many requests are labelled with their sizes, at most.
const LABELLED: usize = 32;

struct Canvas {
    pixels: Vec<u8>,
    /// Nothing is drawn outside: left, top, right, bottom.
    clip: [i64; 4],
}

impl Canvas {
    fn new() -> Self {
        Self { pixels: vec![255; (WIDTH * HEIGHT * 3) as usize], clip: [0, 0, WIDTH, HEIGHT] }
    }

    /// Lays a colour over a pixel, as opaque as `parts` of 4.
    fn blend(&mut self, x: i64, y: i64, colour: Colour, parts: u16) {
        let [left, top, right, bottom] = self.clip;
        if (left..right).contains(&x) && (top..bottom).contains(&y) {
            let at = ((y * WIDTH + x) * 3) as usize;
            for (pixel, new) in self.pixels[at..at + 3].iter_mut().zip(colour) {
                *pixel = ((u16::from(*pixel) * (4 - parts) + u16::from(new) * parts) / 4) as u8;
            }
        }
    }

    fn fill(&mut self, x: i64, y: i64, width: i64, height: i64, colour: Colour) {
        for y in y..y + height {
            (x..x + width).for_each(|x| self.blend(x, y, colour, 4));
        }
    }

    /// A square with an edge, through which others can be seen.
    fn square(&mut self, x: i64, y: i64, side: i64, colour: Colour) {
        let (left, top) = (x - side / 2, y - side / 2);
        for dy in 0..side {
            for dx in 0..side {
                let is_edge = dx == 0 || dy == 0 || dx == side - 1 || dy == side - 1;
                self.blend(left + dx, top + dy, colour, if is_edge { 4 } else { 2 });
            }
        }
    }

    /// A circle with an edge of two pixels, through which others can be seen.
    fn circle(&mut self, x: i64, y: i64, radius: i64, colour: Colour) {
        let inner = (radius - 2).max(0);
        for dy in -radius..=radius {
            for dx in -radius..=radius {
                let distance = dx * dx + dy * dy;
                if distance <= radius * radius {
                    let is_edge = distance >= inner * inner;
                    self.blend(x + dx, y + dy, colour, if is_edge { 4 } else { 1 });
                }
            }
        }
    }

    fn text(&mut self, x: i64, y: i64, text: &str) {
        for (letter, left) in text.chars().zip((0i64..).map(|index| x + index * LETTER)) {
            let first = if matches!(letter, 'g' | 'p' | 'q' | 'y') { 2 } else { 0 };
            for (row, bits) in (first..).zip(glyph(letter)) {
                for column in (0..5i64).filter(|column| bits & 16 >> column != 0) {
                    self.fill(left + column * SCALE, y + row * SCALE, SCALE, SCALE, BLACK);
                }
            }
        }
    }

    /// Text that ends at `x`.
    fn text_before(&mut self, x: i64, y: i64, text: &str) {
        self.text(x - width_of(text), y, text);
    }

    /// Text with its middle at `x`, inside the picture.
    fn text_around(&mut self, x: i64, y: i64, text: &str) {
        let width = width_of(text);
        self.text((x - width / 2).clamp(0, (WIDTH - width).max(0)), y, text);
    }

    fn save(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut encoder = png::Encoder::new(BufWriter::new(file), WIDTH as u32, HEIGHT as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(&self.pixels)?;
        Ok(())
    }
}

fn width_of(text: &str) -> i64 {
    text.chars().count() as i64 * LETTER - SCALE
}

fn colour_of(class: Class) -> Colour {
    match class {
        Class::Database => [31, 119, 180],
        Class::Log => [44, 160, 44],
        Class::Journal => [214, 39, 40],
        Class::Other => [148, 103, 189],
    }
}

/// The axis of addresses: stretches of the device, each on a stretch of the picture.
struct Axis {
    parts: Vec<AxisPart>,
}

struct AxisPart {
    bytes: Range,
    /// Pixels: the upper end, and how many.
    top: i64,
    height: i64,
}

impl Axis {
    /// Breaks the axis in the widest gaps between what was written.
    fn new(written: Vec<Range>) -> Self {
        let mut parts = normalise(written);
        if parts.is_empty() {
            parts.push((0, 1 << 20));
        }
        let whole = parts.last().map_or(0, |last| last.1) - parts.first().map_or(0, |first| first.0);
        let used: u64 = parts.iter().map(|(from, to)| to - from).sum();
        // Gaps are kept that do not dwarf what is between them.
        let narrow = used.max(whole / 64);
        let mut gaps: Vec<u64> = parts
            .iter()
            .zip(parts.iter().skip(1))
            .map(|(a, b)| b.0 - a.1)
            .filter(|gap| *gap > narrow)
            .collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let least = gaps.get(PARTS - 2).or(gaps.last()).copied().unwrap_or(u64::MAX);
        let mut joined: Vec<Range> = Vec::new();
        for (from, to) in parts {
            let is_full = joined.len() == PARTS;
            match joined.last_mut() {
                Some(last) if is_full || from - last.1 < least => last.1 = to,
                _ => joined.push((from, to)),
            }
        }
        // Half of the height is shared out evenly, half by size.
        let count = joined.len() as i64;
        let height = PLOT_HEIGHT - BREAK * (count - 1);
        let total: u64 = joined.iter().map(|(from, to)| to - from).sum();
        let mut bottom = TOP + PLOT_HEIGHT;
        let parts = joined.into_iter().map(|bytes| {
            let share = (bytes.1 - bytes.0) as f64 / total.max(1) as f64;
            let height = (height as f64 * (share + 1.0 / count as f64) / 2.0) as i64;
            let part = AxisPart { bytes, top: bottom - height, height };
            bottom -= height + BREAK;
            part
        });
        Self { parts: parts.collect() }
    }

    fn part_of(&self, offset: u64) -> Option<&AxisPart> {
        self.parts.iter().find(|part| part.bytes.0 <= offset && offset <= part.bytes.1)
    }
}

impl AxisPart {
    /// The pixel of a byte.
    fn y(&self, offset: u64) -> i64 {
        let margin = MARGIN.min(self.height / 4);
        let share = offset.saturating_sub(self.bytes.0) as f64 / (self.bytes.1 - self.bytes.0).max(1) as f64;
        self.top + self.height - margin - ((self.height - 2 * margin) as f64 * share) as i64
    }
}

/// The axis of time: from the first request or flush, and for how long, in seconds.
struct Times {
    start: f64,
    seconds: f64,
}

impl Times {
    fn new(trace: &Trace) -> Self {
        let times = || trace.writes.iter().map(|write| write.seconds).chain(trace.flushes.iter().copied());
        let start = times().reduce(f64::min).unwrap_or(0.0);
        Self { start, seconds: times().fold(start + 1e-6, f64::max) - start }
    }

    /// The pixel of a time of the trace.
    fn x(&self, at: f64) -> i64 {
        let share = ((at - self.start) / self.seconds).clamp(0.0, 1.0);
        LEFT + MARGIN + ((PLOT_WIDTH - 2 * MARGIN) as f64 * share) as i64
    }
}

/// Draws a trace into a PNG file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(trace: &Trace, title: &str, marker: Marker, path: &Path) -> Result<()> {
    let mut canvas = Canvas::new();
    let axis =
        Axis::new(trace.writes.iter().map(|write| (write.offset, write.offset + write.bytes)).collect());
    let times = Times::new(trace);
    let largest = trace.writes.iter().map(|write| write.bytes).max().unwrap_or(4096);
    draw_axes(&mut canvas, trace, &axis, &times);
    draw_legend(&mut canvas, trace, title, marker, largest);
    // The large ones first, so that no small one is hidden.
    let mut order: Vec<_> = trace.writes.iter().collect();
    order.sort_by_key(|write| std::cmp::Reverse(write.bytes));
    canvas.clip = [LEFT, TOP, LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT];
    for write in &order {
        let middle = write.offset + write.bytes / 2;
        let Some(part) = axis.part_of(middle) else { continue };
        let (x, y, colour) = (times.x(write.seconds), part.y(middle), colour_of(write.class));
        match marker {
            Marker::Square => canvas.square(x, y, side_of(write.bytes), colour),
            Marker::Circle => canvas.circle(x, y, radius_of(write.bytes, largest), colour),
        }
        if order.len() <= LABELLED {
            let beside = match marker {
                Marker::Square => side_of(write.bytes) / 2,
                Marker::Circle => radius_of(write.bytes, largest),
            };
            let label = short(write.bytes as f64 / 1024.0);
            let right = x + beside + 4;
            if right + width_of(&label) < WIDTH - RIGHT {
                canvas.text(right, y - 6, &label);
            } else {
                canvas.text_before(x - beside - 4, y - 6, &label);
            }
        }
    }
    canvas.save(path)
}

fn side_of(bytes: u64) -> i64 {
    (5.0 * (bytes as f64 / 4096.0).sqrt()).clamp(4.0, 48.0) as i64
}

/// Proportional to the request, so that the largest still fits.
fn radius_of(bytes: u64, largest: u64) -> i64 {
    let pixels = (4.0 * largest as f64 / 4096.0).min(64.0);
    ((pixels * bytes as f64 / largest.max(1) as f64).round() as i64).max(2)
}

fn draw_axes(canvas: &mut Canvas, trace: &Trace, axis: &Axis, times: &Times) {
    for part in &axis.parts {
        canvas.fill(LEFT, part.top, PLOT_WIDTH, part.height, WHITE);
        for (from, to) in common(part.bytes, &trace.journal) {
            let margin = MARGIN.min(part.height / 4);
            let top = part.y(to) - if to == part.bytes.1 { margin } else { 0 };
            let bottom = part.y(from) + if from == part.bytes.0 { margin } else { 0 };
            canvas.fill(LEFT, top, PLOT_WIDTH, bottom - top, SHADE);
        }
    }
    let seconds = times.seconds;
    let (unit, name) = if seconds < 2.0 {
        (1e-3, "time from the first request (ms)")
    } else {
        (1.0, "time from the first request (s)")
    };
    let step = round_step(seconds / unit / TICKS);
    let mut tick = 0.0;
    while tick <= seconds / unit {
        let x = times.x(times.start + tick * unit);
        for part in &axis.parts {
            canvas.fill(x, part.top, 1, part.height, GREY);
        }
        canvas.text_around(x, TOP + PLOT_HEIGHT + 10, &with_digits(tick, step));
        tick += step;
    }
    canvas.text_around(LEFT + PLOT_WIDTH / 2, HEIGHT - 28, name);
    canvas.text(8, TOP - 24, "address (MiB)");
    for part in &axis.parts {
        canvas.fill(LEFT, part.top, PLOT_WIDTH, 1, BLACK);
        canvas.fill(LEFT, part.top + part.height - 1, PLOT_WIDTH, 1, BLACK);
        canvas.fill(LEFT, part.top, 1, part.height, BLACK);
        canvas.fill(LEFT + PLOT_WIDTH - 1, part.top, 1, part.height, BLACK);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (from, to) = (mib(part.bytes.0), mib(part.bytes.1));
        let step = round_step((to - from) / (part.height as f64 / 80.0).max(1.0));
        let mut tick = (from / step).ceil() * step;
        let mut drawn = 0;
        while tick <= to {
            let y = part.y((tick * f64::from(1 << 20)) as u64);
            canvas.fill(LEFT + 1, y, PLOT_WIDTH - 2, 1, GREY);
            canvas.text_before(LEFT - 8, y - 6, &with_digits(tick, step));
            tick += step;
            drawn += 1;
        }
        if drawn == 0 {
            canvas.text_before(LEFT - 8, part.y(part.bytes.0) - 6, &format!("{from:.3}"));
        }
    }
    for flush in &trace.flushes {
        let bottom = TOP + PLOT_HEIGHT;
        canvas.fill(times.x(*flush), bottom + 1, 1, 6, BLACK);
    }
}

fn draw_legend(canvas: &mut Canvas, trace: &Trace, title: &str, marker: Marker, largest: u64) {
    let room = ((WIDTH - 16) / LETTER) as usize;
    let fits: String = match title.chars().count() > room {
        true => title.chars().take(room - 3).chain("...".chars()).collect(),
        false => title.to_owned(),
    };
    canvas.text(8, 10, &fits);
    let summary = trace.summary();
    let mut x = 8;
    for class in Class::ALL {
        canvas.fill(x, 36, 12, 12, colour_of(class));
        let text = format!("{} {}", class.name(), size(summary.of(class).bytes));
        canvas.text(x + 18, 36, &text);
        x += 18 + width_of(&text) + 20;
    }
    canvas.fill(x + 5, 38, 1, 10, BLACK);
    canvas.text(x + 14, 36, &format!("flush {}", summary.flushes));
    let what = match marker {
        Marker::Square => "area",
        Marker::Circle => "radius",
    };
    let labels = if trace.writes.len() <= LABELLED { ", in KiB" } else { "" };
    let text = format!("{what}: request size{labels}; largest {}", size(largest));
    canvas.text_before(WIDTH - RIGHT, TOP - 24, &text);
}

/// 1, 2 or 5 times a power of ten, not below.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(power)
}

/// A tick's value, with the digits that tell it from the next.
fn with_digits(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn size(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    if kib < 10_000.0 {
        format!("{} KiB", short((kib * 10.0).round() / 10.0))
    } else {
        format!("{:.1} MiB", kib / 1024.0)
    }
}

/// The 5 by 7 bits of a letter, a row per byte.
fn glyph(letter: char) -> [u8; 7] {
    match letter {
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
        '/' => [1, 1, 2, 4, 8, 16, 16],
        ':' => [0, 12, 12, 0, 12, 12, 0],
        '=' => [0, 0, 31, 0, 31, 0, 0],
        'a' => [0, 0, 14, 1, 15, 17, 15],
        'b' => [16, 16, 30, 17, 17, 17, 30],
        'c' => [0, 0, 14, 16, 16, 17, 14],
        'd' => [1, 1, 15, 17, 17, 17, 15],
        'e' => [0, 0, 14, 17, 31, 16, 14],
        'f' => [6, 9, 8, 28, 8, 8, 8],
        'g' => [15, 17, 17, 17, 15, 1, 14],
        'h' => [16, 16, 22, 25, 17, 17, 17],
        'i' => [4, 0, 12, 4, 4, 4, 14],
        'j' => [2, 0, 6, 2, 2, 18, 12],
        'k' => [16, 16, 18, 20, 24, 20, 18],
        'l' => [12, 4, 4, 4, 4, 4, 14],
        'm' => [0, 0, 26, 21, 21, 21, 21],
        'n' => [0, 0, 22, 25, 17, 17, 17],
        'o' => [0, 0, 14, 17, 17, 17, 14],
        'p' => [30, 17, 17, 17, 30, 16, 16],
        'q' => [15, 17, 17, 17, 15, 1, 1],
        'r' => [0, 0, 22, 25, 16, 16, 16],
        's' => [0, 0, 14, 16, 14, 1, 30],
        't' => [8, 8, 28, 8, 8, 9, 6],
        'u' => [0, 0, 17, 17, 17, 19, 13],
        'v' => [0, 0, 17, 17, 17, 10, 4],
        'w' => [0, 0, 17, 17, 21, 21, 10],
        'x' => [0, 0, 17, 10, 4, 10, 17],
        'y' => [17, 17, 17, 17, 15, 1, 14],
        'z' => [0, 0, 31, 2, 4, 8, 31],
        '_' => [0, 0, 0, 0, 0, 0, 31],
        '-' => [0, 0, 0, 31, 0, 0, 0],
        '+' => [0, 4, 4, 31, 4, 4, 0],
        '*' => [0, 4, 21, 14, 21, 4, 0],
        '(' => [2, 4, 8, 8, 8, 4, 2],
        ')' => [8, 4, 2, 2, 2, 4, 8],
        '[' => [14, 8, 8, 8, 8, 8, 14],
        ']' => [14, 2, 2, 2, 2, 2, 14],
        '<' => [2, 4, 8, 16, 8, 4, 2],
        '>' => [8, 4, 2, 1, 2, 4, 8],
        ';' => [0, 12, 12, 0, 12, 4, 8],
        '%' => [24, 25, 2, 4, 8, 19, 3],
        '\'' => [4, 4, 8, 0, 0, 0, 0],
        '"' => [10, 10, 10, 0, 0, 0, 0],
        '!' => [4, 4, 4, 4, 4, 0, 4],
        '?' => [14, 17, 1, 2, 4, 0, 4],
        '$' => [4, 15, 20, 14, 5, 30, 4],
        '&' => [12, 18, 20, 8, 21, 18, 13],
        '|' => [4, 4, 4, 4, 4, 4, 4],
        '~' => [0, 0, 8, 21, 2, 0, 0],
        '#' => [10, 10, 31, 10, 31, 10, 10],
        '@' => [14, 17, 1, 13, 21, 21, 14],
        ' ' | '\t' | '\n' => [0; 7],
        // A box: there is something.
        _ => [31, 17, 17, 17, 17, 17, 31],
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;
    use crate::{JournalBy, Write};

    fn write(seconds: f64, offset: u64, bytes: u64, class: Class) -> Write {
        let (shared, task) = (Vec::new(), String::new());
        Write { seconds, took: None, offset, bytes, class, shared, file: None, fua: false, task }
    }

    fn trace(writes: Vec<Write>) -> Trace {
        Trace {
            device: "7:0".to_owned(),
            of_bios: false,
            seconds: 1.0,
            writes,
            flushes: vec![0.25],
            zeroed_bytes: 0,
            discarded_bytes: 0,
            lost: 0,
            files: Vec::new(),
            journal: vec![(1 << 30, 2 << 30)],
            journal_by: JournalBy::Place,
            journal_by_others: 0,
            raw: None,
        }
    }

    fn pixels_of(path: &Path) -> Vec<u8> {
        let decoder = png::Decoder::new(BufReader::new(File::open(path).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (WIDTH as u32, HEIGHT as u32));
        pixels
    }

    fn count(pixels: &[u8], colour: Colour) -> usize {
        pixels.as_chunks::<3>().0.iter().filter(|pixel| **pixel == colour).count()
    }

    #[test]
    fn a_trace_becomes_a_picture_with_its_colours() {
        let dir = tempfile::tempdir().unwrap();
        let far = trace(vec![
            write(0.0, 4096, 8192, Class::Log),
            write(0.5, 1 << 30, 65536, Class::Journal),
            write(0.6, 8 << 30, 4096, Class::Database),
        ]);
        for marker in [Marker::Square, Marker::Circle] {
            let path = dir.path().join("trace.png");
            draw(&far, "A title: 10 inserts", marker, &path).unwrap();
            let pixels = pixels_of(&path);
            for class in [Class::Log, Class::Journal, Class::Database] {
                let count = count(&pixels, colour_of(class));
                assert!(count > 144, "{class:?}: {count} pixels, 144 of them the legend's");
            }
            assert_eq!(count(&pixels, colour_of(Class::Other)), 144);
            assert!(count(&pixels, SHADE) > 1000, "the journal's place is shaded");
        }
    }

    #[test]
    fn nothing_and_very_much_can_be_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.png");
        draw(&trace(Vec::new()), &"long ".repeat(100), Marker::Square, &path).unwrap();
        let many = (0..5000u64).map(|i| write(i as f64, i * i * 4096, (i % 300) * 4096, Class::Other));
        draw(&trace(many.collect()), "\u{fc} \n", Marker::Circle, &path).unwrap();
        pixels_of(&path);
    }

    #[test]
    fn the_axis_is_broken_where_nothing_was_written() {
        let mib = |n: u64| n << 20;
        let axis = Axis::new(vec![(0, mib(1)), (mib(1), mib(2)), (mib(3), mib(4)), (mib(1000), mib(1001))]);
        let parts: Vec<Range> = axis.parts.iter().map(|part| part.bytes).collect();
        assert_eq!(parts, [(0, mib(4)), (mib(1000), mib(1001))]);
        let (low, high) = (&axis.parts[0], &axis.parts[1]);
        assert!(low.top > high.top + high.height && low.y(0) > low.y(mib(1)));
        assert_eq!(axis.part_of(mib(1000)).map(|part| part.bytes), Some(parts[1]));
        assert!(axis.part_of(mib(500)).is_none());
        let many = Axis::new((0..100).map(|i| (mib(i * i * i), mib(i * i * i) + 4096)).collect());
        assert!((2..=PARTS).contains(&many.parts.len()));
        assert_eq!(many.parts.last().map(|part| part.bytes.1), Some(mib(99 * 99 * 99) + 4096));
        assert!(many.parts.iter().all(|part| part.top >= TOP && part.height > 0));
    }

    #[test]
    fn the_radius_is_proportional_and_the_steps_are_round() {
        assert_eq!([4096, 8192, 16384].map(|bytes| radius_of(bytes, 16384)), [4, 8, 16]);
        assert_eq!([1 << 20, 1 << 19].map(|bytes| radius_of(bytes, 1 << 20)), [64, 32]);
        for (least, step) in [(0.9, 1.0), (1.0, 1.0), (1.5, 2.0), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05)] {
            let found = round_step(least);
            assert!((found - step).abs() < step / 1e6, "{least}: {found}");
        }
        assert_eq!(with_digits(0.5, 0.1), "0.5");
        assert_eq!(with_digits(20.0, 5.0), "20");
    }
}
