//! Byte layouts of Duralite's logs. Nothing in this crate accesses a medium.
//!
//! Every function here is a pure function of bytes. Encoders fill a buffer. Decoders accept any bytes and return a
//! value or an error, but never panic (invariant 12). The specifications are in `docs/format`; tests compare the
//! constants here with them.

#![forbid(unsafe_code)]

pub mod archive;
pub mod bytes;
pub mod diff;
pub mod generation;
pub mod guard;
mod head;
pub mod heap;
mod id;
pub mod nvwal;
pub mod page_change;
pub mod ppl;
pub mod record;
pub mod scratchpad;
pub mod sqlite_wal;
pub mod wal_index;
pub mod waldio;

pub use generation::{GENERATION_LIMIT, ORIGIN_BYTES, Origin};
pub use head::{FileIdentity, LogHead, PATH_LIMIT};
pub use id::LogId;

/// What is wrong with bytes that a decoder cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file does not begin with a log's magic number.
    #[error("not a Duralite log (wrong magic number)")]
    Magic,
    /// The log belongs to an engine that this build knows, but was written in another version of that engine's format.
    #[error(
        "a log of format {format}, version {found}; this build reads only version {reads} and has changed nothing: \
         open the database with the build of Duralite that wrote the log, and close it there, which empties the log \
         and lifts the guard"
    )]
    LogVersion {
        /// The engine that wrote the log.
        format: &'static str,
        /// The version of the log.
        found: u32,
        /// The version that this build writes and reads.
        reads: u32,
    },
    /// A file other than a log has a format version that this build does not read. The file is a region, a file beside
    /// a database with an archive, or a file of the store.
    #[error("format version {0}, which this build does not read; use the version of Duralite that wrote it")]
    Version(u32),
    /// The structure needs more bytes than there are.
    #[error("{what} is cut short")]
    Short {
        /// The structure.
        what: &'static str,
    },
    /// The bytes contradict their checksum, or one field contradicts another.
    #[error("{what} is damaged")]
    Damaged {
        /// The structure.
        what: &'static str,
    },
}
