//! The identity of a log.

use std::fmt;
use std::str::FromStr;

/// 128 random bits that identify a log. As long as a log exists, the log and its database's header hold the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId(pub [u8; 16]);

impl LogId {
    /// Reads the log's identity from its first bytes. The identity is at the same offset in every version of every
    /// engine's format. Returns `None` if there are too few bytes.
    #[must_use]
    pub fn of_log(first_bytes: &[u8]) -> Option<Self> {
        crate::bytes::array(first_bytes, 16).map(Self)
    }

    /// Returns the seed that ties checksums to this log, so that bytes of another log never pass the check.
    pub(crate) fn seed(self) -> u64 {
        crate::bytes::u64_le(&self.0, 0)
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogId({self})")
    }
}

impl FromStr for LogId {
    type Err = crate::FormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let damaged = crate::FormatError::Damaged { what: "log id" };
        if text.len() != 32 || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(damaged);
        }
        u128::from_str_radix(text, 16).map(|value| Self(value.to_be_bytes())).map_err(|_| damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let id = LogId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0dfeff");
        assert_eq!(id.to_string().parse::<LogId>(), Ok(id));
        assert!("00".parse::<LogId>().is_err());
        assert!("+0102030405060708090a0b0c0dfeff0".parse::<LogId>().is_err());
    }
}
