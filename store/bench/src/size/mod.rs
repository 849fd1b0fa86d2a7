//! Measures stores whose data is larger than their cache. Each store runs alone in a child process, whose memory is
//! limited to the size of the cache plus a fixed share.

mod case;
mod child;
mod group;
mod probe;
mod table;

pub(crate) use self::child::{Task, child};
pub(crate) use self::table::measure;

/// The memory that each child may use besides the cache, in bytes: for its program, its log, its threads, and data that
/// waits to be written.
const SHARE_BYTES: u64 = 64 << 20;

/// The command-line options of this measurement.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) cache_bytes: u64,
    /// How long a store runs for one row of the table, in seconds. All turns together take this time.
    pub(crate) seconds: f64,
    /// The number of turns that each store gets for a row.
    pub(crate) turns: u32,
    /// The texts that choose the rows: a row is measured if its name contains one of them. If there are no texts, the
    /// usual rows are measured.
    pub(crate) rows: Vec<String>,
    pub(crate) is_all: bool,
    /// The stores to measure. If there are none, all stores that were built in are measured.
    pub(crate) stores: Vec<String>,
}
