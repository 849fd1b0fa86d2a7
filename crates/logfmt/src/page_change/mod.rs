//! What makes the new image of a page of the old one, as small as it gets: operations on the cells of a b-tree
//! page (SQLite/PPL, section 3.2: physiological records), bytes that moved, ranges of bytes, or all of it.
//!
//! `docs/format/page-change.md` is the specification. A payload says of what kind it is, and any bytes may be
//! taken for one (invariant 12). Who encodes a change does to a copy of the old page what a reader will do, and
//! adds what is still different; so it comes out byte for byte, whatever SQLite did.
//!
//! A log of pages keeps the smallest ([`encode`]). A log of differences keeps ranges, and one of these only where
//! cells were rearranged, which their pointers tell at a glance ([`encode_rearranged`]).

mod align;
mod btree;
mod cells;
mod codec;
mod glance;
mod kinds;
mod moves;
mod number;
mod operation;
mod ranges;
mod space;

#[cfg(test)]
mod tests;

pub use codec::{Difference, Scratch, apply, encode, encode_rearranged, encode_whole, is_empty};
pub use kinds::{ChangeKind, header_bytes, kind};
