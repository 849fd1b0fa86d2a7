//! The two records of a generation, as JSON.

use serde::{Deserialize, Serialize};

use super::keys::Generation;

/// The record that says which primary has claimed a generation. The primary that creates this record owns the
/// generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The generation.
    pub generation: Generation,
    /// A random number, as 32 hexadecimal digits, by which the owner recognises its own claim.
    pub token: String,
    /// A name of the machine, which only people read.
    pub node: String,
    /// The time by the owner's clock, in milliseconds since 1970. No decision depends on this time.
    pub time_ms: i64,
}

/// How the database of a generation follows on the previous generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The generation has no previous generation.
    First,
    /// The generation begins with the state that the archive had at the end of the previous generation.
    Continues,
    /// The archive lacks transactions between the two generations.
    Gap,
    /// Another program changed the database between the two generations, or the generation has a different database.
    Other,
}

/// The record that says where a generation begins. Until it exists, the generation has nothing but its claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The generation.
    pub generation: Generation,
    /// The token of the claim. It makes the start records of two primaries different, even if both believe that they
    /// own the generation.
    pub token: String,
    /// The previous generation. A restore uses its transactions only up to `end_of_parent`.
    pub parent: Option<Generation>,
    /// How the database follows on the parent generation.
    pub line: Line,
    /// The first transaction of the generation after its base.
    pub first_txid: u64,
    /// The database in the generation's first snapshot.
    pub base: Base,
    /// The time by the owner's clock, in milliseconds since 1970. No decision depends on this time.
    pub time_ms: i64,
}

/// The database that a generation begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The last transaction of this state.
    pub txid: u64,
    /// The size of the database in pages.
    pub pages: u32,
    /// The page size in bytes.
    pub page_size: u32,
    /// The checksum of the database, computed as in LTX files, as 16 hexadecimal digits.
    pub checksum: String,
}

impl Start {
    /// Returns the number of the parent's last transaction that a restore may use. If this generation continues the
    /// parent, that number is also the number of its base. Otherwise the base counts as a transaction of its own, and
    /// the parent ends with the number before it.
    #[must_use]
    pub const fn end_of_parent(&self) -> u64 {
        match self.line {
            Line::Continues => self.base.txid,
            Line::First | Line::Gap | Line::Other => self.base.txid.saturating_sub(1),
        }
    }
}
