//! Parses the moment to which to restore: the number of a log object, or a time.

use std::time::{Duration, UNIX_EPOCH};

use chrono::DateTime;
use duralite_store::RestoreTo;

/// Parses the value of `--to`.
pub(super) fn parse(text: &str) -> Result<RestoreTo, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(RestoreTo::Lsn).map_err(|error| error.to_string());
    }
    let since = since_1970(text).ok_or("this is neither a number nor a time such as 2026-01-31T23:59:59Z")?;
    Ok(RestoreTo::Time(UNIX_EPOCH + since))
}

/// Parses a time in the form of RFC 3339. Returns how long after the beginning of 1970 it is; `None` for earlier times.
fn since_1970(text: &str) -> Option<Duration> {
    let time = DateTime::parse_from_rfc3339(text).ok()?;
    let seconds = u64::try_from(time.timestamp()).ok()?;
    Some(Duration::from_secs(seconds) + Duration::from_nanos(time.timestamp_subsec_nanos().into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
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
        assert_eq!(seconds("2000-02-29T14:30:15+02:00"), Some(951_827_415.0));
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
