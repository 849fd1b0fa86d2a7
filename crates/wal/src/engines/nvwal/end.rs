//! Checks that a log really ends where the scan stops. The scan stops at zeros, which are either unused space or the
//! result of damage.
//!
//! A transaction with the order `Ordered` gets its mark only after everything before it is durable. So if a whole
//! transaction of that kind follows the apparent end, the transactions before it existed, and the log is damaged. The
//! check reads a bounded number of bytes, and in addition three things that have no fixed size: the table of block
//! states; one cache line of each block that is taken according to the table but is in no list; and a transaction that
//! is complete except for its mark.
//!
//! After a transaction that a power loss has torn, there may be whole transactions of the order `Async`. They are lost,
//! because the log ends before them. [`Nvwal::erase_behind_end`] makes sure that none of them ever counts again (invariant 7).

use std::sync::Arc;

use duralite_format::FormatError;
use duralite_format::nvwal::{BLOCK_HEADER_BYTES, Order, TX_HEADER_BYTES, decode_mark, encode_mark};

use super::Nvwal;
use super::scan::{self, Expected, FoundTransaction, Position};
use crate::LogError;
use crate::shared::heap::BlockList;

/// The most bytes after the log's end that the check searches for marks. Recovery also erases marks in steps of this many
/// bytes.
const LOOK_BYTES: u32 = 64 << 10;

impl Nvwal {
    /// Follows the links from the tail's block, and returns the blocks after it. Each of these blocks is durable,
    /// because a writer stores a link to a block only after the block is durable.
    ///
    /// # Errors
    /// `Corrupt` if a link leads to no block of this generation, or back into the list.
    pub(super) fn blocks_behind_tail(&mut self) -> Result<BlockList, LogError> {
        let (mut behind, mut at) = (BlockList::default(), self.tail.block);
        while let Some(next) = self.heap.next(at, self.in_force.slot.generation)? {
            if self.blocks.contains(next) || !behind.push(next) {
                let what = FormatError::Damaged { what: "a link between log blocks" };
                return Err(self.heap.corrupt(at, 0, what));
            }
            at = next;
        }
        Ok(behind)
    }

    /// Refuses a log with a damaged link after its end, or with a whole transaction of the order `Ordered` after its end.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check_end(&mut self) -> Result<(), LogError> {
        if self.in_force.wal_header.is_none() {
            return Ok(());
        }
        for (sequence, at) in self.marks_near_end()? {
            let found = self.transaction_at(at, sequence);
            if matches!(found, Ok(Some(found)) if found.order == Order::Ordered) {
                return Err(self.broken_off());
            }
        }
        Ok(())
    }

    /// Erases the marks of a torn transaction at the end, and of all transactions after it. The erasure is durable on
    /// return. Without it, a new transaction could end exactly where an old one begins, and after a power loss the old
    /// mark could stand in the place of the new transaction's terminator. Also searches the blocks that recovery is
    /// about to free, because a writer may take them again in this generation.
    ///
    /// Marks become durable in their order ([`Nvwal::follow`]). So if the word at the end is zero, no mark follows it.
    ///
    /// # Errors
    /// As [`Nvwal::blocks_behind_tail`].
    pub(super) fn erase_behind_end(&mut self) -> Result<(), LogError> {
        if self.in_force.wal_header.is_none() {
            return Ok(());
        }
        let (behind, block_bytes) = (self.blocks_behind_tail()?, self.heap.block_bytes());
        let mut torn = self.tail;
        if block_bytes - torn.offset < TX_HEADER_BYTES {
            let Some(next) = behind.as_slice().first() else { return Ok(()) };
            torn = Position::start_of(*next);
        }
        let (nvm, torn_at) = (Arc::clone(&self.heap.nvm), self.heap.at(torn.block, torn.offset));
        if nvm.load_u64(torn_at) == 0 {
            return Ok(());
        }
        let rest = behind.as_slice().iter().map(|block| Position::start_of(*block));
        for Position { block, offset: mut from } in std::iter::once(self.tail).chain(rest) {
            while from < block_bytes {
                // Skip holes, because a damaged log may claim far longer blocks than it has.
                let data = nvm.next_data(self.heap.at(block, from)) - self.heap.at(block, 0);
                from = (data / 8 * 8).min(u64::from(block_bytes)) as u32;
                let until = block_bytes.min(from.saturating_add(LOOK_BYTES));
                let mut marks = Vec::new();
                self.marks_in(block, (from, until), &mut marks);
                let places = marks.into_iter().map(|(_, at)| self.heap.at(at.block, at.offset));
                places.filter(|at| *at != torn_at).for_each(|at| nvm.store_u64(at, 0));
                // Flush the whole range, because an earlier recovery may have erased marks there and died before it
                // flushed them.
                nvm.flush(self.heap.at(block, from), u64::from(until - from));
                from = until;
            }
        }
        nvm.fence();
        // Erase the torn mark last. If a crash interrupts the erasure, the torn mark makes the next recovery look for
        // the other marks again.
        nvm.store_u64(torn_at, 0);
        nvm.flush(torn_at, 8);
        nvm.fence();
        Ok(())
    }

    /// Returns the error for a log in which transactions follow the end that the scan found.
    pub(super) fn broken_off(&self) -> LogError {
        let what = FormatError::Damaged { what: "the transactions before one that was ordered behind them" };
        self.heap.corrupt(self.tail.block, self.tail.offset, what)
    }

    /// Reads the transaction with this number at a place after the end. Returns `None` if no such transaction begins there.
    pub(super) fn transaction_at(
        &mut self,
        at: Position,
        sequence: u32,
    ) -> Result<Option<FoundTransaction>, LogError> {
        let expected = Expected { frames: u32::MAX - 1, ..self.expected(sequence) };
        scan::next_transaction(&mut self.heap, &BlockList::default(), at, expected, &mut self.record)
    }

    /// Finds marks of later transactions near the end, and at the beginning of blocks that are in no list. Returns the
    /// places of these marks.
    fn marks_near_end(&mut self) -> Result<Vec<(u32, Position)>, LogError> {
        let (generation, mut found) = (self.in_force.slot.generation, Vec::new());
        let (mut block, mut from, mut left) = (self.tail.block, self.tail.offset, LOOK_BYTES);
        let expected = self.expected(self.sequence + 1);
        let (heap, scratch) = (&mut self.heap, &mut self.record);
        if let Some(Position { block, offset }) =
            scan::behind_unmarked(heap, &self.blocks, self.tail, &expected, scratch)
        {
            self.marks_in(block, (offset, offset + 8), &mut found);
        }
        let near = self.blocks_behind_tail()?;
        for next in near.as_slice().iter().map(Some).chain([None]) {
            let until = self.heap.block_bytes().min(from.saturating_add(left));
            self.marks_in(block, (from, until), &mut found);
            left = left.saturating_sub(until.saturating_sub(from));
            let Some(next) = next.filter(|_| left > 0) else { break };
            (block, from) = (*next, BLOCK_HEADER_BYTES);
        }
        // Also check blocks in no list, because the link to a block may be lost.
        for block in self.heap.taken() {
            if !self.blocks.contains(block)
                && !near.contains(block)
                && self.heap.check_block(block, generation).is_ok()
            {
                self.marks_in(block, (BLOCK_HEADER_BYTES, BLOCK_HEADER_BYTES + 8), &mut found);
            }
        }
        Ok(found)
    }

    /// Searches a part of a block for marks of transactions later than the last one applied. Adds the places of these marks to
    /// `found`.
    pub(super) fn marks_in(&self, block: u32, (from, until): (u32, u32), found: &mut Vec<(u32, Position)>) {
        let generation = self.in_force.slot.generation;
        // Within one generation, a mark XOR the mark of number 0 has the transaction's number in its lower half.
        let base = encode_mark(Order::Ordered, generation, 0);
        let last = self.heap.block_bytes() - TX_HEADER_BYTES;
        for offset in (from..until.min(last + 1)).step_by(8) {
            let word = self.heap.nvm.load_u64(self.heap.at(block, offset));
            let sequence = (word ^ base) as u32;
            if word != 0 && sequence > self.sequence && decode_mark(word, generation, sequence).is_some() {
                found.push((sequence, Position { block, offset }));
            }
        }
    }
}
