//! From the text of a setting to its value, and back.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use duralite_journal::SyncMode;
use duralite_medium::block::{Access, Durability};

use super::{Journal, Nvram, is_off};

/// Frames at which the background checkpoint begins: well before SQLite's own, at 1000.
const BACKGROUND_FRAMES: u32 = 400;
/// The paper's full synch, persistent direct I/O and normal synch (WALDIO, section 5).
pub(super) const DURABILITIES: [(&str, Durability); 3] =
    [("full", Durability::Full), ("fua", Durability::Fua), ("normal", Durability::Normal)];
pub(super) const ACCESSES: [(&str, Access); 3] =
    [("auto", Access::Auto), ("direct", Access::Direct), ("buffered", Access::Buffered)];
pub(super) const JOURNALS: [(&str, Journal); 4] =
    [("auto", Journal::Auto), ("waldio", Journal::Waldio), ("nvwal", Journal::Nvwal), ("off", Journal::Off)];
/// Engines whose names are kept free.
const RESERVED_JOURNALS: [&str; 2] = ["ppl", "scratchpad"];

/// The text of a setting that was given.
pub(super) struct Given<'a> {
    pub name: &'a str,
    pub value: &'a str,
    /// What may be given.
    pub values: &'a str,
}

impl Given<'_> {
    pub fn invalid(&self) -> String {
        format!("{}={} is not valid; use {}", self.name, self.value, self.values)
    }

    pub fn parsed<T: FromStr>(&self) -> Result<T, String> {
        self.value.parse().map_err(|_| self.invalid())
    }

    pub fn named<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, String> {
        let found = names.iter().find(|(name, _)| *name == self.value).map(|(_, value)| *value);
        found.ok_or_else(|| self.invalid())
    }

    pub fn switch(&self) -> Result<bool, String> {
        match self.value {
            "on" | "1" => Ok(true),
            value if is_off(value) => Ok(false),
            _ => Err(self.invalid()),
        }
    }

    pub fn directory(&self) -> Result<PathBuf, String> {
        let path = PathBuf::from(self.value);
        if path.is_dir() {
            Ok(path)
        } else {
            Err(format!("{}={} is not a directory; make it, or name another", self.name, self.value))
        }
    }

    /// Bytes, with an optional suffix k, m or g for powers of 1024.
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

    pub fn journal(&self) -> Result<Journal, String> {
        if RESERVED_JOURNALS.contains(&self.value) {
            return Err(format!(
                "journal={} is not available in this version; use {}",
                self.value, self.values
            ));
        }
        self.named(&JOURNALS)
    }

    pub fn nvram(&self) -> Result<Nvram, String> {
        if self.value == "emulate" { Ok(Nvram::Emulate) } else { self.directory().map(Nvram::Directory) }
    }

    pub fn sync_mode(&self) -> Result<SyncMode, String> {
        self.parsed()
    }

    pub fn background_checkpoint(&self) -> Result<u32, String> {
        match self.switch() {
            Ok(true) => Ok(BACKGROUND_FRAMES),
            Ok(false) => Ok(0),
            Err(_) => self.parsed(),
        }
    }
}

pub(super) fn name_of<T: Copy + PartialEq>(names: &[(&str, T)], wanted: T) -> String {
    names.iter().find(|(_, value)| *value == wanted).map(|(name, _)| (*name).to_owned()).unwrap_or_default()
}

pub(super) fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

pub(super) fn text_of(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}
