//! Stores with more data than cache. Each runs alone in a process, with the cache's size and a fixed share as
//! its memory.

mod case;
mod child;
mod group;
mod probe;
mod table;

pub(crate) use self::child::{Task, child};
pub(crate) use self::table::measure;

/// Bytes that each process has in addition to the cache: for its program, its log, its threads, and data that
/// waits to be written.
const SHARE_BYTES: u64 = 64 << 20;

/// The command-line options of this measurement.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) cache_bytes: u64,
    /// Seconds for a row and a store, over all its turns.
    pub(crate) seconds: f64,
    /// Turns of each store in a row.
    pub(crate) turns: u32,
    /// Texts, one of which a row's name must contain; the usual rows if there are none.
    pub(crate) rows: Vec<String>,
    pub(crate) is_all: bool,
    /// The stores; all that are built in if there are none.
    pub(crate) stores: Vec<String>,
}
