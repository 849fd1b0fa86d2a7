//! The blocks of NVRAM from which a log allocates its space: their states, headers and links, and the word that counts
//! the blocks.

use crate::FormatError;
use crate::bytes::{put, u32_le};
use crate::generation::{halves, of_halves};

/// Returns a word that holds a number and the number's complement. A writer replaces both with one 8-byte store. A
/// reader notices damage, because the two then do not match.
#[must_use]
pub fn checked_word(value: u32) -> u64 {
    u64::from(value) | u64::from(!value) << 32
}

/// Reads a [`checked_word`].
///
/// # Errors
/// `Damaged` if the halves are not each other's complement.
pub fn read_checked_word(word: u64, what: &'static str) -> Result<u32, FormatError> {
    let value = (word & 0xffff_ffff) as u32;
    if word == checked_word(value) { Ok(value) } else { Err(FormatError::Damaged { what }) }
}

/// State of a block in the table (NVWAL, section 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// No process has taken the block.
    Free,
    /// A writer has taken the block, but may not have linked it into the log's list yet.
    Pending,
    /// The block is linked into the log's list.
    InUse,
}

impl BlockState {
    /// Returns the byte for this state in the table.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Pending => 1,
            Self::InUse => 2,
        }
    }

    /// Reads a byte of the table. Returns `None` if the byte is damaged.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Free),
            1 => Some(Self::Pending),
            2 => Some(Self::InUse),
            _ => None,
        }
    }
}

/// Size of a block's header in bytes. The body follows the header.
pub const BLOCK_HEADER_BYTES: u32 = 16;

/// Returns the header of a newly taken block, followed by the zero word that begins the block's body.
#[must_use]
pub fn encode_block_header(generation: u64, block: u32) -> [u8; BLOCK_HEADER_BYTES as usize + 8] {
    let mut out = [0; BLOCK_HEADER_BYTES as usize + 8];
    put(&mut out, 8, &halves(generation)[0].to_le_bytes());
    put(&mut out, 12, &block.to_le_bytes());
    out
}

/// Returns whether `header` is the header of `block`, and the block was taken in `generation`.
#[must_use]
pub fn block_header_matches(header: &[u8; BLOCK_HEADER_BYTES as usize], generation: u64, block: u32) -> bool {
    u32_le(header, 8) == halves(generation)[0] && u32_le(header, 12) == block
}

/// Returns the word that links to a block, for the list of the log's blocks.
#[must_use]
pub fn encode_link(generation: u64, block: u32) -> u64 {
    of_halves(block + 1, halves(generation)[0])
}

/// Reads a link. Returns `None` if the list ends here.
///
/// # Errors
/// `Damaged` if the link belongs to another generation, or leads to a block for which the file has no space yet.
pub fn decode_link(word: u64, generation: u64, blocks_grown: u32) -> Result<Option<u32>, FormatError> {
    if word == 0 {
        return Ok(None);
    }
    let [number, tag] = halves(word);
    if tag != halves(generation)[0] || number == 0 || number > blocks_grown {
        return Err(FormatError::Damaged { what: "a link between log blocks" });
    }
    Ok(Some(number - 1))
}
