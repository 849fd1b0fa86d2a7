//! What a setting may be, in words.

use std::fmt;

/// What may be given, for the message about what may not.
#[derive(Clone, Copy)]
pub enum Values {
    /// In these words.
    Fixed(&'static str),
    /// In words that depend on which engines there are.
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
