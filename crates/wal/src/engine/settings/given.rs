//! Converts the text of a setting to its value, and back.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::values::Values;

/// A setting, with the text that the user has given for it.
pub struct Given<'a> {
    /// Name of the setting.
    pub name: &'a str,
    /// The text.
    pub value: &'a str,
    /// The valid values of the setting.
    pub values: &'a Values,
}

impl Given<'_> {
    /// Makes the message about a text that is not valid.
    #[must_use]
    pub fn invalid(&self) -> String {
        format!("{}={} is not valid; use {}", self.name, self.value, self.values)
    }

    /// Parses the text with the type's own parser.
    ///
    /// # Errors
    /// [`Given::invalid`].
    pub fn parsed<T: FromStr>(&self) -> Result<T, String> {
        self.value.parse().map_err(|_| self.invalid())
    }

    /// Finds the value that the text names.
    ///
    /// # Errors
    /// [`Given::invalid`].
    pub fn named<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, String> {
        let found = names.iter().find(|(name, _)| *name == self.value).map(|(_, value)| *value);
        found.ok_or_else(|| self.invalid())
    }

    /// Parses the text as on or off.
    ///
    /// # Errors
    /// [`Given::invalid`].
    pub fn switch(&self) -> Result<bool, String> {
        match self.value {
            "on" | "1" => Ok(true),
            value if is_off(value) => Ok(false),
            _ => Err(self.invalid()),
        }
    }

    /// Takes the text as the path of an existing directory.
    ///
    /// # Errors
    /// A message, if the path is not a directory that can be used.
    pub fn directory(&self) -> Result<PathBuf, String> {
        let path = PathBuf::from(self.value);
        let why = match path.metadata() {
            Ok(found) if found.is_dir() => return Ok(path),
            Ok(_) => "it is a file".to_owned(),
            Err(error) => duralite_medium::in_words(&error),
        };
        Err(format!(
            "{}={} is not a directory that can be used: {why}; make it, or name another",
            self.name, self.value
        ))
    }

    /// Parses the text as a number of bytes, with an optional suffix k, m or g for powers of 1024.
    ///
    /// # Errors
    /// [`Given::invalid`], also if the type cannot hold the number.
    pub fn size<T: TryFrom<u64>>(&self) -> Result<T, String> {
        let value = self.value;
        let (digits, shift) = match value.as_bytes().last().map(u8::to_ascii_lowercase) {
            Some(b'k') => (&value[..value.len() - 1], 10),
            Some(b'm') => (&value[..value.len() - 1], 20),
            Some(b'g') => (&value[..value.len() - 1], 30),
            _ => (value, 0),
        };
        let count: u64 = digits.parse().map_err(|_| self.invalid())?;
        let bytes = count.checked_mul(1 << shift).ok_or_else(|| self.invalid())?;
        T::try_from(bytes).map_err(|_| self.invalid())
    }
}

/// Whether this text of a switch means off.
#[must_use]
pub fn is_off(value: &str) -> bool {
    matches!(value, "off" | "0")
}

/// The name of a value; empty for one that has none.
#[must_use]
pub fn name_of<T: Copy + PartialEq>(names: &[(&str, T)], wanted: T) -> String {
    names.iter().find(|(_, value)| *value == wanted).map(|(name, _)| (*name).to_owned()).unwrap_or_default()
}

/// The text of a switch.
#[must_use]
pub fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// The text of a path; empty if there is none.
#[must_use]
pub fn text_of(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}
