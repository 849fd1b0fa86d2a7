//! The reasons why one transaction comes before another.

use std::fmt;

use crate::history::{List, Register};

/// The reason why a first transaction comes before a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Both transactions wrote, and the write of the second is the later one.
    Ww(Place),
    /// The second transaction read what the first wrote.
    Wr(Place),
    /// The first transaction did not see what the second wrote.
    Rw(Place),
    /// The first transaction had ended before the second began.
    Time,
}

/// The list or register that both transactions used.
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
