//! Stores with more data than cache: each alone in a process, with as much memory as the cache and a fixed share.

mod case;
mod child;
mod group;
mod probe;
mod table;

pub(crate) use self::child::child;
pub(crate) use self::table::measure;

/// Bytes that each process has besides the cache: for its program, its log, its threads, and what waits to be written.
const SHARE_BYTES: u64 = 64 << 20;

/// What the part is told on the command line.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) cache_bytes: u64,
    /// Of a row and a store, over all its turns.
    pub(crate) seconds: f64,
    /// Turns of each store in a row.
    pub(crate) turns: u32,
    /// What the names of rows have in them, any of it; the usual ones if there is none.
    pub(crate) rows: Vec<String>,
    pub(crate) is_all: bool,
    /// The stores; all that are built in if there is none.
    pub(crate) stores: Vec<String>,
}
