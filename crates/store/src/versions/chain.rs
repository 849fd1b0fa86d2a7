//! What one row was before each transaction that has changed it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::fate::Fate;
use super::moments::Moments;

/// Bytes that a version takes besides its row, about.
const VERSION_BYTES: u64 = 256;

/// What a row was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// There was none.
    Absent,
    /// The cell. What it leads to is there as long as this says so.
    Cell(Arc<[u8]>),
    /// The value, of which the pages were given back.
    Copied(Arc<Vec<u8>>),
    /// It cannot be read any more.
    Damaged,
}

impl Image {
    pub(super) fn of(cell: Option<&[u8]>) -> Self {
        cell.map_or(Self::Absent, |cell| Self::Cell(cell.into()))
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Absent | Self::Damaged => 0,
            Self::Cell(cell) => cell.len() as u64,
            Self::Copied(value) => value.len() as u64,
        }
    }
}

/// What a row was before a transaction first changed it.
#[derive(Debug)]
struct Version {
    fate: Arc<Fate>,
    /// How many steps the transaction had taken before that one.
    step: usize,
    image: Image,
    /// The moment of the oldest snapshot that needs it, once the transaction has ended; 0 before.
    kept_for: u64,
}

impl Version {
    fn bytes(&self) -> u64 {
        VERSION_BYTES + self.image.bytes()
    }
}

/// The versions of a row, oldest first. Whoever changes a row has it locked until its end: so they ended in this order, and only
/// the last one may not have.
#[derive(Debug, Default)]
pub(super) struct Chain(SmallVec<[Version; 1]>);

impl Chain {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the row was for a snapshot, if that is not what it is.
    pub(super) fn at(&self, moment: u64) -> Option<&Image> {
        self.0.iter().find(|version| version.fate.moment() > moment).map(|version| &version.image)
    }

    /// Notes what the row was before a step. Of each transaction only the first counts, whenever it is noted. By how many
    /// bytes it has grown and shrunk.
    pub(super) fn note(
        &mut self,
        fate: &Arc<Fate>,
        step: usize,
        image: impl FnOnce() -> Image,
    ) -> (u64, u64) {
        match self.0.last_mut() {
            Some(own) if Arc::ptr_eq(&own.fate, fate) => {
                if own.step <= step {
                    return (0, 0);
                }
                let before = own.bytes();
                (own.step, own.image) = (step, image());
                (own.bytes(), before)
            }
            _ => {
                let version = Version { fate: Arc::clone(fate), step, image: image(), kept_for: 0 };
                let bytes = version.bytes();
                self.0.push(version);
                (bytes, 0)
            }
        }
    }

    /// Whether some version is this cell.
    pub(super) fn has(&self, cell: &[u8]) -> bool {
        self.0.iter().any(|version| version.image.is_cell(cell))
    }

    /// Puts something in the place of a cell, in every version; by how many bytes it has grown and shrunk.
    pub(super) fn replace(&mut self, cell: &[u8], by: &Image) -> (u64, u64) {
        let (mut grown, mut shrunk) = (0, 0);
        for version in self.0.iter_mut().filter(|version| version.image.is_cell(cell)) {
            shrunk += version.bytes();
            version.image = by.clone();
            grown += version.bytes();
        }
        (grown, shrunk)
    }

    /// Gives up what no snapshot needs of transactions that have ended; how many bytes that was. Of what stays `keep` is told
    /// for which snapshot, the oldest one that needs it, if it was not told so before or that one is not open any more.
    pub(super) fn prune<R>(&mut self, moments: &mut Moments<R>, keep: impl Fn(&mut Moments<R>, u64)) -> u64 {
        let (mut from, mut freed) = (0, 0);
        self.0.retain(|version| {
            if version.fate.is_pending() {
                return true;
            }
            let until = version.fate.moment();
            let oldest = moments.oldest(std::mem::replace(&mut from, until), until);
            match oldest {
                Some(oldest) if oldest != version.kept_for => {
                    version.kept_for = oldest;
                    keep(moments, oldest);
                }
                Some(_) => {}
                None => freed += version.bytes(),
            }
            oldest.is_some()
        });
        freed
    }
}

impl Image {
    fn is_cell(&self, cell: &[u8]) -> bool {
        matches!(self, Self::Cell(own) if **own == *cell)
    }
}
