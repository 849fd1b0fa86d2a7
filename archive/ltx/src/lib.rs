//! LTX files, version 3. A file has the pages that some transactions of a SQLite database have changed.
//!
//! A file has a [`Header`], one frame for each page in ascending order, an index of the frames, and a checksum of
//! everything. A file whose first transaction is 1 is a *snapshot*: it has every page of the database. This crate uses
//! no network, and leaves it to the caller where to store a file.
//!
//! [`Encoder`] always writes the same bytes for the same pages. So an upload can be repeated: if the store has the
//! object already, its bytes are equal. [`Decoder`] accepts untrusted input. It refuses a file that contradicts itself,
//! and never panics (invariant 12). Whatever numbers the file has, the decoder allocates no more than a few pages of
//! the largest size. Encoder and decoder each keep at most a few MiB in memory, however many pages the file has.

#![forbid(unsafe_code)]

mod checksum;
mod decoder;
mod encoder;
mod error;
mod header;
mod index;
mod layout;
mod merge;
mod name;

pub use checksum::{DatabaseChecksum, database_checksum};
pub use decoder::{Decoder, Summary};
pub use encoder::Encoder;
pub use error::LtxError;
pub use header::{HEADER_BYTES, Header};
pub use layout::lock_page;
pub use merge::merge;
pub use name::{file_name, parse_file_name};
