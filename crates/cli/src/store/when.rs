//! Parses a moment to restore to: the number of a log object, or a time.

use std::time::{Duration, UNIX_EPOCH};

use duralite_store::RestoreTo;

/// Parses the value of `--to`.
pub(super) fn parse(text: &str) -> Result<RestoreTo, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(RestoreTo::Lsn).map_err(|error| error.to_string());
    }
    let since = since_1970(text).ok_or("this is neither a number nor a time such as 2026-01-31T23:59:59Z")?;
    Ok(RestoreTo::Time(UNIX_EPOCH + since))
}

/// The time between 1970 and a time in UTC. The fraction of a second is optional.
fn since_1970(text: &str) -> Option<Duration> {
    let (date, time) = text.strip_suffix('Z')?.split_once(['T', ' '])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let is_fraction = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !(1..=days_of(year, month)?).contains(&day) || hour > 23 || minute > 59 || second > 59 || !is_fraction
    {
        return None;
    }
    let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let months = (1..month).map(|month| days_of(year, month)).sum::<Option<u64>>()?;
    let days = years + months + day - 1;
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration::new(days * 86_400 + hour * 3600 + minute * 60 + second, nanos))
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let parts: Vec<u64> = text
        .split(between)
        .map(|part| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?)
        .collect::<Option<_>>()?;
    let parts: [u64; 3] = parts.try_into().ok()?;
    // A year with more digits would take long to count up to, and no backup is from such a year.
    (parts[0] < 10_000).then_some(parts)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> Option<u64> {
    match (year, month) {
        (..1970, _) => None,
        (_, 2) => Some(if is_leap(year) { 29 } else { 28 }),
        (_, 4 | 6 | 9 | 11) => Some(30),
        (_, 1..=12) => Some(31),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<f64> {
        since_1970(text).map(|since| since.as_secs_f64())
    }

    #[test]
    fn times_are_counted_from_1970() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(seconds("2000-02-29T12:30:15Z"), Some(951_827_415.0));
        assert_eq!(seconds("2026-01-31 23:59:59.25Z"), Some(1_769_903_999.25));
        assert_eq!(seconds("2100-03-01T00:00:00Z"), Some(4_107_542_400.0));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01Z",
            "1969-12-31T23:59:59Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-+1T00:00:00Z",
            "99999999999-01-01T00:00:00Z",
            "-5",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_log_objects() {
        assert_eq!(parse("17").unwrap(), RestoreTo::Lsn(17));
        assert!(parse("99999999999999999999").is_err());
    }
}
