//! Stores a transaction and makes it durable (NVWAL, algorithm 1 and figure 4), and starts the log over (section 4.3).

use duralite_format::Origin;
use duralite_format::nvwal::{
    NO_BLOCK, Order, RECORD_HEADER_BYTES, RecordHeader, Slot, TX_HEADER_BYTES, TxHash, TxHeader, active_word,
    encode_mark,
};
use duralite_format::sqlite_wal::{WAL_HEADER_BYTES, WalHeader};

use super::scan::{CONTINUED_AT, Position};
use super::{HeapMode, Nvwal, OpenTransaction, SyncMode, apply_from};
use crate::LogError;
use crate::engine::Commit;
use crate::engine::prelude::*;
use crate::shared::delta_chains::{Committed, encode_whole_record};
use crate::shared::generations::InForce;
use crate::shared::log_memory::flush_all;

impl Nvwal {
    /// Stores one record after those of the open transaction. Returns the record's offset in the medium.
    pub(super) fn append(&mut self, header: &RecordHeader, payload: &[u8]) -> Result<u64, LogError> {
        let mut open = match self.writer.open.take() {
            Some(open) => open,
            None => self.begin_transaction()?,
        };
        let result = self.append_to(&mut open, header, payload);
        self.writer.open = Some(open);
        result
    }

    fn append_to(
        &mut self,
        open: &mut OpenTransaction,
        header: &RecordHeader,
        payload: &[u8],
    ) -> Result<u64, LogError> {
        let room = self.heap.block_bytes() - open.end.offset;
        // Without the user-level heap, each record takes a block of its own from the system (figure 7).
        let at_start = open.end.offset == Position::start_of(open.end.block).offset + TX_HEADER_BYTES;
        let own_block = self.options.heap == HeapMode::System && !(at_start && open.records == 0);
        if header.record_bytes > room || own_block {
            self.continue_in_new_block(open, room)?;
        }
        let at = self.heap.at(open.end.block, open.end.offset);
        let head = header.encode();
        self.heap.nvm.store(at, &head);
        self.heap.nvm.store(at + u64::from(RECORD_HEADER_BYTES), payload);
        open.hash = open.hash.record(&head, payload);
        open.records += 1;
        open.end.offset =
            (open.end.offset + header.record_bytes).next_multiple_of(8).min(self.heap.block_bytes());
        let end = self.heap.at(open.end.block, open.end.offset);
        if self.options.sync == SyncMode::Eager {
            self.heap.nvm.flush(at, u64::from(header.record_bytes));
            self.heap.nvm.fence();
        } else {
            open.touch(at, end);
        }
        Ok(at)
    }

    /// Reserves a transaction header at the tail.
    fn begin_transaction(&mut self) -> Result<OpenTransaction, LogError> {
        self.cut_behind_tail()?;
        let mut blocks = Vec::new();
        let mut start = self.tail;
        let full = self.heap.block_bytes() - start.offset < TX_HEADER_BYTES;
        if full {
            let block = self.link_new_block(start.block)?;
            blocks.push(block);
            start = Position::start_of(block);
        }
        let end = Position { block: start.block, offset: start.offset + TX_HEADER_BYTES };
        let at = self.heap.at(start.block, start.offset);
        let mut dirty = std::mem::take(&mut self.writer.spare);
        dirty.clear();
        dirty.push((at, at + u64::from(TX_HEADER_BYTES)));
        if self.heap.nvm.load_u64(at) != 0 {
            // With the orders `Fenced` and `Async`, a crash may have left a torn transaction here instead of the terminator.
            self.heap.nvm.store_u64(at, 0);
        }
        Ok(OpenTransaction {
            start,
            end,
            hash: TxHash::new(self.log_id(), self.in_force.slot.generation, self.sequence + 1),
            records: 0,
            blocks,
            dirty,
        })
    }

    fn continue_in_new_block(&mut self, open: &mut OpenTransaction, room: u32) -> Result<(), LogError> {
        let block = self.link_new_block(open.end.block)?;
        if room >= RECORD_HEADER_BYTES {
            let at = self.heap.at(open.end.block, open.end.offset);
            self.heap.nvm.store(at, &[0; 8]);
            open.touch(at, at + 8);
        }
        open.blocks.push(block);
        open.end = Position { block, offset: CONTINUED_AT };
        Ok(())
    }

    fn link_new_block(&mut self, from: u32) -> Result<u32, LogError> {
        // If the last switch of generation is not durable yet, a crash brings back the old generation, which may use
        // the block that is allocated here. So make the switch durable first.
        self.settle_doubtful();
        let block = self.heap.allocate(self.in_force.slot.generation)?;
        self.heap.link(from, self.in_force.slot.generation, block);
        Ok(block)
    }

    /// Unlinks and frees the blocks after the tail, which a transaction that was never sealed has left.
    pub(super) fn cut_behind_tail(&mut self) -> Result<(), LogError> {
        if self.in_force.wal_header.is_none() {
            return Ok(());
        }
        let stale = self.blocks_behind_tail()?;
        if !stale.is_empty() {
            self.heap.unlink_after(self.tail.block);
            self.heap.free(stale.as_slice());
        }
        Ok(())
    }

    /// Makes durable what another process stored last and may not have flushed.
    pub(super) fn settle_doubtful(&mut self) {
        if !self.doubtful.is_empty() {
            flush_all(self.heap.nvm.as_ref(), &self.doubtful);
            self.heap.nvm.fence();
            self.doubtful.clear();
        }
    }

    /// Commits the staged frames (algorithm 1, lines 21 to 36).
    pub(super) fn seal_staged(&mut self, commit: &Commit) -> Result<(), LogError> {
        let (first, count) = self.chains.staged_frames();
        let covers = commit.first_frame == first && (first..first + count).contains(&commit.last_frame);
        let Some(mut open) = self.writer.open.take().filter(|_| covers) else {
            return Err(LogError::Unexpected("a commit of frames that are not staged"));
        };
        let sequence = self.sequence + 1;
        let order = self.options.sync.order();
        let elapsed_ms = self.sealed_at.until((self.clock)());
        self.store_header_and_terminator(&mut open, commit, elapsed_ms);
        let mark = encode_mark(order, self.in_force.slot.generation, sequence);
        let mark_at = self.heap.at(open.start.block, open.start.offset);
        match order {
            Order::Ordered => {
                open.dirty.append(&mut self.doubtful);
                open.dirty.append(&mut self.unforced);
                let nvm = self.heap.nvm.as_ref();
                flush_all(nvm, &open.dirty);
                nvm.fence();
                nvm.store_u64(mark_at, mark);
                nvm.flush(mark_at, 8);
            }
            Order::Fenced => {
                // `Async` commits may not be durable yet. The order of this transaction promises that everything before it is
                // durable, so flush them first.
                self.force()?;
                let nvm = self.heap.nvm.as_ref();
                nvm.store_u64(mark_at, mark);
                flush_all(nvm, &open.dirty);
            }
            Order::Async => {
                self.settle_doubtful();
                let nvm = self.heap.nvm.as_ref();
                nvm.store_u64(mark_at, mark);
                nvm.flush(mark_at, 8);
                self.unforced.append(&mut open.dirty);
            }
        }
        self.heap.nvm.fence();
        self.sealed_at.advance(elapsed_ms);
        self.chains.commit(&Committed {
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            checksum: Some(commit.checksum),
            sequence,
            time_ms: self.sealed_at.told(),
        });
        self.blocks.extend(&open.blocks);
        self.writer.spare = open.dirty;
        self.tail = open.end;
        self.sequence = sequence;
        self.last_order = order;
        self.activity.commits += 1;
        self.activity.frames += u64::from(commit.last_frame + 1 - commit.first_frame);
        Ok(())
    }

    /// Stores the header except its mark, and the zero word that ends the log (invariant 8).
    fn store_header_and_terminator(&self, open: &mut OpenTransaction, commit: &Commit, elapsed_ms: u32) {
        let mut header = TxHeader {
            hash: 0,
            elapsed_ms,
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            records: open.records,
            wal_checksum: commit.checksum,
        };
        header.hash = header.seal_hash(open.hash);
        let at = self.heap.at(open.start.block, open.start.offset);
        self.heap.nvm.store(at + 8, &header.encode(0)[8..]);
        if self.heap.block_bytes() - open.end.offset >= TX_HEADER_BYTES {
            let end = self.heap.at(open.end.block, open.end.offset);
            self.heap.nvm.store_u64(end, 0);
            open.touch(end, end + 8);
        }
    }

    /// Begins a new generation with this WAL header. Without a header, makes the log empty.
    pub(super) fn start_over(&mut self, header: Option<&WalHeader>) -> Result<(), LogError> {
        // Other processes may have begun several generations since this process last looked.
        self.refresh()?;
        let Some(header) = header else {
            return self.switch_generation(None, NO_BLOCK, false);
        };
        if header.page_bytes != self.superblock.head.page_bytes {
            return Err(LogError::Unexpected("a WAL header with another page size than the log's"));
        }
        // Make the last switch durable first, for the reason given in `link_new_block`.
        self.settle_doubtful();
        let first = match self.heap.allocate(self.in_force.slot.generation + 1) {
            Ok(block) => block,
            Err(_) if !self.blocks.is_empty() => {
                // The old generation has all blocks in use, but its contents are no longer needed. End it, which frees
                // its blocks.
                self.switch_generation(None, NO_BLOCK, false)?;
                self.heap.allocate(self.in_force.slot.generation + 1)?
            }
            Err(error) => return Err(error),
        };
        self.switch_generation(Some(header), first, false)
    }

    pub(super) fn switch_generation(
        &mut self,
        header: Option<&WalHeader>,
        first_block: u32,
        retired: bool,
    ) -> Result<(), LogError> {
        let generation = self.in_force.slot.generation + 1;
        self.drop_staged();
        // There are two slots, and the new generation overwrites the older one. If the last switch is not durable yet,
        // a crash brings back the older generation, which needs its slot. So make that switch durable first.
        self.settle_doubtful();
        let wal_header = header.map_or([0; WAL_HEADER_BYTES], |header| header.bytes);
        let slot = Slot { generation, first_block, wal_header, retired };
        let origin = Origin { generation, position: self.position(), time_ms: (self.clock)() };
        let found = InForce { active: active_word(generation), slot, origin, wal_header: header.copied() };
        found.store(self.heap.nvm.as_ref(), self.log_id());
        let old = std::mem::take(&mut self.blocks);
        self.enter_generation(found);
        self.heap.free(old.as_slice());
        // This also frees the blocks that dead processes left pending or unlinked.
        self.heap.reconcile(&self.blocks);
        self.activity.generations += 1;
        Ok(())
    }

    /// Computes the record for a page, appends it, and updates the page's cached image.
    pub(super) fn stage_record(
        &mut self,
        frame: u32,
        page_number: u32,
        page: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<(), LogError> {
        let header = if self.options.diff {
            let mut apply = apply_from(self.heap.nvm.as_ref(), &mut self.record);
            self.chains.encode_record(frame, page_number, page, payload, &mut apply)?
        } else {
            encode_whole_record(frame, page_number, page, payload)
        };
        let at = self.append(&header, payload)?;
        self.activity.records += 1;
        self.chains.stored(at, &header, payload, page)
    }
}
