//! What whoever is alone with a log, or only looks at it, finds in the region: the paper's scan from head to tail
//! (section 5.1.3).

use duralite_logfmt::scratchpad::{Kind, PageHeader, first_link_offset};

use rustc_hash::FxHashSet;

use super::Scratchpad;
use super::region::offset_of;
use super::scan::Scan;
use super::transaction::{self, Expected, has_commit};
use crate::JournalError;

impl Scratchpad {
    /// Takes in everything that is committed, by a scan of the region. Stores nothing.
    ///
    /// # Errors
    /// `Corrupt`, also where a committed transaction is not reached.
    pub(super) fn look_through(&mut self) -> Result<(), JournalError> {
        self.scan = Some(Scan::default());
        loop {
            let active = self.active_now();
            let mut found = Ok(true);
            while matches!(found, Ok(true)) {
                found = self.follow(active).map(|found| found.is_some());
            }
            match found.and_then(|_| self.check_nothing_follows()) {
                // A process that runs has started the log over meanwhile.
                _ if self.active_now() != active => {}
                done => return done,
            }
        }
    }

    /// Whether what follows the last transaction that was found is one that was committed, and has been damaged.
    pub(super) fn check_nothing_follows(&self) -> Result<(), JournalError> {
        let Some(scan) = self.scan.as_ref().filter(|_| self.in_force.wal_header.is_some()) else {
            return Ok(());
        };
        let (generation, next) = (self.in_force.slot.generation, self.sequence.wrapping_add(1));
        match scan.own().iter().find(|page| has_commit(&self.region, **page, generation, next)) {
            Some(page) => Err(self.region.corrupt(*page, "a committed transaction")),
            None => self.check_later(scan).and_then(|()| self.check_first()),
        }
    }

    /// Whether a transaction is whole that was committed behind the next one, whose commit is not there.
    fn check_later(&self, scan: &Scan) -> Result<(), JournalError> {
        for sequence in scan.numbers_above(self.sequence.wrapping_add(1)) {
            let generation = self.in_force.slot.generation;
            let page_bytes = self.superblock.head.page_bytes;
            let expected = Expected { generation, sequence, frames: u32::MAX - 1, page_bytes };
            let is_whole = |head: &&u32| {
                transaction::read(&self.region, **head, &expected).is_ok_and(|found| found.is_some())
            };
            if let Some(head) = scan.heads(sequence).iter().find(is_whole) {
                return Err(self.region.corrupt(*head, "a transaction before one that is committed"));
            }
        }
        Ok(())
    }

    /// Where no transaction is found: whether one has begun where the log says that the first one does. The pages of a log
    /// are its own as long as that is said there ([`Self::forget_first`]); if that one is not, others have been given them.
    fn check_first(&self) -> Result<(), JournalError> {
        let Some(first) = self.linked_next().filter(|_| self.sequence == 0) else { return Ok(()) };
        let generation = self.in_force.slot.generation;
        let begins = PageHeader { kind: Kind::Redo, generation, transaction: 1, index: 0 };
        if self.region.is_own(first) && self.region.header(first).is_some_and(|(header, _)| header == begins)
        {
            return Ok(());
        }
        Err(self.region.corrupt(first, "the first transaction, whose pages others have been given"))
    }

    /// Before pages are given back that may be those of a transaction which was not committed: that the log does not say any
    /// more where the first one begins, if there is none. For who has the WRITE lock, or is alone.
    pub(super) fn forget_first(&self) {
        let at = first_link_offset(self.in_force.slot.generation);
        if self.sequence == 0 && self.nvm.load_u64(at) != 0 {
            self.nvm.store_u64(at, 0);
            self.nvm.flush(at, 8);
            self.nvm.fence();
        }
    }

    /// Puts the region right after a crash: pages that nothing committed reaches are given back, and what leads
    /// processes from one transaction to the next is stored anew. Only for the one process that has the log. It may be cut off
    /// anywhere, and done again.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn recover(&mut self) -> Result<(), JournalError> {
        self.look_through()?;
        let undo = self.rollback.check()?;
        // What a dead process stored last may not have been flushed, and is built upon from here on.
        self.settle_doubtful();
        let last = std::mem::take(&mut self.newest);
        for pair in std::mem::take(&mut self.firsts) {
            self.store_follow(pair.0);
            self.newest = pair;
        }
        self.newest = last;
        let kept = self.needed_beside(undo);
        if let Some(scan) = self.scan.take() {
            self.region.set_used(scan.used());
        }
        self.forget_first();
        self.region.collect(|page| kept.contains(&page), |_| false);
        Ok(())
    }

    /// The pages of committed transactions, beside those of the rollback journal.
    pub(super) fn needed_beside(&self, undo: Vec<u32>) -> FxHashSet<u32> {
        self.pages.iter().copied().chain(undo).collect()
    }

    /// What a process that joins others gives back: pages that its process slot had when another one held it.
    pub(super) fn collect_own(&self) {
        let Ok(undo) = self.rollback.pages() else { return };
        let mut kept = self.needed_beside(undo);
        // Somebody may be committing it just now.
        kept.extend(self.linked_next());
        self.region.collect(|page| kept.contains(&page), |_| true);
    }

    /// Offsets of the commit that was seen last, and perhaps not flushed by the one that stored it.
    pub(super) fn settle_doubtful(&mut self) {
        if self.flush_doubtful() {
            self.region.nvm.fence();
        }
    }

    /// The same, before a fence that comes anyway.
    pub(super) fn settle_flushed(&mut self) {
        self.flush_doubtful();
    }

    fn flush_doubtful(&mut self) -> bool {
        if std::mem::take(&mut self.doubtful_generation) {
            for (from, to) in self.in_force.extents() {
                self.nvm.flush(from, to - from);
            }
            self.nvm.fence();
        }
        match self.doubtful.take() {
            Some(at) => self.region.nvm.flush(at, 8),
            None => return false,
        }
        true
    }

    /// Where a page's bytes are, for people.
    pub(super) fn offset(page: u32) -> u64 {
        offset_of(page)
    }
}
