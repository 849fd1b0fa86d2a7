//! Formats numbers for people.

use std::time::Duration;

use indicatif::HumanCount;

/// Writes a time with three significant digits.
pub(crate) fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    format!("{} {unit}", digits(value))
}

/// Writes a duration in its one or two largest units.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", age.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Writes a number of bytes with a unit.
pub(crate) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1024 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} KiB", digits(value / 1024.0)),
        0x10_0000..0x4000_0000 => format!("{} MiB", digits(value / 1_048_576.0)),
        _ => format!("{} GiB", digits(value / 1_073_741_824.0)),
    }
}

/// Writes a count or rate with commas between the thousands.
pub(crate) fn count(count: u64) -> String {
    HumanCount(count).to_string()
}

/// Writes a number with three significant digits, or as a whole number if it is at least 100.
fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(
            [7, 1_500, 41_984, 250_000_000, 2_000_000_000].map(time),
            ["7 ns", "1.50 us", "42.0 us", "250 ms", "2.00 s"]
        );
        assert_eq!(
            [5, 2048, 5 << 20, u64::MAX].map(bytes),
            ["5 B", "2.00 KiB", "5.00 MiB", "17179869184 GiB"]
        );
        assert_eq!(
            [0, 12, 1_234, 123_456, 1_234_567].map(count),
            ["0", "12", "1,234", "123,456", "1,234,567"]
        );
        assert_eq!(
            [1, 59, 61, 7200, 90_000].map(|s| age(Duration::from_secs(s))),
            ["1.0 s", "59 s", "1 min 1 s", "2 h 0 min", "1 d 1 h"]
        );
    }
}
