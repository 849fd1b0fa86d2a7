//! Byte layouts of Duralite's logs, and nothing that touches a medium.
//!
//! Everything here is a pure function of bytes: encoders that fill a buffer, decoders that
//! take any bytes at all and return a value or an error without panicking (invariant 12).
//! `docs/format/nvwal.md` is the specification; the unit tests hold the two together.

#![forbid(unsafe_code)]

mod bytes;
pub mod diff;
mod generation;
pub mod guard;
mod head;
pub mod heap;
mod id;
pub mod nvwal;
mod origin;
pub mod page_change;
pub mod ppl;
pub mod record;
pub mod scratchpad;
pub mod slots;
pub mod sqlite_wal;
pub mod store;
mod transaction;
pub mod wal_index;
pub mod waldio;

pub use generation::GENERATION_LIMIT;
pub use head::{FileIdentity, LogHead, PATH_LIMIT};
pub use id::LogId;
pub use origin::{ORIGIN_BYTES, Origin};

/// What a decoder found wrong with the bytes it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file does not begin with a log's magic number.
    #[error("not a Duralite log (wrong magic number)")]
    Magic,
    /// A log of a known engine, written in another version of the engine's format.
    #[error(
        "a log of format {format}, version {found}; this build reads only version {reads} and has changed nothing: \
         open the database with the build of Duralite that wrote the log, and close it there, which empties the log \
         and lifts the guard"
    )]
    LogVersion {
        /// The engine whose format it is.
        format: &'static str,
        /// The version of the log.
        found: u32,
        /// The version that this build writes and reads.
        reads: u32,
    },
    /// A region or a file of the store, written in another version of its format.
    #[error("format version {0}, which this build does not read; use the version of Duralite that wrote it")]
    Version(u32),
    /// Fewer bytes than the structure has.
    #[error("{what} is cut short")]
    Short {
        /// The structure.
        what: &'static str,
    },
    /// The bytes contradict their own checksum, or each other.
    #[error("{what} is damaged")]
    Damaged {
        /// The structure.
        what: &'static str,
    },
}
