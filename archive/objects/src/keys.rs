//! The keys of an archive's objects.
//!
//! | key | holds |
//! | --- | --- |
//! | `generations/<G>.claim` | who has taken the generation |
//! | `generations/<G>.start` | where the generation begins |
//! | `g<G>/<LLLL>/<min>-<max>.ltx` | the transactions from min to max, on a level |
//!
//! So `g<G>` is a replica in the layout of Litestream 0.5. Litestream names levels in two ways, depending on the store,
//! and so does [`Layout`].

use std::fmt;
use std::str::FromStr;

use duralite_ltx::{file_name, parse_file_name};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

/// The number of levels. Primaries upload transactions as objects of level 0. The higher levels have compacted objects
/// and snapshots.
pub const LEVELS: u8 = 10;
/// The level of snapshots.
pub const SNAPSHOTS: u8 = 9;

/// The number of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Generation(u64);

impl Generation {
    /// The first generation of an archive.
    pub const FIRST: Self = Self(1);

    /// Returns the generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the generation before this one, if there is one.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        (self > Self::FIRST).then(|| Self(self.0 - 1))
    }

    /// Returns the number in the form that LTX files have.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Generation {
    type Err = &'static str;

    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        let number = u64::from_str_radix(digits, 16).map_err(|_| "not the number of a generation")?;
        // The code refuses the largest number, because `next` would overflow. No archive gets that far.
        let generation = Self(number);
        let is_one = generation >= Self::FIRST && number < u64::MAX && generation.to_string() == digits;
        is_one.then_some(generation).ok_or("not the number of a generation")
    }
}

impl TryFrom<String> for Generation {
    type Error = &'static str;

    fn try_from(digits: String) -> Result<Self, Self::Error> {
        digits.parse()
    }
}

impl From<Generation> for String {
    fn from(generation: Generation) -> Self {
        generation.to_string()
    }
}

/// How the levels of a replica are named. The layout depends on the kind of store, as in Litestream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `<LLLL>/`, four hexadecimal digits: in S3 and in memory.
    Digits,
    /// `ltx/<level>/`: in a directory, Google Cloud Storage and Azure.
    Folders,
}

/// The objects of one generation, or of a database that Litestream replicates. They are on several levels below one
/// prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The prefix.
    pub prefix: Path,
    /// How the levels below are named.
    pub layout: Layout,
}

impl Replica {
    /// Returns the prefix of a level.
    #[must_use]
    pub fn level(&self, level: u8) -> Path {
        match self.layout {
            Layout::Digits => self.prefix.clone().join(format!("{level:04x}")),
            Layout::Folders => self.prefix.clone().join("ltx").join(level.to_string()),
        }
    }

    /// Returns the key of an object.
    #[must_use]
    pub fn key(&self, object: &Object) -> Path {
        self.level(object.level).join(file_name(object.min, object.max))
    }

    /// Returns the object with this key, or `None` if no object of this replica can have this key.
    #[must_use]
    pub fn parse(&self, key: &Path, bytes: u64) -> Option<Object> {
        let mut parts = key.prefix_match(&self.prefix)?;
        let level = match self.layout {
            Layout::Digits => parts.next().filter(|digits| digits.as_ref().len() == 4),
            Layout::Folders => {
                parts.next().filter(|folder| folder.as_ref() == "ltx").and_then(|_| parts.next())
            }
        };
        let radix = if self.layout == Layout::Digits { 16 } else { 10 };
        let level = u8::from_str_radix(level?.as_ref(), radix).ok().filter(|level| *level < LEVELS)?;
        let (min, max) = parse_file_name(parts.next()?.as_ref())?;
        let object = Object { level, min, max, bytes };
        (parts.next().is_none() && self.key(&object) == *key).then_some(object)
    }
}

/// An object of a replica, as a listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// The level.
    pub level: u8,
    /// The first transaction.
    pub min: u64,
    /// The last transaction.
    pub max: u64,
    /// The object's length in bytes.
    pub bytes: u64,
}

impl Object {
    /// Returns whether the object has all pages of the database.
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        self.min == 1
    }
}

/// The key of a record of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The record that says who has taken the generation.
    Claim(Generation),
    /// The record that says where the generation begins.
    Start(Generation),
}

impl Key {
    /// Returns the generation.
    #[must_use]
    pub const fn generation(self) -> Generation {
        match self {
            Self::Claim(generation) | Self::Start(generation) => generation,
        }
    }

    /// Returns the name below `generations/`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Claim(generation) => format!("{generation}.claim"),
            Self::Start(generation) => format!("{generation}.start"),
        }
    }

    /// Parses the name of a record below `generations/`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (generation, kind) = name.split_once('.')?;
        let generation = generation.parse().ok()?;
        match kind {
            "claim" => Some(Self::Claim(generation)),
            "start" => Some(Self::Start(generation)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_sixteen_digits() {
        assert_eq!(Generation::FIRST.to_string(), "0000000000000001");
        assert_eq!(Generation::FIRST.next().to_string().parse(), Ok(Generation::FIRST.next()));
        assert_eq!(Generation::FIRST.previous(), None);
        for digits in
            ["", "1", "0000000000000000", "000000000000000A", "ffffffffffffffff", "+000000000000001"]
        {
            assert!(digits.parse::<Generation>().is_err(), "{digits}");
        }
    }

    #[test]
    fn objects_are_found_again_by_their_keys() {
        let object = Object { level: 9, min: 1, max: 0x2f, bytes: 7 };
        for (layout, key) in [
            (Layout::Digits, "a/b/0009/0000000000000001-000000000000002f.ltx"),
            (Layout::Folders, "a/b/ltx/9/0000000000000001-000000000000002f.ltx"),
        ] {
            let replica = Replica { prefix: Path::from("a/b"), layout };
            assert_eq!(replica.key(&object).as_ref(), key);
            assert_eq!(replica.parse(&Path::from(key), 7), Some(object));
            for other in [
                "x/",
                "a/b/",
                "a/b/ltx/09/",
                "a/b/9/",
                "a/b/000a/",
                "a/b/ltx/10/",
                "a/b/0009/x/",
                "a/b/ltx/9/x/",
            ] {
                let key = format!("{other}0000000000000001-000000000000002f.ltx");
                assert_eq!(replica.parse(&Path::from(key.as_str()), 7), None, "{key}");
            }
        }
    }

    #[test]
    fn records_are_found_again_by_their_names() {
        for key in [Key::Claim(Generation::FIRST), Key::Start(Generation::FIRST.next())] {
            assert_eq!(Key::parse(&key.name()), Some(key));
        }
        assert_eq!(Key::parse("0000000000000001.claim.tmp"), None);
        assert_eq!(Key::parse("1.claim"), None);
    }
}
