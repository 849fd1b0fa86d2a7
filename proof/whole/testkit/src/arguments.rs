//! The plans of test rigs as text: `name=value` pairs, separated by spaces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Engine;

/// Arguments of a rig, each `name=value`.
pub struct Arguments<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Arguments<'a> {
    /// Parses the arguments.
    ///
    /// # Errors
    /// The first argument that is not `name=value`.
    pub fn new(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let pair = |argument: &'a str| {
            argument.split_once('=').ok_or_else(|| format!("{argument} is not name=value"))
        };
        arguments.into_iter().map(pair).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the first value that is given for this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    /// Passes each argument to `set`.
    ///
    /// # Errors
    /// The error of `set`, preceded by the argument.
    pub fn each<Failure: fmt::Display>(
        &self,
        mut set: impl FnMut(&str, &str) -> Result<(), Failure>,
    ) -> Result<(), String> {
        let mut set =
            |name: &str, value: &str| set(name, value).map_err(|error| format!("{name}={value}: {error}"));
        self.0.iter().try_for_each(|(name, value)| set(name, value))
    }
}

/// Finds one of the product's engines by name.
///
/// # Errors
/// An error that lists the names of the engines, and `others`, which are the names that the caller accepts
/// instead of an engine.
pub fn engine_named(name: &str, others: &[&str]) -> Result<Engine, String> {
    let known = Engine::all();
    let names: Vec<&str> = known.iter().map(|engine| engine.name()).chain(others.iter().copied()).collect();
    let found = known.iter().find(|engine| engine.name() == name);
    found.copied().ok_or_else(|| format!("engine={name}: choose {}", names.join(" or ")))
}

/// The moment when the writer of a test rig acknowledges a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acknowledge {
    /// After `COMMIT` has returned.
    AfterCommit,
    /// Before `COMMIT`. This is wrong on purpose, to show that the rig notices a loss.
    BeforeCommit,
}

impl fmt::Display for Acknowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AfterCommit => "after",
            Self::BeforeCommit => "before",
        })
    }
}

impl FromStr for Acknowledge {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "after" => Ok(Self::AfterCommit),
            "before" => Ok(Self::BeforeCommit),
            _ => Err("choose after or before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_apart_and_say_which_is_wrong() {
        let arguments = Arguments::new(["a=1", "b=x=y", "a=2"]).unwrap();
        assert_eq!(
            (arguments.get("a"), arguments.get("b"), arguments.get("c")),
            (Some("1"), Some("x=y"), None)
        );
        let wrong = arguments.each(|_, value| value.parse::<u32>().map(drop)).unwrap_err();
        assert!(wrong.starts_with("b=x=y: "), "{wrong}");
        assert!(Arguments::new(["a"]).is_err_and(|wrong| wrong == "a is not name=value"));
        assert!(engine_named("no", &["stock"]).unwrap_err().contains("waldio or"));
        for word in ["after", "before"] {
            assert_eq!(word.parse::<Acknowledge>().unwrap().to_string(), word);
        }
    }
}
