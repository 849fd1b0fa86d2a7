//! Settings for all databases of a process: what the program sets, else its environment.

use std::sync::OnceLock;

use super::fields::{STRICT, Settings};
use super::is_off;
use super::names::variable_of;

/// Pairs of an environment variable and its value. They are set once, so a reader never waits: the process
/// may be forked at any moment.
static GIVEN: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Sets settings that come before the environment of this process, and after a URI. Of two settings with one
/// name the last counts. The first call decides for good.
///
/// # Errors
/// A text that says which setting is wrong, or that other settings are in force.
pub fn set_defaults(settings: &[(&str, &str)]) -> Result<(), String> {
    let mut checked = Settings::default();
    let mut given = Vec::new();
    for (name, value) in settings.iter().rev() {
        checked.set(name, value)?;
        let variable = variable_of(name);
        if given.iter().all(|(known, _)| *known != variable) {
            given.push((variable, (*value).to_owned()));
        }
    }
    given.sort();
    if *GIVEN.get_or_init(|| given.clone()) == given {
        Ok(())
    } else {
        Err("this process was given other settings before, and they cannot be changed".to_owned())
    }
}

/// The value for all databases of this process, by the name of an environment variable.
pub fn variable(name: &str) -> Option<String> {
    let given = GIVEN.get().into_iter().flatten().find(|(given, _)| given == name);
    given.map(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok())
}

/// Whether `strict` is asked for wherever a URI does not say otherwise.
pub fn is_strict() -> bool {
    let value = variable(&variable_of(STRICT)).unwrap_or_default();
    !value.is_empty() && !is_off(&value)
}
