//! The steps that a transaction has taken so far, which are undone if it does not commit.

use std::sync::Arc;

use crate::format::Lsn;
use crate::sync::Mutex;
use crate::versions::{Fate, Place};

/// A step that is undone when its transaction is rolled back.
#[derive(Debug)]
pub(crate) struct Step {
    /// The object that recovery undoes the step by: the step's own object, or the one that it was moved to.
    pub(crate) lsn: Lsn,
    pub(crate) undo: Vec<u8>,
}

/// The steps of one transaction. The keeper may move them forward in the log while the transaction takes none.
#[derive(Debug, Default)]
pub(crate) struct Undoable {
    /// The transaction holds this mutex from before it logs a step until the step is on the list, or until it has
    /// logged the undo of a step and has removed the step from the list. The thread that moves the steps holds it too.
    /// No thread waits for room in the log while it holds it.
    pub(crate) busy: Mutex<()>,
    /// The transaction holds this mutex from before it asks whether to note a row until the step that changes the row
    /// is on the list, and while it undoes a step. A thread that notes what the transaction has changed holds it too. A
    /// thread that holds it reads pages only to undo a step.
    pub(crate) noting: Mutex<()>,
    pub(crate) list: Mutex<Steps>,
    /// How the transaction ended, for snapshots.
    pub(crate) fate: Arc<Fate>,
}

#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// The steps, oldest first, with ascending numbers.
    pub(crate) steps: Vec<Step>,
    /// Rows whose old versions are noted, including rows whose changes were undone.
    pub(crate) noted: Vec<Arc<Place>>,
    /// The transaction has committed or was rolled back, so its steps are not moved any more.
    pub(crate) is_over: bool,
}
