//! Recovery as in ARIES: redo the log from its head on, and then undo what did not commit.
//!
//! Invariant 40: recovery can be stopped at any point and begun again. Redo compares the LSN of the page with the
//! number of the log object, so it applies each change only once. Undo is logged as in a rollback, so nothing is undone
//! twice. Every page that the log mentions is written home again, because the version that recovery reads may be only
//! in the system's cache.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use crate::controls::{Controls, Rule};
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{Change, Lsn, Object, ObjectKind, PageId, TxId};
use crate::free::free_chains;
use crate::log::older_pages;
use crate::pager::Author;
use crate::transaction::chain_given_up;
use crate::undo::undo_step;

/// The result of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The number of log objects that were redone.
    pub(crate) objects: u64,
    /// The number of transactions that were rolled back.
    pub(crate) undone: u64,
    /// The largest transaction number in the log.
    pub(crate) last_tx: TxId,
    /// The number of steps that were visited to find those that have to be undone.
    pub(crate) steps_visited: u64,
}

/// A transaction whose end recovery has not found yet in the log.
#[derive(Debug, Default)]
struct Unfinished {
    /// The steps to undo, the oldest first.
    steps: Vec<(Lsn, Vec<u8>)>,
    /// The overflow chains that are still to be freed, each given by its next page. `None` if the transaction did not
    /// commit.
    chains: Option<VecDeque<PageId>>,
    /// The undo of steps that the keeper has logged a second time. Once all of these moved steps have been read, they
    /// replace `steps`.
    moved: Vec<(Lsn, Vec<u8>)>,
}

/// The state that recovery derives from reading the log's objects in order.
#[derive(Debug, Default)]
pub(crate) struct Analysis {
    unfinished: FxHashMap<TxId, Unfinished>,
    pub(crate) report: Report,
}

impl Analysis {
    /// Processes the next object: applies its changes to pages that lack them, and records what it says about its
    /// transaction.
    pub(crate) fn repeat(&mut self, engine: &Engine, lsn: Lsn, object: &Object<'_>) -> Result<(), Error> {
        for change in object.changes() {
            let (page, change) = change.map_err(|_| Error::corrupt("a log object"))?;
            redo(engine, page, &change, lsn)?;
        }
        self.report.objects += 1;
        self.report.last_tx = self.report.last_tx.max(object.header.tx);
        match object.header.kind {
            ObjectKind::Moved | ObjectKind::MovedAll => self.account_moved(lsn, object),
            _ => {
                self.account(lsn, object, &engine.controls);
                Ok(())
            }
        }
    }

    /// Processes a moved step, or the object `MovedAll`. Invariant 49: the moved steps replace all earlier steps once
    /// `MovedAll` confirms how many there are.
    fn account_moved(&mut self, lsn: Lsn, object: &Object<'_>) -> Result<(), Error> {
        let it = self.unfinished.entry(object.header.tx).or_default();
        let previous = object.header.previous;
        if previous == 0 {
            // This is the first moved step of an attempt. If there was an earlier attempt, it ran out of room, so
            // ignore its steps.
            it.moved.clear();
        }
        if object.header.kind == ObjectKind::Moved {
            it.moved.push((lsn, object.undo_bytes().to_vec()));
        } else if it.moved.len() as u64 == previous {
            it.steps = std::mem::take(&mut it.moved);
        } else {
            return Err(Error::corrupt(&format!(
                "the information about a transaction's steps in log object \
                                                {lsn}"
            )));
        }
        Ok(())
    }

    fn account(&mut self, lsn: Lsn, object: &Object<'_>, controls: &Controls) {
        let tx = object.header.tx;
        match object.header.kind {
            ObjectKind::Update => {
                let steps = &mut self.unfinished.entry(tx).or_default().steps;
                steps.push((lsn, object.undo_bytes().to_vec()));
            }
            ObjectKind::Compensation => {
                let next = object.header.previous;
                if !controls.keep(Rule::TakeBackOnce) {
                    return;
                }
                let steps = &mut self.unfinished.entry(tx).or_default().steps;
                // The steps are in log order, and the transaction undid them from the last one backwards. The step that
                // it would undo next is `next`. So remove every step after `next`.
                while let Some((lsn, _)) = steps.last() {
                    self.report.steps_visited += 1;
                    if *lsn <= next {
                        break;
                    }
                    steps.pop();
                }
            }
            ObjectKind::Commit => {
                if let Some(it) = self.unfinished.get_mut(&tx) {
                    let chains: VecDeque<PageId> =
                        it.steps.iter().filter_map(|(_, undo)| chain_given_up(undo)).collect();
                    it.steps.clear();
                    it.chains = Some(chains);
                    if it.chains.as_ref().is_some_and(VecDeque::is_empty) {
                        self.unfinished.remove(&tx);
                    }
                }
            }
            // `account_moved` handles these objects.
            ObjectKind::Moved | ObjectKind::MovedAll => {}
            ObjectKind::End => {
                self.unfinished.remove(&tx);
            }
            // The object freed a page of a chain. Its field `previous` names the chain's next page.
            ObjectKind::System => {
                if let Some(chains) = self.unfinished.get_mut(&tx).and_then(|it| it.chains.as_mut()) {
                    match object.header.previous {
                        0 => drop(chains.pop_front()),
                        next => chains.iter_mut().take(1).for_each(|first| *first = next),
                    }
                }
            }
        }
    }

    /// Undoes the transactions that did not commit, the newest step first. Frees the remaining chains of those that did
    /// commit.
    pub(crate) fn finish(mut self, engine: &Engine) -> Result<Report, Error> {
        engine.space.count(&engine.pager)?;
        let mut newest: BTreeMap<Lsn, TxId> = BTreeMap::new();
        for (tx, it) in &self.unfinished {
            newest.extend(it.steps.last().map(|(lsn, _)| (*lsn, *tx)));
        }
        let controls = &engine.controls;
        if !controls.keep(Rule::TakeBack) {
            newest.clear();
        }
        while let Some((_, tx)) = newest.pop_last() {
            let Some(it) = self.unfinished.get_mut(&tx) else { continue };
            if !controls.keep(Rule::NewestFirst) {
                it.steps.reverse();
            }
            let Some((_, undo)) = it.steps.pop() else { continue };
            let previous = it.steps.last().map_or(0, |(lsn, _)| *lsn);
            undo_step(engine, Author { kind: ObjectKind::Compensation, tx, previous }, &undo)?;
            newest.extend(it.steps.last().map(|(lsn, _)| (*lsn, tx)));
            if !controls.keep(Rule::NewestFirst) {
                it.steps.reverse();
            }
        }
        for (tx, it) in self.unfinished {
            match it.chains {
                Some(_) if !controls.keep(Rule::FinishCommitted) => {}
                Some(chains) => free_chains(engine, tx, &Vec::from(chains))?,
                None => {
                    self.report.undone += 1;
                    engine.pager.say(Author { kind: ObjectKind::End, tx, previous: 0 }, &[])?;
                }
            }
        }
        Ok(self.report)
    }
}

fn redo(engine: &Engine, id: PageId, change: &Change<'_>, lsn: Lsn) -> Result<(), Error> {
    let pool = &engine.pager.pool;
    let mut page = match (pool.write(id), change) {
        // The image replaces the whole page, so it does not matter that the old content is damaged.
        (Err(Error::Corrupt { .. }), Change::Image { .. }) => pool.make(id)?,
        (page, _) => page?,
    };
    page.announce(lsn);
    let controls = &engine.controls;
    let has_it = page.lsn() > lsn;
    if (!has_it && controls.keep(Rule::Redo)) || (has_it && !controls.keep(Rule::RedoOnce)) {
        page.apply(change, lsn)?;
    }
    Ok(())
}

/// Redoes the whole log, and then undoes the transactions that did not commit. `superblock` is the number of the page
/// file's superblock when the file was opened.
pub(crate) fn recover(engine: &Engine, superblock: u64) -> Result<Report, Error> {
    let log = &engine.pager.log;
    let mut analysis = Analysis::default();
    let seed = log.seed();
    log.scan(log.head(), log.next(), &mut |lsn, bytes| {
        let object = Object::decode(bytes, seed).map_err(|_| Error::corrupt(&format!("log object {lsn}")))?;
        // Invariant 76: the pages of a bulk load are not in the log, and an older copy of the page file lacks them.
        if object.needed_superblock() > superblock {
            return Err(older_pages(&format!("the pages of the bulk load that log object {lsn} commits")));
        }
        analysis.repeat(engine, lsn, &object)
    })?;
    analysis.finish(engine)
}

#[cfg(test)]
mod tests;
