//! A change of a page: a payload that makes the new image of the page from the old one, and is as short as possible. A
//! payload is operations on the cells of a b-tree page (SQLite/PPL, section 3.2: physiological records), moves of
//! bytes, ranges of bytes, or the whole page.
//!
//! `docs/format/page-change.md` is the specification. A payload says of which kind it is. A reader accepts any bytes,
//! and refuses those that are no valid payload (invariant 12). The encoder applies a change to a copy of the old page,
//! just as a reader will, and then records every byte that still differs. So a reader gets the exact page, whatever
//! SQLite did.
//!
//! A log of page changes stores the shortest payload ([`encode`]). A log of page differences stores ranges. It stores
//! operations or moves only where cells were rearranged, which the cell pointers show cheaply ([`encode_rearranged`]).

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
