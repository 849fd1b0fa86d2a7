//! Recovery by ARIES: the log is repeated from its head on, and what did not commit is taken back.
//!
//! Invariant 40: it can be stopped anywhere and begun again. Repeating is guided by pages' LSNs; taking back is logged
//! as when a transaction is rolled back, so that nothing is taken back twice. Every page that the log speaks of is
//! written home anew: what was read of it may be in the system's memory only.

use std::collections::{BTreeMap, VecDeque};

use duralite_logfmt::store::{Change, Lsn, Object, ObjectKind, PageId, TxId};
use rustc_hash::FxHashMap;

use crate::controls::{Controls, Rule};
use crate::engine::Engine;
use crate::error::Error;
use crate::free::free_chains;
use crate::pager::Author;
use crate::transaction::chain_given_up;
use crate::undo::undo_step;

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Log objects repeated.
    pub(crate) objects: u64,
    /// Transactions taken back.
    pub(crate) taken_back: u64,
    /// The largest number of a transaction.
    pub(crate) last_tx: TxId,
    /// Steps looked at to find out which of them are to be taken back.
    pub(crate) steps_visited: u64,
}

/// A transaction that is not known to be over.
#[derive(Debug, Default)]
struct Unfinished {
    /// What is to be taken back, oldest first.
    steps: Vec<(Lsn, Vec<u8>)>,
    /// Of one that has committed, the chains that it gave up, each with the page to go on from.
    chains: Option<VecDeque<PageId>>,
    /// Steps on their way forward in the log, which count once all of them are there.
    moved: Vec<(Lsn, Vec<u8>)>,
}

/// Objects shown in order, and what they amount to.
#[derive(Debug, Default)]
pub(crate) struct Analysis {
    unfinished: FxHashMap<TxId, Unfinished>,
    pub(crate) report: Report,
}

impl Analysis {
    /// Takes in the next object, and makes its changes in the pages that do not have them.
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

    /// Invariant 49: steps that have moved count in place of all before, once the last object says how many they are.
    fn account_moved(&mut self, lsn: Lsn, object: &Object<'_>) -> Result<(), Error> {
        let it = self.unfinished.entry(object.header.tx).or_default();
        let previous = object.header.previous;
        if previous == 0 {
            // What an attempt without room has left does not count.
            it.moved.clear();
        }
        if object.header.kind == ObjectKind::Moved {
            it.moved.push((lsn, object.undo_bytes().to_vec()));
        } else if it.moved.len() as u64 == previous {
            it.steps = std::mem::take(&mut it.moved);
        } else {
            return Err(Error::corrupt(&format!("what log object {lsn} says of a transaction's steps")));
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
                // They are in order, and taken back from the newest on.
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
            // Not accounted for here.
            ObjectKind::Moved | ObjectKind::MovedAll => {}
            ObjectKind::End => {
                self.unfinished.remove(&tx);
            }
            // A page of a chain has been given back: the object says which is the next.
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

    /// Takes back what did not commit, newest step first, and finishes what did.
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
                    self.report.taken_back += 1;
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
        // It is made anew: what it held does not matter.
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

/// Repeats the whole log and takes back what did not commit.
pub(crate) fn recover(engine: &Engine) -> Result<Report, Error> {
    let log = &engine.pager.log;
    let mut analysis = Analysis::default();
    let seed = log.seed();
    log.scan(log.head(), log.next(), &mut |lsn, bytes| {
        let object = Object::decode(bytes, seed).map_err(|_| Error::corrupt(&format!("log object {lsn}")))?;
        analysis.repeat(engine, lsn, &object)
    })?;
    analysis.finish(engine)
}

#[cfg(test)]
mod tests;
