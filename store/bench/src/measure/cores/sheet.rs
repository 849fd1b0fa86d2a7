//! Holds what is measured and modelled for one workload.

use duralite_store::Scheme;

use super::inputs::{Added, Cost};
use super::pieces::LogPieces;
use crate::model::schemes::{Model, Outcome};

/// The numbers of cores that are modelled.
pub(super) const CORES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// The number of transactions that one simulation runs.
pub(super) const COMMITS: u64 = 3000;

/// The measures of how cores slow each other down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contention {
    /// The factor by which a transaction takes longer while the other core runs another store.
    pub(super) beside: f64,
    /// How much longer a transaction takes if both cores run the same store, as a fraction of its time on one core.
    /// This excludes the slowdown `beside`, and the cost of the cache lines that the model simulates.
    pub(super) sharing: f64,
    /// The model multiplies the cost of moving a cache line by this factor. It is the measured cost of sharing, divided
    /// by the cost that follows from the time of one transfer. At most 1.
    pub(super) lines: f64,
}

/// A scheme with added delays: what was measured, and the model.
pub(super) struct Row {
    pub(super) scheme: Scheme,
    pub(super) added: Added,
    pub(super) alone: Cost,
    pub(super) pieces: LogPieces,
    pub(super) model: Model,
    /// Measured and modelled results for each number of threads.
    pub(super) checked: Vec<(u64, Cost, Outcome)>,
    /// Modelled results for each number of cores.
    pub(super) modelled: Vec<Outcome>,
}

/// A workload, with all of its rows.
pub(super) struct Sheet {
    pub(super) workload: &'static str,
    pub(super) contention: Contention,
    /// The share of transactions that change any row.
    pub(super) changing: f64,
    pub(super) rows: Vec<Row>,
}
