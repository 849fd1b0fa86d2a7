//! The two records of a generation, as JSON.

use serde::{Deserialize, Serialize};

use super::keys::Generation;

/// Who has taken a generation. Whoever creates the record owns the generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The generation.
    pub generation: Generation,
    /// A random number, 32 hexadecimal digits, by which the owner knows its own claim.
    pub token: String,
    /// A name of the machine, for people.
    pub node: String,
    /// When, by the owner's clock, in milliseconds since 1970. Nothing rests on it.
    pub time_ms: i64,
}

/// How a generation's database follows on the generation before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// There is none before.
    First,
    /// It begins with what the archive had at the end of the generation before.
    Continues,
    /// Transactions in between are not in the archive.
    Gap,
    /// Something else changed the database in between, or it is another database.
    Other,
}

/// Where a generation begins. Until it exists, nothing else of the generation does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The generation.
    pub generation: Generation,
    /// The token of the claim. So two who both took themselves for the owner would never write equal records.
    pub token: String,
    /// The generation before, of which transactions below `first_txid` count.
    pub parent: Option<Generation>,
    /// How the database follows on the parent's.
    pub line: Line,
    /// The generation's first transaction after its first snapshot.
    pub first_txid: u64,
    /// What the first snapshot has.
    pub base: Base,
    /// When, by the owner's clock, in milliseconds since 1970. Nothing rests on it.
    pub time_ms: i64,
}

/// The database that a generation begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The transaction that it is the state after.
    pub txid: u64,
    /// Its pages.
    pub pages: u32,
    /// Bytes of a page.
    pub page_size: u32,
    /// Its checksum, as LTX files have it, 16 hexadecimal digits.
    pub checksum: String,
}

impl Start {
    /// The last transaction of the parent that counts: what the owner of the generation found at its end. The base of a
    /// generation that does not continue is a transaction of its own.
    #[must_use]
    pub const fn end_of_parent(&self) -> u64 {
        match self.line {
            Line::Continues => self.base.txid,
            Line::First | Line::Gap | Line::Other => self.base.txid.saturating_sub(1),
        }
    }
}
