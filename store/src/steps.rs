//! The steps that an open transaction has made, which a rollback undoes.

use std::sync::Arc;

use crate::format::Lsn;
use crate::sync::Mutex;
use crate::versions::{Fate, Place};

/// A step that is undone when its transaction is rolled back.
#[derive(Debug)]
pub(crate) struct Step {
    /// The object from which recovery undoes the step: the object that the step logged, or the object to which the
    /// keeper has moved the step.
    pub(crate) lsn: Lsn,
    pub(crate) undo: Vec<u8>,
}

/// The steps of one transaction. Between the transaction's steps, the keeper may move the steps forward in the log, by
/// logging their undo a second time.
#[derive(Debug, Default)]
pub(crate) struct Undoable {
    /// The mutex that excludes the keeper while the transaction makes or undoes a step. To make a step, the transaction
    /// locks this mutex before it logs the step, and holds it until the step is on the list. To undo a step, the
    /// transaction holds the mutex until it has logged the undo and removed the step from the list. The keeper locks
    /// the mutex to move the steps. No thread waits for room in the log while it holds the mutex.
    pub(crate) busy: Mutex<()>,
    /// The mutex between the transaction and a thread that notes the transaction's changes for snapshots. The
    /// transaction locks this mutex before it checks whether it has to note a row. It holds the mutex until the step
    /// that changes the row is on the list. It also holds the mutex while it undoes a step. A thread that holds the
    /// mutex reads no pages, except to undo a step.
    pub(crate) noting: Mutex<()>,
    pub(crate) list: Mutex<Steps>,
    /// Whether and when the transaction ended, from the point of view of snapshots.
    pub(crate) fate: Arc<Fate>,
}

#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// The steps, the oldest first, with ascending LSNs.
    pub(crate) steps: Vec<Step>,
    /// Rows whose old versions this transaction has noted, including rows whose changes have been undone.
    pub(crate) noted: Vec<Arc<Place>>,
    /// Whether the transaction has committed or was rolled back. If so, the keeper no longer moves its steps.
    pub(crate) is_over: bool,
}
