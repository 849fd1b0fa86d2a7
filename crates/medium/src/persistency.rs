//! Persistency models (paper, section 4.4). A model says when, and in which order, stores become durable.

use std::fmt;
use std::str::FromStr;

/// How the order of stores determines the order in which they become durable (paper, section 4.4). Only
/// [`X86`](Persistency::X86) exists in hardware. The others are for emulation and for exploring crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Persistency {
    /// Lines are flushed by instructions, and a fence waits for them.
    ///
    /// Emulated cost, added at the flush: one line's write latency for every line. If
    /// [`queue_lines`](crate::Latency::queue_lines) is not 0, the memory writes several lines at once, and
    /// the fence waits for the lines that are not written yet. One fence latency is added at the fence.
    #[default]
    X86,
    /// Barriers divide stores into epochs. All stores of an epoch are durable before any store of the next
    /// epoch. Within an epoch there is no order. Flushes are not needed.
    ///
    /// Emulated cost, added at the barrier: one line's write latency if the epoch stored anything, and one
    /// fence latency.
    Epoch,
    /// Stores become durable in the order in which they are made. Neither flushes nor barriers are needed.
    ///
    /// Emulated cost, added at the store: one line's write latency for every line that the store touches.
    Strict,
}

impl Persistency {
    /// Returns `"x86"`, `"epoch"` or `"strict"`, which [`FromStr`] reads too.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X86 => "x86",
            Self::Epoch => "epoch",
            Self::Strict => "strict",
        }
    }
}

impl fmt::Display for Persistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that names no persistency model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a persistency model (x86, epoch, strict)")]
pub struct ParsePersistencyError(pub String);

impl FromStr for Persistency {
    type Err = ParsePersistencyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "x86" => Ok(Self::X86),
            "epoch" => Ok(Self::Epoch),
            "strict" => Ok(Self::Strict),
            _ => Err(ParsePersistencyError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for model in [Persistency::X86, Persistency::Epoch, Persistency::Strict] {
            assert_eq!(model.as_str().parse(), Ok(model));
        }
        let error = "eager".parse::<Persistency>().unwrap_err();
        assert!(error.to_string().contains("\"eager\""));
    }
}
