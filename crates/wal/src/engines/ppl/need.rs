//! Counting the extents that a transaction needs, before it stores anything.

use duralite_format::ppl::{EXTENT_HEADER_BYTES, PIECE_BYTES};

/// Bytes of a piece that records can use.
pub(super) const PIECE_ROOM: u32 = PIECE_BYTES - EXTENT_HEADER_BYTES;

/// The extents that storing a record takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) sectors: u64,
    pub(super) pieces: u64,
}

impl Need {
    pub(super) fn add(&mut self, other: Self) {
        self.sectors += other.sectors;
        self.pieces += other.pieces;
    }

    /// The same room from the extents that are free: pieces stand in for missing sectors, and sectors for missing pieces.
    /// `None` if the free extents are not enough.
    pub(super) fn within(self, sectors: u64, pieces: u64, sector_bytes: u32) -> Option<Self> {
        let short = self.sectors.saturating_sub(sectors);
        let in_pieces = u64::from(sector_bytes.div_ceil(PIECE_ROOM));
        let wanted = self.pieces + short * in_pieces;
        let instead = wanted.saturating_sub(pieces);
        let found = Self { sectors: self.sectors - short + instead, pieces: wanted - instead };
        (found.sectors <= sectors).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_and_pieces_stand_in_for_each_other() {
        let need = Need { sectors: 3, pieces: 4 };
        assert_eq!(need.within(3, 4, 4096), Some(need));
        assert_eq!(need.within(2, 9, 4096), Some(Need { sectors: 2, pieces: 9 }));
        assert_eq!(need.within(2, 8, 4096), None);
        assert_eq!(need.within(5, 2, 4096), Some(Need { sectors: 5, pieces: 2 }));
        assert_eq!(need.within(4, 2, 4096), None);
    }
}
