//! A model of a disk. It knows which content is durable, which writes are not synced yet, and which states a
//! power cut may leave.

mod pages;

use std::sync::Arc;

use crate::{SECTOR, pieces};

pub use pages::{PAGE, Page, Pages, ZEROS};

/// One request of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A write.
    Write {
        /// The offset in bytes.
        at: u64,
        /// The data.
        bytes: Arc<[u8]>,
    },
    /// A sync. It makes all earlier writes durable.
    Sync,
}

/// The unit that a disk writes whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// 512 bytes, aligned.
    Sector,
    /// 4096 bytes, aligned.
    Page,
}

impl Piece {
    /// Returns the number of bytes in a piece.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Sector => SECTOR,
            Self::Page => PAGE,
        }
    }
}

/// A piece of a write that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingPiece<'a> {
    /// The number of the write to which this piece belongs, counted from 0 since the last sync.
    pub write: usize,
    /// The offset on the disk, in bytes.
    pub at: u64,
    /// The bytes that the write puts into this piece. They are fewer than `Piece::bytes` if the write
    /// begins or ends in the middle of the piece.
    pub bytes: &'a [u8],
}

/// A disk, rebuilt by replaying the log of its requests.
#[derive(Clone, Debug, Default)]
pub struct DiskModel {
    durable: Pages,
    pending: Vec<(u64, Arc<[u8]>)>,
}

impl DiskModel {
    /// Returns a disk with this content, all of it durable.
    #[must_use]
    pub fn new(durable: Pages) -> Self {
        Self { durable, pending: Vec::new() }
    }

    /// Replays one event.
    pub fn apply(&mut self, event: &DiskEvent) {
        match event {
            DiskEvent::Write { at, bytes } => self.pending.push((*at, Arc::clone(bytes))),
            DiskEvent::Sync => {
                for (at, bytes) in self.pending.drain(..) {
                    self.durable.write(at, &bytes);
                }
            }
        }
    }

    /// Returns the content that the last sync made durable.
    #[must_use]
    pub fn durable(&self) -> &Pages {
        &self.durable
    }

    /// Returns the number of writes that are not durable yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns an image that the disk may hold if the power fails now: the durable content, plus some pieces
    /// of the unsynced writes. The function calls `choose` for each piece, in the order of the writes, and
    /// includes the piece if `choose` returns true. Where chosen pieces overlap, the image shows the latest
    /// one.
    #[must_use]
    pub fn crash_image(&self, piece: Piece, mut choose: impl FnMut(PendingPiece<'_>) -> bool) -> Pages {
        let mut image = self.durable.clone();
        for (write, (start, whole)) in self.pending.iter().enumerate() {
            for (at, len) in pieces(*start, whole.len(), piece.bytes()) {
                let from = (at - start) as usize;
                let bytes = &whole[from..from + len];
                if choose(PendingPiece { write, at, bytes }) {
                    image.write(at, bytes);
                }
            }
        }
        image
    }

    /// Returns an image, in whole pages, that the disk may hold if the power fails now. `nth` selects the
    /// image. Image 0 has no unsynced write, image 1 has all of them, image 2 has only the oldest ones, and
    /// image 3 has all but one. From image 4 on, chance decides for each page of an unsynced write whether
    /// the image has it.
    #[must_use]
    pub fn image_of_pages(&self, nth: u32, random: &mut fastrand::Rng) -> Pages {
        match nth {
            0 => self.crash_image(Piece::Page, |_| false),
            1 => self.crash_image(Piece::Page, |_| true),
            2 => {
                let kept = random.usize(..=self.pending());
                self.crash_image(Piece::Page, |piece| piece.write < kept)
            }
            3 => {
                let lost = random.usize(..self.pending().max(1));
                self.crash_image(Piece::Page, |piece| piece.write != lost)
            }
            _ => self.image_by_chance(Piece::Page, random),
        }
    }

    /// Returns an image in which chance decides for each piece whether it reached the disk.
    #[must_use]
    pub fn image_by_chance(&self, piece: Piece, random: &mut fastrand::Rng) -> Pages {
        let share = random.u8(1..=7);
        self.crash_image(piece, |_| random.u8(..8) < share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, len: usize, with: u8) -> DiskEvent {
        DiskEvent::Write { at, bytes: vec![with; len].into() }
    }

    #[test]
    fn pieces_are_aligned_and_only_syncs_make_durable() {
        let mut model = DiskModel::new(Pages::new(2 * PAGE as u64));
        for event in [write(0, 512, 1), DiskEvent::Sync, write(100, 1000, 2)] {
            model.apply(&event);
        }
        let mut pieces = Vec::new();
        let image = model.crash_image(Piece::Sector, |piece| {
            pieces.push((piece.write, piece.at, piece.bytes.len()));
            piece.at == 512
        });
        assert_eq!(pieces, [(0, 100, 412), (0, 512, 512), (0, 1024, 76)]);
        let mut read = [9; 1200];
        image.read(0, &mut read);
        assert!(read[..512].iter().all(|&byte| byte == 1));
        assert!(read[512..1024].iter().all(|&byte| byte == 2));
        assert!(read[1024..].iter().all(|&byte| byte == 0));
        assert_eq!(model.pending(), 1);
    }

    #[test]
    fn any_of_several_writes_to_one_place_may_be_the_last_to_arrive() {
        let mut model = DiskModel::new(Pages::new(PAGE as u64));
        for event in [write(0, 512, 1), write(0, 512, 2)] {
            model.apply(&event);
        }
        for (chosen, expected) in [(0b00, 0), (0b01, 1), (0b10, 2), (0b11, 2)] {
            let image = model.crash_image(Piece::Page, |piece| chosen >> piece.write & 1 == 1);
            let mut read = [9];
            image.read(0, &mut read);
            assert_eq!(read[0], expected);
        }
    }
}
