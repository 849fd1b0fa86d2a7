//! Draws addresses over time as SVG, as in figures 2, 11 and 12 of the WALDIO paper.
//!
//! Files and the file system's journal may lie far apart on a device. The picture leaves out long stretches
//! to which nothing was written, and breaks the axis there.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::backend::{DrawingBackend, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, RGBColor, ShapeStyle, TextStyle};

use crate::ranges::{Range, common, normalise};
use crate::{Class, Trace};

/// The shape that represents a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// A square whose area grows with the size of the request (figures 2 and 11).
    Square,
    /// A circle whose radius is proportional to the size of the request (figure 12).
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
/// The gap between the parts of a broken axis, in pixels.
const BREAK: i64 = 14;
/// The margin in pixels at each end of the axes. The centre of a request's shape never lies in it.
const MARGIN: i64 = 22;
/// The largest number of parts into which the axis breaks.
const PARTS: usize = 6;

type Colour = RGBColor;
const BLACK: Colour = RGBColor(30, 30, 30);
const GREY: Colour = RGBColor(225, 225, 225);
/// The background of the file system's journal, as in the paper.
const SHADE: Colour = RGBColor(240, 240, 240);
const WHITE: Colour = RGBColor(255, 255, 255);
/// The height of a letter in pixels. The next constant is the maximum width of a letter.
const FONT: i64 = 18;
const LETTER: i64 = 11;
/// The approximate number of ticks on the time axis.
const TICKS: f64 = 6.0;
/// If a trace has at most this many requests, the picture labels each request with its size.
const LABELLED: usize = 32;

struct Canvas<'a>(SVGBackend<'a>);

impl<'a> Canvas<'a> {
    fn new(picture: &'a mut String) -> Self {
        let mut canvas = Self(SVGBackend::with_string(picture, (WIDTH as u32, HEIGHT as u32)));
        canvas.fill(0, 0, WIDTH, HEIGHT, WHITE);
        canvas
    }

    fn fill(&mut self, x: i64, y: i64, width: i64, height: i64, colour: Colour) {
        self.rectangle(x, y, width, height, &colour.filled());
    }

    /// Draws a rectangle. It includes the column at `x + width` and the row at `y + height`.
    fn rectangle(&mut self, x: i64, y: i64, width: i64, height: i64, style: &ShapeStyle) {
        if width > 0 && height > 0 {
            let last = point(x + width, y + height);
            self.done(|svg| svg.draw_rect(point(x, y), last, style, style.filled));
        }
    }

    /// Draws a translucent square with an edge.
    fn square(&mut self, x: i64, y: i64, side: i64, colour: Colour) {
        let (left, top) = (x - side / 2, y - side / 2);
        self.rectangle(left, top, side, side, &colour.mix(0.5).filled());
        self.rectangle(left, top, side, side, &colour.stroke_width(1));
    }

    /// Draws a translucent circle with an edge of two pixels.
    fn circle(&mut self, x: i64, y: i64, radius: i64, colour: Colour) {
        let (middle, radius) = (point(x, y), radius as u32);
        self.done(|svg| svg.draw_circle(middle, radius, &colour.mix(0.25).filled(), true));
        self.done(|svg| svg.draw_circle(middle, radius, &colour.stroke_width(2), false));
    }

    fn text(&mut self, x: i64, y: i64, text: &str) {
        self.anchored(x, y, text, HPos::Left);
    }

    /// Draws a text whose right end is at `x`.
    fn text_before(&mut self, x: i64, y: i64, text: &str) {
        self.anchored(x, y, text, HPos::Right);
    }

    /// Draws a text whose middle is at `x`. Moves the text if it would reach out of the picture.
    fn text_around(&mut self, x: i64, y: i64, text: &str) {
        let half = width_of(text) / 2;
        self.anchored(x.clamp(half.min(WIDTH / 2), (WIDTH - half).max(WIDTH / 2)), y, text, HPos::Center);
    }

    fn anchored(&mut self, x: i64, y: i64, text: &str, anchor: HPos) {
        let style =
            TextStyle::from(("monospace", FONT as u32)).color(&BLACK).pos(Pos::new(anchor, VPos::Top));
        self.done(|svg| svg.draw_text(text, &style, point(x, y)));
    }

    fn done<E>(&mut self, step: impl FnOnce(&mut SVGBackend<'a>) -> Result<(), E>) {
        let drawn = step(&mut self.0).is_ok();
        debug_assert!(drawn, "a picture in memory takes all that is drawn");
    }
}

fn point(x: i64, y: i64) -> (i32, i32) {
    (x as i32, y as i32)
}

fn width_of(text: &str) -> i64 {
    text.chars().count() as i64 * LETTER
}

fn colour_of(class: Class) -> Colour {
    match class {
        Class::Database => RGBColor(31, 119, 180),
        Class::Log => RGBColor(44, 160, 44),
        Class::Journal => RGBColor(214, 39, 40),
        Class::Other => RGBColor(148, 103, 189),
    }
}

/// The address axis. It consists of parts, one for each shown range of the device.
struct Axis {
    parts: Vec<AxisPart>,
}

struct AxisPart {
    bytes: Range,
    /// The top edge and the height, in pixels.
    top: i64,
    height: i64,
}

impl Axis {
    /// Breaks the axis at the widest gaps between the written ranges.
    fn new(written: Vec<Range>) -> Self {
        let mut parts = normalise(written);
        if parts.is_empty() {
            parts.push((0, 1 << 20));
        }
        let whole = parts.last().map_or(0, |last| last.1) - parts.first().map_or(0, |first| first.0);
        let used: u64 = parts.iter().map(|(from, to)| to - from).sum();
        // The picture leaves a gap out only if it is wider than all written ranges together.
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
        // Half of the height goes to the parts in equal shares, and the other half according to their sizes.
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
    /// Returns the pixel row of a byte.
    fn y(&self, offset: u64) -> i64 {
        let margin = MARGIN.min(self.height / 4);
        let share = offset.saturating_sub(self.bytes.0) as f64 / (self.bytes.1 - self.bytes.0).max(1) as f64;
        self.top + self.height - margin - ((self.height - 2 * margin) as f64 * share) as i64
    }
}

/// The time axis. `start` is the time at which the first request or flush began, and `seconds` is the time
/// between the first and the last one.
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

    /// Returns the pixel column of a time.
    fn x(&self, at: f64) -> i64 {
        let share = ((at - self.start) / self.seconds).clamp(0.0, 1.0);
        LEFT + MARGIN + ((PLOT_WIDTH - 2 * MARGIN) as f64 * share) as i64
    }
}

/// Draws a trace into an SVG file.
///
/// # Errors
/// An error if the file cannot be written.
pub fn draw(trace: &Trace, title: &str, marker: Marker, path: &Path) -> Result<()> {
    std::fs::write(path, picture(trace, title, marker))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn picture(trace: &Trace, title: &str, marker: Marker) -> String {
    let mut picture = String::new();
    let mut canvas = Canvas::new(&mut picture);
    let axis =
        Axis::new(trace.writes.iter().map(|write| (write.offset, write.offset + write.bytes)).collect());
    let times = Times::new(trace);
    let largest = trace.writes.iter().map(|write| write.bytes).max().unwrap_or(4096);
    draw_places(&mut canvas, trace, &axis);
    draw_grid(&mut canvas, &axis, &times);
    draw_writes(&mut canvas, trace, &axis, &times, marker, largest);
    // Cover everything outside the plot. The labels around the plot are drawn after this, so they stay
    // visible.
    let (right, bottom) = (LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT);
    for (x, y, width, height) in
        [(0, 0, WIDTH, TOP), (0, bottom, WIDTH, BOTTOM), (0, 0, LEFT, HEIGHT), (right, 0, RIGHT, HEIGHT)]
    {
        canvas.fill(x, y, width, height, WHITE);
    }
    draw_scales(&mut canvas, trace, &axis, &times);
    draw_labels(&mut canvas, trace, &axis, &times, marker, largest);
    draw_legend(&mut canvas, trace, title, marker, largest);
    drop(canvas);
    picture
}

fn draw_writes(
    canvas: &mut Canvas<'_>,
    trace: &Trace,
    axis: &Axis,
    times: &Times,
    marker: Marker,
    largest: u64,
) {
    // Draw larger requests first, so that they hide no smaller ones.
    let mut order: Vec<_> = trace.writes.iter().collect();
    order.sort_by_key(|write| std::cmp::Reverse(write.bytes));
    for write in order {
        let middle = write.offset + write.bytes / 2;
        let Some(part) = axis.part_of(middle) else { continue };
        let (x, y, colour) = (times.x(write.seconds), part.y(middle), colour_of(write.class));
        match marker {
            Marker::Square => canvas.square(x, y, side_of(write.bytes), colour),
            Marker::Circle => canvas.circle(x, y, radius_of(write.bytes, largest), colour),
        }
    }
}

/// Labels requests with their sizes if there are few of them.
fn draw_labels(
    canvas: &mut Canvas<'_>,
    trace: &Trace,
    axis: &Axis,
    times: &Times,
    marker: Marker,
    largest: u64,
) {
    for write in trace.writes.iter().filter(|_| trace.writes.len() <= LABELLED) {
        let middle = write.offset + write.bytes / 2;
        let Some(part) = axis.part_of(middle) else { continue };
        let (x, y) = (times.x(write.seconds), part.y(middle));
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

fn side_of(bytes: u64) -> i64 {
    (5.0 * (bytes as f64 / 4096.0).sqrt()).clamp(4.0, 48.0) as i64
}

/// Returns the radius for a request, proportional to its size. The scale is limited so that the largest
/// circle fits.
fn radius_of(bytes: u64, largest: u64) -> i64 {
    let pixels = (4.0 * largest as f64 / 4096.0).min(64.0);
    ((pixels * bytes as f64 / largest.max(1) as f64).round() as i64).max(2)
}

/// Draws the background of the plot, with the place of the journal shaded.
fn draw_places(canvas: &mut Canvas<'_>, trace: &Trace, axis: &Axis) {
    for part in &axis.parts {
        for (from, to) in common(part.bytes, &trace.journal) {
            let margin = MARGIN.min(part.height / 4);
            let top = part.y(to) - if to == part.bytes.1 { margin } else { 0 };
            let bottom = part.y(from) + if from == part.bytes.0 { margin } else { 0 };
            canvas.fill(LEFT, top, PLOT_WIDTH, bottom - top, SHADE);
        }
    }
}

/// Returns the values at an axis's ticks, beginning with the first multiple of `step` that is not below
/// `from`.
fn ticks(from: f64, to: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (from / step).ceil();
    (0..).map(move |nth| (first + f64::from(nth)) * step).take_while(move |tick| *tick <= to)
}

/// Returns the unit of the time axis in seconds, and the name of the axis. The picture shows short traces in
/// milliseconds.
fn unit_of(seconds: f64) -> (f64, &'static str) {
    match seconds < 2.0 {
        true => (1e-3, "time from the first request (ms)"),
        false => (1.0, "time from the first request (s)"),
    }
}

const MIB: f64 = 1048576.0;

impl Times {
    /// Returns the ticks, each as a value and a pixel column, and the step between them.
    fn ticks(&self) -> (Vec<(f64, i64)>, f64) {
        let (unit, _) = unit_of(self.seconds);
        let step = round_step(self.seconds / unit / TICKS);
        let at = |tick: f64| (tick, self.x(self.start + tick * unit));
        (ticks(0.0, self.seconds / unit, step).map(at).collect(), step)
    }
}

impl AxisPart {
    /// Returns the ticks, each as a value in MiB and a pixel row, and the step between them.
    fn ticks(&self) -> (Vec<(f64, i64)>, f64) {
        let (from, to) = (self.bytes.0 as f64 / MIB, self.bytes.1 as f64 / MIB);
        let step = round_step((to - from) / (self.height as f64 / 80.0).max(1.0));
        let at = |tick: f64| (tick, self.y((tick * MIB) as u64));
        (ticks(from, to, step).map(at).collect(), step)
    }
}

fn draw_grid(canvas: &mut Canvas<'_>, axis: &Axis, times: &Times) {
    for part in &axis.parts {
        for (_, x) in times.ticks().0 {
            canvas.fill(x, part.top, 1, part.height, GREY);
        }
        for (_, y) in part.ticks().0 {
            canvas.fill(LEFT + 1, y, PLOT_WIDTH - 2, 1, GREY);
        }
    }
}

fn draw_scales(canvas: &mut Canvas<'_>, trace: &Trace, axis: &Axis, times: &Times) {
    let (at, step) = times.ticks();
    for (tick, x) in at {
        canvas.text_around(x, TOP + PLOT_HEIGHT + 10, &with_digits(tick, step));
    }
    canvas.text_around(LEFT + PLOT_WIDTH / 2, HEIGHT - 28, unit_of(times.seconds).1);
    canvas.text(8, TOP - 24, "address (MiB)");
    for part in &axis.parts {
        canvas.rectangle(LEFT, part.top, PLOT_WIDTH, part.height, &BLACK.stroke_width(1));
        let (at, step) = part.ticks();
        if at.is_empty() {
            let from = part.bytes.0 as f64 / MIB;
            canvas.text_before(LEFT - 8, part.y(part.bytes.0) - 6, &format!("{from:.3}"));
        }
        for (tick, y) in at {
            canvas.text_before(LEFT - 8, y - 6, &with_digits(tick, step));
        }
    }
    for flush in &trace.flushes {
        canvas.fill(times.x(*flush), TOP + PLOT_HEIGHT + 1, 1, 6, BLACK);
    }
}

fn draw_legend(canvas: &mut Canvas<'_>, trace: &Trace, title: &str, marker: Marker, largest: u64) {
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

/// Returns the smallest number that is not below `least` and is 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(power)
}

/// Returns the value at a tick, with enough digits to distinguish the tick from the next one.
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

#[cfg(test)]
mod tests;
