//! Rolls back a transaction.

use super::{State, Transaction};
use crate::error::Error;
use crate::format::ObjectKind;
use crate::noting;
use crate::pager::Author;
use crate::undo::undo_step;

impl Transaction {
    /// Undoes all changes, and ends the transaction. All locks are released on return.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"key", b"value")?;
    /// tx.rollback()?;
    /// assert_eq!(store.begin().get(&table, b"key")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`] if a change cannot be undone; recovery will undo it.
    pub fn rollback(mut self) -> Result<(), Error> {
        self.give_up()
    }

    /// Undoes all changes and ends the transaction, unless it has already ended.
    pub(super) fn give_up(&mut self) -> Result<(), Error> {
        if matches!(self.state.get(), State::Over) {
            return Ok(());
        }
        self.state.set(State::Over);
        let undone = self.undo_to(0).and_then(|()| {
            self.tables_back(0);
            self.close_steps();
            if self.is_active {
                let author = Author { kind: ObjectKind::End, tx: self.id, previous: 0 };
                self.engine().pager.say(author, &[]).map_err(|error| self.engine().poison.set(&error))?;
            }
            Ok(())
        });
        // If the undo failed, the store is poisoned, and no snapshot can be read any more.
        if undone.is_ok() {
            let noted = self.end_for_snapshots();
            self.look_at(&noted);
        }
        let engine = &self.running.engine;
        engine.counts.aborts.add(1);
        self.end(0);
        undone
    }

    /// Undoes all steps except the first `until` ones, beginning with the newest.
    pub(super) fn undo_to(&mut self, until: usize) -> Result<(), Error> {
        let Some(undoable) = self.undoable.clone() else { return Ok(()) };
        loop {
            let _busy = undoable.busy.lock();
            let _noting = undoable.noting.lock();
            // Takes the step off the list before undoing it. That is safe: a thread that moves or notes the steps on
            // the list holds `busy` or `noting`.
            let engine = self.engine();
            let Some((step, next)) = noting::take_last(&engine.versions, &undoable, until) else {
                return Ok(());
            };
            engine.poison.check()?;
            let author = Author { kind: ObjectKind::Compensation, tx: self.id, previous: next };
            // Undo should never fail, because it restores an earlier state, for which room is reserved. If it does
            // fail, poison the store.
            let logged = undo_step(engine, author, &step.undo).map_err(|error| engine.poison.set(&error))?;
            self.last = logged.lsn;
        }
    }

    /// Stops the keeper from moving the transaction's steps.
    pub(super) fn close_steps(&self) {
        if let Some(undoable) = &self.undoable {
            let _busy = undoable.busy.lock();
            undoable.list.lock().is_over = true;
        }
    }

    /// Releases the locks and the reserved room. For `early`, see [`crate::locks::Locks::release`].
    pub(super) fn end(&mut self, early: u64) {
        let engine = &self.running.engine;
        engine.locks.release(self.held.get_mut(), early);
        self.kept.give_up(engine);
        // If the store is poisoned, the transaction stays active. So the store keeps the log objects that recovery
        // needs to undo the transaction.
        if std::mem::take(&mut self.is_active) && !engine.poison.is_set() {
            engine.active.leave(self.id);
        }
        self.undoable = None;
    }
}
