//! The version chain of a row. For each transaction whose changes of the row are noted, the chain has the row's content
//! before that transaction's first change.

use std::sync::Arc;

use smallvec::SmallVec;

use super::fate::Fate;
use super::moments::Moments;

/// About how many bytes a version takes in addition to its row.
const VERSION_BYTES: u64 = 256;

/// The content of a row at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// There was no row.
    Absent,
    /// The row's cell. If the cell refers to pages of a long value, the store replaces the cell by `Copied` or
    /// `Damaged` before it frees these pages.
    Cell(Arc<[u8]>),
    /// The row's long value, copied because its pages were freed.
    Copied(Arc<Vec<u8>>),
    /// The row's long value can no longer be read.
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

/// The content of a row before a transaction's first change of it.
#[derive(Debug)]
struct Version {
    fate: Arc<Fate>,
    /// The number of steps that the transaction had made before its first change of the row.
    step: usize,
    image: Image,
    /// The moment of the oldest snapshot that needs this version; 0 until the transaction has ended.
    kept_for: u64,
}

impl Version {
    fn bytes(&self) -> u64 {
        VERSION_BYTES + self.image.bytes()
    }
}

/// The versions of a row, the oldest first. A transaction that changes a row keeps it locked until it ends. So the
/// transactions ended in the order of their versions, and only the last one may still be open.
#[derive(Debug, Default)]
pub(super) struct Chain(SmallVec<[Version; 1]>);

impl Chain {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the content that the row had at a moment; `None` if no change after that moment is noted.
    pub(super) fn at(&self, moment: u64) -> Option<&Image> {
        self.0.iter().find(|version| version.fate.moment() > moment).map(|version| &version.image)
    }

    /// Notes the content of the row before a step. For each transaction, the chain keeps only the content before the
    /// transaction's first change of the row. This holds even if a later change is noted first. Returns by how many
    /// bytes the chain has grown, and by how many it has shrunk.
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

    /// Returns whether any version has this cell as its content.
    pub(super) fn has(&self, cell: &[u8]) -> bool {
        self.0.iter().any(|version| version.image.is_cell(cell))
    }

    /// Replaces a cell by another image in every version. Returns by how many bytes the chain has grown, and by how
    /// many it has shrunk.
    pub(super) fn replace(&mut self, cell: &[u8], by: &Image) -> (u64, u64) {
        let (mut grown, mut shrunk) = (0, 0);
        for version in self.0.iter_mut().filter(|version| version.image.is_cell(cell)) {
            shrunk += version.bytes();
            version.image = by.clone();
            grown += version.bytes();
        }
        (grown, shrunk)
    }

    /// Drops the versions of ended transactions that no snapshot needs. Returns how many bytes this frees. For each
    /// remaining version, determines the moment of the oldest snapshot that needs it. If that moment differs from the
    /// one of the last call, passes it to `keep`.
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
