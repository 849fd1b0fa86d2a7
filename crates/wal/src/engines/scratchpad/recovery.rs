//! The scan of the region by a process that recovers or inspects a log: the paper's scan from head to tail (section
//! 5.1.3). It ends at the first transaction that is not committed (invariant 7).

use duralite_format::scratchpad::{Kind, PageHeader, first_link_offset};

use rustc_hash::FxHashSet;

use super::Scratchpad;
use super::region::offset_of;
use super::transaction::{self, Expected, Scan, has_commit};
use crate::LogError;
use crate::shared::generations;

impl Scratchpad {
    /// Applies everything committed that a scan of the region finds. Stores nothing.
    ///
    /// # Errors
    /// `Corrupt`, also if the scan misses a committed transaction.
    pub(super) fn look_through(&mut self) -> Result<(), LogError> {
        self.scan = Some(Scan::default());
        loop {
            let active = self.active_now();
            let mut found = Ok(true);
            while matches!(found, Ok(true)) {
                found = self.follow(active).map(|found| found.is_some());
            }
            match found.and_then(|_| self.check_nothing_follows()) {
                // A running process has started the log over during the scan, so scan again.
                _ if self.active_now() != active => {}
                done => return done,
            }
        }
    }

    /// Fails if the next transaction is committed but cannot be read, or if a later one is complete.
    pub(super) fn check_nothing_follows(&self) -> Result<(), LogError> {
        let Some(scan) = self.scan.as_ref().filter(|_| self.in_force.wal_header.is_some()) else {
            return Ok(());
        };
        let (generation, next) = (self.in_force.slot.generation, self.sequence.wrapping_add(1));
        match scan.own().iter().find(|page| has_commit(&self.region, **page, generation, next)) {
            Some(page) => Err(self.region.corrupt(*page, "a committed transaction")),
            None => self.check_later(scan).and_then(|()| self.check_first()),
        }
    }

    /// The next transaction is not committed. Checks that no transaction with a later number is complete.
    fn check_later(&self, scan: &Scan) -> Result<(), LogError> {
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

    /// If the scan has found no transaction, checks that the link to the first transaction leads to the beginning of
    /// a transaction. As long as the log has that link, it owns the pages of the first transaction
    /// ([`Self::forget_first`]). If the link leads elsewhere, other logs have taken those pages, which is damage.
    fn check_first(&self) -> Result<(), LogError> {
        let Some(first) = self.linked_next().filter(|_| self.sequence == 0) else { return Ok(()) };
        let generation = self.in_force.slot.generation;
        let begins = PageHeader { kind: Kind::Redo, generation, transaction: 1, index: 0 };
        if self.region.is_own(first) && self.region.header(first).is_some_and(|(header, _)| header == begins)
        {
            return Ok(());
        }
        Err(self.region.corrupt(first, "the first transaction, whose pages others have been given"))
    }

    /// Clears the link to the first transaction if no first transaction is committed. An uncommitted first transaction
    /// may own pages, and the log has to clear the link before it gives them back. The caller holds the WRITE lock, or
    /// no other process uses the log.
    pub(super) fn forget_first(&self) {
        let at = first_link_offset(self.in_force.slot.generation);
        if self.sequence == 0 && self.nvm.load_u64(at) != 0 {
            self.nvm.store_u64(at, 0);
            self.nvm.flush(at, 8);
            self.nvm.fence();
        }
    }

    /// Repairs the region after a crash. Gives back the pages to which nothing committed refers, and stores the links
    /// from each transaction to the next. No other process may use the log. If recovery itself is interrupted by a
    /// crash, it can run again.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn recover(&mut self) -> Result<(), LogError> {
        self.look_through()?;
        let undo = self.rollback.check()?;
        // A dead process may have stored the newest marks without flushing them. Flush them, because what follows
        // relies on them.
        self.settle_doubtful();
        let last = std::mem::take(&mut self.newest);
        for pair in std::mem::take(&mut self.firsts) {
            // A copy of a log refers to pages that belong to the original, so its process must not store links there.
            // No other process would follow them.
            if self.region.is_writable() {
                self.store_follow(pair.0);
            }
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

    /// Returns the pages of committed transactions, and those of the rollback journal.
    pub(super) fn needed_beside(&self, undo: Vec<u32>) -> FxHashSet<u32> {
        self.pages.iter().copied().chain(undo).collect()
    }

    /// Gives back the pages that a dead process left behind. That process had the process slot that this process has
    /// now. A process calls this method when it joins the processes that use the log.
    pub(super) fn collect_own(&mut self) {
        let Ok(undo) = self.rollback.pages() else { return };
        // The dead process may have died while it started the log over. In that case the generation in force may not be
        // durable, and a crash would bring back the previous one. So make the new one durable before other logs can
        // take the pages of the previous one.
        self.settle_doubtful();
        let mut kept = self.needed_beside(undo);
        // Another process may be committing the next transaction at this moment, so keep its first page.
        kept.extend(self.linked_next());
        self.region.collect(|page| kept.contains(&page), |_| true);
    }

    /// Makes durable the last commit that this process has seen, because the process that stored it may not have flushed it.
    pub(super) fn settle_doubtful(&mut self) {
        if self.flush_doubtful() {
            self.region.nvm.fence();
        }
    }

    /// Flushes the last commit that this process has seen. The caller fences afterwards.
    pub(super) fn settle_flushed(&mut self) {
        self.flush_doubtful();
    }

    fn flush_doubtful(&mut self) -> bool {
        if std::mem::take(&mut self.doubtful_generation) {
            self.settle_generation();
        }
        match self.doubtful.take() {
            Some(at) => self.region.nvm.flush(at, 8),
            None => return false,
        }
        true
    }

    /// Makes durable the generation in force, and the word that puts it in force. The process that began the
    /// generation may have died before the generation was durable. A caller uses this method before it gives back
    /// pages of earlier generations (invariant 24).
    pub(super) fn settle_generation(&self) {
        generations::flush(&*self.nvm, self.in_force.slot.generation);
        self.nvm.fence();
    }

    /// Returns the offset of a page, for messages.
    pub(super) fn offset(page: u32) -> u64 {
        offset_of(page)
    }
}
