//! What a transaction has done so far that is taken back if it does not commit.

use std::sync::Arc;

use duralite_logfmt::store::Lsn;

use crate::sync::Mutex;
use crate::versions::{Fate, Place};

/// A step that is taken back if its transaction is.
#[derive(Debug)]
pub(crate) struct Step {
    /// The object that recovery takes it back by: the step's own, or one that it was moved to.
    pub(crate) lsn: Lsn,
    pub(crate) undo: Vec<u8>,
}

/// The steps of one transaction, which the keeper may move forward in the log while nobody is at them.
#[derive(Debug, Default)]
pub(crate) struct Undoable {
    /// Held by the transaction from before a step is logged until it is listed, or until what takes one back is logged and
    /// the step is off the list; and by whoever moves the steps. Nobody waits for room in the log meanwhile.
    pub(crate) busy: Mutex<()>,
    /// Held by the transaction from before it asks whether a row has to be noted until the step that changes it is listed, and while
    /// it takes one back; and by whoever notes what it has changed. Nobody reads a page meanwhile but to take a step back.
    pub(crate) noting: Mutex<()>,
    pub(crate) list: Mutex<Steps>,
    /// What becomes of it, for snapshots.
    pub(crate) fate: Arc<Fate>,
}

#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Oldest first, with ascending numbers.
    pub(crate) steps: Vec<Step>,
    /// Rows of which it is noted what they were before, also those that were taken back.
    pub(crate) noted: Vec<Arc<Place>>,
    /// The transaction has committed, or was taken back: nothing is moved any more.
    pub(crate) is_over: bool,
}
