//! Layouts of the `nvwal` log. The constants follow `docs/format/nvwal.md`.

use crate::FormatError;
use crate::bytes::{put, u32_le, u64_le};
use crate::generation::above;
pub use crate::generation::{
    ACTIVE_OFFSET, NO_BLOCK, SLOT_BYTES, Slot, active_word, origin_offset, read_active_word, slot_offset,
};
use crate::head::{self, Format, HEAD_BYTES, LogHead};
pub use crate::heap::*;
pub use crate::record::*;

/// The first bytes of a log file.
pub const MAGIC: [u8; 8] = *b"DURALNVW";
/// The format version.
pub const VERSION: u32 = 5;
/// Size of the superblock in bytes. The block-state table is padded to a multiple of this size.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// The offset of the block-state table.
pub const STATES_OFFSET: u64 = SUPERBLOCK_BYTES;
/// The offset of the superblock's `blocks_grown` word.
pub const GROWN_OFFSET: u64 = 1344;
const FORMAT: Format =
    Format { name: "nvwal", magic: MAGIC, version: VERSION, superblock_bytes: SUPERBLOCK_BYTES };

/// The write-once part of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The fields that tie the log to its database.
    pub head: LogHead,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// The largest number of blocks that the log may have.
    pub limit_blocks: u32,
    /// Offset of block 0.
    pub blocks_offset: u64,
}

impl Superblock {
    /// Returns the offset of block 0 if the table has `limit_blocks` states.
    #[must_use]
    pub fn blocks_offset_for(limit_blocks: u32) -> u64 {
        STATES_OFFSET + u64::from(limit_blocks).next_multiple_of(SUPERBLOCK_BYTES)
    }

    /// Returns the bytes to store at offset 0.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        put(&mut out, 48, &self.block_bytes.to_le_bytes());
        put(&mut out, 52, &self.limit_blocks.to_le_bytes());
        put(&mut out, 56, &self.blocks_offset.to_le_bytes());
        self.head.put(&mut out, &FORMAT);
        out
    }

    /// Reads a superblock from the first bytes of a file.
    ///
    /// # Errors
    /// `Magic`, `Short`, `LogVersion` or `Damaged`, in this order of precedence.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let head = LogHead::read(bytes, &FORMAT)?;
        let it = Self {
            head,
            block_bytes: u32_le(bytes, 48),
            limit_blocks: u32_le(bytes, 52),
            blocks_offset: u64_le(bytes, 56),
        };
        if it.is_consistent() { Ok(it) } else { Err(head::damaged()) }
    }

    fn is_consistent(&self) -> bool {
        block_size_is_valid(self.block_bytes, self.head.page_bytes)
            && (1..NO_BLOCK).contains(&self.limit_blocks)
            && self.blocks_offset == Self::blocks_offset_for(self.limit_blocks)
    }

    /// Returns the offset of a block.
    #[must_use]
    pub fn block_offset(&self, block: u32) -> u64 {
        self.blocks_offset + u64::from(block) * u64::from(self.block_bytes)
    }

    /// Returns the size of the file with this many blocks.
    #[must_use]
    pub fn file_bytes(&self, blocks: u32) -> u64 {
        self.block_offset(blocks)
    }
}

/// Returns whether a block of this size holds at least one whole page with all headers.
#[must_use]
pub fn block_size_is_valid(block_bytes: u32, page_bytes: u32) -> bool {
    block_bytes.is_multiple_of(4096) && block_bytes >= page_bytes + 4096 && block_bytes <= 1 << 28
}

/// What was certainly durable when the commit mark of a transaction became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Everything except the mark was durable before the writer stored the mark.
    Ordered,
    /// One fence made both the mark and everything before it durable, in any order.
    Fenced,
    /// The writer flushed only the cache line of the mark (NVWAL, section 4.2).
    Async,
}

/// Returns the commit mark of the transaction with this sequence number (from 1) in a generation.
#[must_use]
pub fn encode_mark(order: Order, generation: u64, sequence: u32) -> u64 {
    let order = match order {
        Order::Ordered => 1,
        Order::Fenced => 2,
        Order::Async => 3,
    };
    let low = (generation & !(u64::MAX << MARK_GENERATION_BITS)) << 32 | u64::from(sequence);
    order << 62 | (low ^ above(generation, MARK_GENERATION_BITS) >> 2)
}

/// Reads the `Order` from a mark; `None` if the word is not the mark of this transaction.
#[must_use]
pub fn decode_mark(word: u64, generation: u64, sequence: u32) -> Option<Order> {
    let order = match word >> 62 {
        1 => Order::Ordered,
        2 => Order::Fenced,
        3 => Order::Async,
        _ => return None,
    };
    (word == encode_mark(order, generation, sequence)).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogId;

    fn superblock() -> Superblock {
        Superblock {
            head: LogHead {
                page_bytes: 4096,
                log_id: LogId([3; 16]),
                db_inode: 12,
                db_birth_ns: 34,
                path: b"/data/app.db".to_vec(),
                made_in: None,
            },
            block_bytes: 65536,
            limit_blocks: 5000,
            blocks_offset: Superblock::blocks_offset_for(5000),
        }
    }

    fn padded(bytes: &[u8]) -> Vec<u8> {
        let mut page = bytes.to_vec();
        page.resize(SUPERBLOCK_BYTES as usize, 0);
        page
    }

    #[test]
    fn superblock_round_trips() {
        assert_eq!(Superblock::decode(&padded(&superblock().encode())), Ok(superblock()));
        assert_eq!(superblock().block_offset(1), 4096 + 8192 + 65536);
    }

    #[test]
    fn every_flipped_bit_of_the_superblock_is_refused() {
        let good = padded(&superblock().encode());
        for at in 0..crate::head::CHECKED_BYTES + 8 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(Superblock::decode(&bad).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn superblock_of_another_kind_is_named() {
        assert_eq!(Superblock::decode(&[0; 4096]), Err(FormatError::Magic));
        assert!(matches!(Superblock::decode(&superblock().encode()), Err(FormatError::Short { .. })));
        for found in [1, 3, 4, 6] {
            let mut other = padded(&superblock().encode());
            other[8] = found;
            let found = u32::from(found);
            let refused = FormatError::LogVersion { format: "nvwal", found, reads: VERSION };
            assert_eq!(Superblock::decode(&other), Err(refused));
        }
    }

    #[test]
    fn fields_stand_where_the_format_document_says() {
        let bytes = superblock().encode();
        assert_eq!(bytes.len(), 1120);
        assert_eq!(&bytes[..8], b"DURALNVW");
        assert_eq!((bytes[32], bytes[40], &bytes[66..78]), (12, 34, &b"/data/app.db"[..]));
        assert_eq!((slot_offset(2), slot_offset(5)), (1216, 1280));
        assert!(slot_offset(1) + SLOT_BYTES as u64 <= GROWN_OFFSET);
        assert_eq!(encode_mark(Order::Ordered, 1, 1), 0x4000_0001_0000_0001);
    }

    #[test]
    fn slot_round_trips_and_belongs_to_its_log_and_generation() {
        let slot = Slot { generation: 9, first_block: 4, wal_header: [8; 32], retired: false };
        let bytes = slot.encode(LogId([1; 16]));
        assert_eq!(Slot::decode(&bytes, LogId([1; 16]), 9), Ok(slot));
        assert!(Slot::decode(&bytes, LogId([2; 16]), 9).is_err());
        assert!(Slot::decode(&bytes, LogId([1; 16]), 7).is_err());
        for at in 0..SLOT_BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(Slot::decode(&bad, LogId([1; 16]), 9).is_err(), "byte {at}");
        }
    }

    #[test]
    fn no_generation_passes_for_another_however_high() {
        let id = LogId([1; 16]);
        let generations = [1, 2, 1 << 30, (1 << 30) + 1, 1 << 32, (1 << 32) + 1, (1 << 59) + 1];
        for written in generations {
            let word = active_word(written);
            assert_eq!(read_active_word(word), written);
            for bit in 0..64 {
                let read = read_active_word(word ^ 1 << bit);
                assert!(read != written && read.abs_diff(written) > 1, "{written}, bit {bit}");
            }
            let slot = Slot { generation: written, first_block: 4, wal_header: [8; 32], retired: false };
            for read in generations {
                let same = read == written;
                assert_eq!(Slot::decode(&slot.encode(id), id, read).is_ok(), same);
                let mark = encode_mark(Order::Fenced, written, 7);
                assert_eq!(decode_mark(mark, read, 7).is_some(), same, "{written} {read}");
                assert_eq!(TxHash::new(id, written, 7) == TxHash::new(id, read, 7), same);
            }
        }
    }

    #[test]
    fn words_reject_every_flipped_bit() {
        let word = checked_word(77);
        assert_eq!(read_checked_word(word, "x"), Ok(77));
        let mark = encode_mark(Order::Fenced, 5, 6);
        let link = encode_link(5, 6);
        assert_eq!(decode_mark(mark, 5, 6), Some(Order::Fenced));
        assert_eq!(decode_link(link, 5, 7), Ok(Some(6)));
        assert_eq!(decode_link(0, 5, 7), Ok(None));
        assert!(decode_link(link, 5, 6).is_err());
        for bit in 0..64 {
            assert!(read_checked_word(word ^ 1 << bit, "x").is_err(), "bit {bit}");
            if bit < 62 {
                assert_eq!(decode_mark(mark ^ 1 << bit, 5, 6), None, "bit {bit}");
            }
            assert_ne!(decode_link(link ^ 1 << bit, 5, 7), Ok(None), "bit {bit}");
        }
    }

    #[test]
    fn transaction_and_record_headers_round_trip() {
        let header =
            TxHeader { hash: 1, elapsed_ms: 2, last_frame: 3, db_pages: 4, records: 5, wal_checksum: [6, 7] };
        assert_eq!(TxHeader::decode(&header.encode(9)), header);
        let record =
            RecordHeader { record_bytes: 20, frame: 1, page_number: 2, ranges: 3, base: Base::Zeros };
        assert_eq!(RecordHeader::decode(&record.encode()), Ok(record));
        assert!(RecordHeader::decode(&[0; 16]).is_err());
        assert!(RecordHeader::decode(&[255; 16]).is_err());
    }

    #[test]
    fn hash_depends_on_log_generation_place_and_order_of_records() {
        let id = LogId([1; 16]);
        let base = TxHash::new(id, 1, 1).record(b"a", b"").record(b"b", b"");
        assert_ne!(base, TxHash::new(id, 1, 1).record(b"b", b"").record(b"a", b""));
        assert_ne!(base, TxHash::new(id, 2, 1).record(b"a", b"").record(b"b", b""));
        assert_ne!(base, TxHash::new(id, 1, 2).record(b"a", b"").record(b"b", b""));
        assert_ne!(base, TxHash::new(LogId([2; 16]), 1, 1).record(b"a", b"").record(b"b", b""));
    }
}
