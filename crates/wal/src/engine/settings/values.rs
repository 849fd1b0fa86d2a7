//! The valid values of a setting, in words.

use std::fmt;

/// Describes the valid values of a setting, for the message about an invalid one.
#[derive(Clone, Copy)]
pub enum Values {
    /// A fixed text.
    Fixed(&'static str),
    /// A text that depends on which engines there are.
    Made(fn() -> String),
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(words) => f.write_str(words),
            Self::Made(words) => f.write_str(&words()),
        }
    }
}
