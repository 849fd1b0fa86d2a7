//! Why one transaction comes before another one.

use std::fmt;

use crate::history::{List, Register};

/// Why one transaction comes before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Both wrote; the second one's write is the later one.
    Ww(Place),
    /// The second one read what the first one wrote.
    Wr(Place),
    /// The first one did not see what the second one wrote.
    Rw(Place),
    /// The first one had ended before the second one began.
    Time,
}

/// What both transactions used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    List(List),
    Register(Register),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(list) => write!(f, "list {list}"),
            Self::Register(register) => write!(f, "register {register}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ww(place) => write!(f, "ww, {place}"),
            Self::Wr(place) => write!(f, "wr, {place}"),
            Self::Rw(place) => write!(f, "rw, {place}"),
            Self::Time => f.write_str("time"),
        }
    }
}
