//! The crate's one error.

use std::io;

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LtxError {
    /// The reader or the writer that the caller passed has failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes contradict themselves or the format.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// The place in the file, in bytes from the beginning.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A caller asked the encoder for something that the format does not allow, or passed a page of another size to the
    /// decoder.
    #[error("not possible in an LTX file: {0}")]
    Refused(&'static str),
}

impl LtxError {
    /// Returns whether the file itself is at fault, so that reading it again does not help.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}
