//! What is measured and modelled for a workload.

use duralite_store::Scheme;

use super::inputs::{Added, Cost};
use super::pieces::LogPieces;
use crate::model::schemes::{Model, Outcome};

/// Modelled cores.
pub(super) const CORES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Transactions of a simulation.
pub(super) const COMMITS: u64 = 3000;

/// How cores slow each other down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contention {
    /// How many times as long a transaction takes while the other core runs another store.
    pub(super) beside: f64,
    /// How much more it takes if both run the same store, as a share of its time alone. The modelled cache
    /// lines are not included.
    pub(super) sharing: f64,
    /// The observed share of the time that the modelled cache lines would take.
    pub(super) lines: f64,
}

/// A scheme with added costs, measured and as a model.
pub(super) struct Row {
    pub(super) scheme: Scheme,
    pub(super) added: Added,
    pub(super) alone: Cost,
    pub(super) pieces: LogPieces,
    pub(super) model: Model,
    /// By the number of threads.
    pub(super) checked: Vec<(u64, Cost, Outcome)>,
    /// By the number of cores.
    pub(super) modelled: Vec<Outcome>,
}

/// A workload with all its measurements.
pub(super) struct Sheet {
    pub(super) workload: &'static str,
    pub(super) contention: Contention,
    /// The share of transactions that change something.
    pub(super) changing: f64,
    pub(super) rows: Vec<Row>,
}
