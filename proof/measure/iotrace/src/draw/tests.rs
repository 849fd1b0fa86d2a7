//! Tests of the picture of a trace.

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

/// Returns the values of an attribute in all elements of this kind and colour.
fn values(picture: &str, element: &str, attribute: &str, colour: Colour) -> Vec<i64> {
    let RGBColor(red, green, blue) = colour;
    let colour = format!("#{red:02X}{green:02X}{blue:02X}");
    let begins = format!("<{element} ");
    let elements = picture.lines().filter(|line| line.starts_with(&begins) && line.contains(&colour));
    let name = format!(" {attribute}=\"");
    elements
        .map(|line| line.split(&name).nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
        .collect()
}

fn has_text(picture: &str, text: &str) -> bool {
    picture.lines().any(|line| line == text)
}

/// Returns a trace with one request each to the log, the journal and the database, far apart on the device.
fn far() -> Trace {
    trace(vec![
        write(0.0, 4096, 8192, Class::Log),
        write(0.5, 1 << 30, 65536, Class::Journal),
        write(0.6, 8 << 30, 4096, Class::Database),
    ])
}

#[test]
fn requests_are_circles_at_their_times_and_places() {
    let picture = picture(&far(), "A title: 10 inserts", Marker::Circle);
    let axis =
        Axis::new(far().writes.iter().map(|write| (write.offset, write.offset + write.bytes)).collect());
    let times = Times::new(&far());
    for write in far().writes {
        let (colour, middle) = (colour_of(write.class), write.offset + write.bytes / 2);
        let (x, y) = (times.x(write.seconds), axis.part_of(middle).unwrap().y(middle));
        // One circle is the filling, and the other is the edge.
        assert_eq!(values(&picture, "circle", "cx", colour), [x; 2], "{:?}", write.class);
        assert_eq!(values(&picture, "circle", "cy", colour), [y; 2], "{:?}", write.class);
        assert_eq!(values(&picture, "circle", "r", colour), [radius_of(write.bytes, 65536); 2]);
    }
    assert!(values(&picture, "circle", "r", colour_of(Class::Other)).is_empty());
    let xs = [Class::Log, Class::Journal, Class::Database]
        .map(|class| values(&picture, "circle", "cx", colour_of(class))[0]);
    assert!(xs[0] < xs[1] && xs[1] < xs[2], "later is further right: {xs:?}");
    let ys = [Class::Log, Class::Journal, Class::Database]
        .map(|class| values(&picture, "circle", "cy", colour_of(class))[0]);
    assert!(ys[0] > ys[1] && ys[1] > ys[2], "a higher address is higher: {ys:?}");
}

#[test]
fn requests_are_squares_whose_sides_grow_with_them() {
    let picture = picture(&far(), "squares", Marker::Square);
    for write in far().writes {
        let sides = values(&picture, "rect", "width", colour_of(write.class));
        // These squares are the filling and the edge of the request, and the square in the legend.
        assert_eq!(sides.iter().filter(|side| **side == side_of(write.bytes)).count(), 2, "{sides:?}");
        assert_eq!(sides.len(), 3);
    }
    assert!(values(&picture, "circle", "r", BLACK).is_empty());
}

#[test]
fn a_picture_says_what_is_in_it() {
    let picture = picture(&far(), "dd if=/dev/zero & co", Marker::Circle);
    for text in [
        "dd if=/dev/zero &amp; co",
        "address (MiB)",
        "flush 1",
        "8",
        "64",
        "4",
        "time from the first request (ms)",
    ] {
        assert!(has_text(&picture, text), "no {text:?} in {picture}");
    }
    for class in Class::ALL {
        let size = size(far().summary().of(class).bytes);
        assert!(has_text(&picture, &format!("{} {size}", class.name())), "{class:?}");
    }
    assert_eq!(values(&picture, "rect", "width", SHADE), [PLOT_WIDTH], "the journal's place is shaded");
    let flushes = values(&picture, "rect", "x", BLACK);
    assert!(flushes.contains(&Times::new(&far()).x(0.25)), "{flushes:?}");
}

#[test]
fn nothing_and_very_much_can_be_drawn() {
    let empty = picture(&trace(Vec::new()), &"long ".repeat(100), Marker::Square);
    assert!(has_text(&empty, "address (MiB)") && empty.contains("..."));
    let many = (0..5000u64).map(|i| write(i as f64, i * i * 4096, (1 + i % 300) * 4096, Class::Other));
    let many = picture(&trace(many.collect()), "\u{fc} \n", Marker::Circle);
    assert_eq!(values(&many, "circle", "cx", colour_of(Class::Other)).len(), 2 * 5000);
    assert!(has_text(&many, "time from the first request (s)"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.svg");
    draw(&far(), "file", Marker::Square, &path).unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), picture(&far(), "file", Marker::Square));
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
