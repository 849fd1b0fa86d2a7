//! Reads transactions from the medium. This decoder serves recovery, processes that follow others, `duralite verify` and
//! fuzzing.
//!
//! The decoder accepts any bytes and never panics (invariant 12). It accepts exactly the transactions that the table
//! "valid if and only if" in `docs/format/nvwal.md` allows. So recovery yields a prefix of the commit order (invariant
//! 7) and distinguishes garbage from the end of the log (invariant 8).

use duralite_format::nvwal::{
    BLOCK_HEADER_BYTES, Order, RECORD_HEADER_BYTES, RecordHeader, TX_HEADER_BYTES, TxHash, TxHeader,
    decode_mark,
};
use duralite_format::{FormatError, LogId};

use crate::LogError;
use crate::shared::delta_chains::FoundRecord;
use crate::shared::heap::{BlockList, Heap};

/// A place in the list of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) block: u32,
    pub(crate) offset: u32,
}

impl Position {
    /// Returns the beginning of a block's body.
    pub(crate) fn start_of(block: u32) -> Self {
        Self { block, offset: BLOCK_HEADER_BYTES }
    }
}

/// The offset in a block at which records continue if their transaction began in an earlier block. No record uses the
/// word before this offset. A scanner looks for a commit mark in that word, and must not take a part of a record for a
/// mark.
pub(crate) const CONTINUED_AT: u32 = BLOCK_HEADER_BYTES + 8;

/// A committed transaction.
#[derive(Debug)]
pub(crate) struct FoundTransaction {
    pub(crate) header: TxHeader,
    /// Frame number of the first record.
    pub(crate) first_frame: u32,
    pub(crate) order: Order,
    pub(crate) start: Position,
    pub(crate) end: Position,
    pub(crate) records: Vec<FoundRecord>,
    /// Blocks that the scan entered to read the transaction, in order. The transaction may begin in the first of them.
    pub(crate) blocks: BlockList,
}

impl FoundTransaction {
    /// Adds the ranges of bytes that the transaction and its terminator occupy, block by block.
    pub(crate) fn extents(&self, heap: &Heap, extents: &mut Vec<(u64, u64)>) {
        let mut from = self.start;
        for &block in self.blocks.as_slice().iter().filter(|block| **block != self.start.block) {
            extents.push((heap.at(from.block, from.offset), heap.at(from.block, heap.block_bytes())));
            from = Position { block, offset: BLOCK_HEADER_BYTES };
        }
        let end = (self.end.offset + 8).min(heap.block_bytes());
        extents.push((heap.at(from.block, from.offset), heap.at(from.block, end)));
    }
}

/// The properties by which a scan identifies the transaction that it looks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// The log.
    pub(crate) id: LogId,
    pub(crate) generation: u64,
    /// Number of the transaction in the generation, from 1.
    pub(crate) sequence: u32,
    /// The order of the transaction before this one. It decides whether garbage in the place of this transaction's mark
    /// is damage or the end of the log.
    pub(crate) after: Order,
    /// Number of frames before the transaction.
    pub(crate) frames: u32,
}

/// Reads the next transaction from `tail` on, record by record, into `scratch`. Returns `None` if no transaction is
/// committed there.
///
/// # Errors
/// `Corrupt` if no crash can have left these bytes.
pub(crate) fn next_transaction(
    heap: &mut Heap,
    before: &BlockList,
    tail: Position,
    expected: Expected,
    scratch: &mut Vec<u8>,
) -> Result<Option<FoundTransaction>, LogError> {
    let mut blocks = BlockList::default();
    let mut start = tail;
    if heap.block_bytes() - tail.offset < TX_HEADER_BYTES {
        let Some(next) = heap.next(tail.block, expected.generation)? else { return Ok(None) };
        enter(heap, before, &mut blocks, tail.block, next)?;
        start = Position::start_of(next);
    }
    let word = heap.nvm.load_u64(heap.at(start.block, start.offset));
    if word == 0 {
        return Ok(None);
    }
    let Some(order) = decode_mark(word, expected.generation, expected.sequence) else {
        return garbage(heap, start, expected.after, "the word behind the last transaction");
    };
    let mut reader = RecordReader {
        heap,
        before,
        generation: expected.generation,
        position: Position { block: start.block, offset: start.offset + TX_HEADER_BYTES },
        blocks,
    };
    let body = reader.read_body(start, &expected, scratch);
    let (position, blocks) = (reader.position, reader.blocks);
    match body {
        Ok((header, records)) => {
            let first_frame = records.first().map_or(0, |record| record.header.frame);
            Ok(Some(FoundTransaction { header, first_frame, order, start, end: position, records, blocks }))
        }
        Err(LogError::Corrupt { .. }) if order != Order::Ordered => Ok(None),
        Err(error) => Err(error),
    }
}

/// If the transaction at `tail` is complete except for its mark, returns the position after it.
pub(crate) fn behind_unmarked(
    heap: &mut Heap,
    before: &BlockList,
    tail: Position,
    expected: &Expected,
    scratch: &mut Vec<u8>,
) -> Option<Position> {
    if heap.block_bytes() - tail.offset < TX_HEADER_BYTES {
        return None;
    }
    let position = Position { block: tail.block, offset: tail.offset + TX_HEADER_BYTES };
    let (generation, blocks) = (expected.generation, BlockList::default());
    let mut reader = RecordReader { heap, before, generation, position, blocks };
    reader.read_body(tail, expected, scratch).ok().map(|_| reader.position)
}

fn garbage<T>(heap: &Heap, at: Position, after: Order, what: &'static str) -> Result<Option<T>, LogError> {
    match after {
        Order::Ordered => Err(heap.corrupt(at.block, at.offset, FormatError::Damaged { what })),
        Order::Fenced | Order::Async => Ok(None),
    }
}

/// Follows the link from a block to the next block.
///
/// # Errors
/// `Corrupt` if the next block is in the list already, because no crash links a block twice.
fn enter(
    heap: &Heap,
    before: &BlockList,
    blocks: &mut BlockList,
    from: u32,
    next: u32,
) -> Result<(), LogError> {
    if before.contains(next) || !blocks.push(next) {
        return Err(heap.corrupt(from, 0, FormatError::Damaged { what: "a link between log blocks" }));
    }
    Ok(())
}

/// Returns whether a transaction whose first frame is `first_frame` can have this header.
fn fits(header: &TxHeader, first_frame: u32, expected: &Expected) -> bool {
    (1..=expected.frames + 1).contains(&first_frame)
        && header.last_frame >= first_frame
        && header.records > header.last_frame - first_frame
        && header.db_pages > 0
}

struct RecordReader<'a> {
    heap: &'a mut Heap,
    /// The blocks of the earlier transactions.
    before: &'a BlockList,
    generation: u64,
    position: Position,
    blocks: BlockList,
}

impl RecordReader<'_> {
    fn read_body(
        &mut self,
        start: Position,
        expected: &Expected,
        scratch: &mut Vec<u8>,
    ) -> Result<(TxHeader, Vec<FoundRecord>), LogError> {
        let damaged = |heap: &Heap| {
            heap.corrupt(start.block, start.offset, FormatError::Damaged { what: "a transaction" })
        };
        let mut bytes = [0; TX_HEADER_BYTES as usize];
        self.heap.nvm.read(self.heap.at(start.block, start.offset), &mut bytes);
        let header = TxHeader::decode(&bytes);
        if header.records == 0 {
            return Err(damaged(self.heap));
        }
        let mut hash = TxHash::new(expected.id, expected.generation, expected.sequence);
        let (mut first_frame, mut records) = (0, Vec::new());
        for _ in 0..header.records {
            let record = self.read_record(scratch)?;
            let (head, payload) = scratch.split_at(RECORD_HEADER_BYTES as usize);
            hash = hash.record(head, payload);
            let frame = record.header.frame;
            if records.is_empty() {
                first_frame = frame;
                if !fits(&header, first_frame, expected) {
                    return Err(damaged(self.heap));
                }
            }
            if frame < first_frame || u64::from(frame) > u64::from(first_frame) + records.len() as u64 {
                return Err(damaged(self.heap));
            }
            records.push(record);
        }
        if header.seal_hash(hash) != header.hash {
            return Err(damaged(self.heap));
        }
        Ok((header, records))
    }

    /// Reads the next record whole into `scratch`.
    fn read_record(&mut self, scratch: &mut Vec<u8>) -> Result<FoundRecord, LogError> {
        let block_bytes = self.heap.block_bytes();
        let mut bytes = [0; RECORD_HEADER_BYTES as usize];
        loop {
            let Position { block, offset } = self.position;
            let at = self.heap.at(block, offset);
            if block_bytes - offset >= RECORD_HEADER_BYTES {
                self.heap.nvm.read(at, &mut bytes);
                if bytes[..4] != [0; 4] {
                    break;
                }
            }
            self.follow_link()?;
        }
        let Position { block, offset } = self.position;
        let header = RecordHeader::decode(&bytes).map_err(|what| self.heap.corrupt(block, offset, what))?;
        if header.record_bytes > block_bytes - offset {
            return Err(self.heap.corrupt(block, offset, FormatError::Damaged { what: "a log record" }));
        }
        let at = self.heap.at(block, offset);
        scratch.resize(header.record_bytes as usize, 0);
        self.heap.nvm.read(at, scratch);
        self.position.offset = (offset + header.record_bytes).next_multiple_of(8).min(block_bytes);
        Ok(FoundRecord { at, header })
    }

    fn follow_link(&mut self) -> Result<(), LogError> {
        let block = self.position.block;
        let what = FormatError::Damaged { what: "a link between log blocks" };
        let next = self.heap.next(block, self.generation)?;
        let next = next.ok_or_else(|| self.heap.corrupt(block, 0, what))?;
        enter(self.heap, self.before, &mut self.blocks, block, next)?;
        self.position = Position { block: next, offset: CONTINUED_AT };
        Ok(())
    }
}
