//! Log objects: each records what one step of a transaction changed, and how to undo it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u32_le, u64_le};

use super::{Change, Lsn, PageId, TxId};

/// The size of an object's header in bytes.
pub const OBJECT_HEADER_BYTES: usize = 48;

const LSN_AT: usize = 8;
const TX_AT: usize = 16;
const PREVIOUS_AT: usize = 24;
const EPOCH_AT: usize = 32;
const BYTES_AT: usize = 36;
const KIND_AT: usize = 40;
const DURABLE_AT: usize = 41;
const UNDO_BYTES_AT: usize = 44;
/// The largest claim that an object can store. An object may claim that all objects below some number are durable. It
/// stores the distance from its own number to that number, plus one. 0 means no claim.
const LARGEST_CLAIM: u64 = (1 << 24) - 1;

const UNDO_ROW: u8 = 1;
const UNDO_PAGE: u8 = 2;
const UNDO_PAGES: u8 = 3;

/// This byte follows the time in the commit of a bulk load whose pages were written home without being logged. The
/// commit makes these pages part of the table.
pub const COMMIT_OF_PAGES_AT_HOME: u8 = 1;

const DAMAGED: FormatError = FormatError::Damaged { what: "a log object" };
const SHORT: FormatError = FormatError::Short { what: "a log object" };

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Changes that recovery or a rollback undoes if their transaction does not commit.
    Update,
    /// Changes that undo an [`Update`](Self::Update): a compensation record. They themselves are never undone.
    Compensation,
    /// Changes that stay whether or not a transaction commits, such as a page split or the freeing of a page.
    System,
    /// The transaction has committed.
    Commit,
    /// The transaction is complete, because it was rolled back, or because all pages that it no longer needs have been
    /// freed.
    End,
    /// The undo of one earlier step of an open transaction, logged again without the step's changes, so that the
    /// earlier object can be discarded.
    Moved,
    /// All steps of a transaction have been logged again as [`Moved`](Self::Moved). The moved steps replace all earlier
    /// ones.
    MovedAll,
}

impl ObjectKind {
    fn from_byte(byte: u8) -> Result<Self, FormatError> {
        Ok(match byte {
            1 => Self::Update,
            2 => Self::Compensation,
            3 => Self::System,
            4 => Self::Commit,
            5 => Self::End,
            6 => Self::Moved,
            7 => Self::MovedAll,
            _ => return Err(DAMAGED),
        })
    }

    fn to_byte(self) -> u8 {
        match self {
            Self::Update => 1,
            Self::Compensation => 2,
            Self::System => 3,
            Self::Commit => 4,
            Self::End => 5,
            Self::Moved => 6,
            Self::MovedAll => 7,
        }
    }
}

/// The undo of an update object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo<'a> {
    /// Puts the row's old cell back. If there was none, removes the row.
    Row {
        /// The root of the tree that the row is in.
        root: PageId,
        /// The row's key.
        key: &'a [u8],
        /// The old cell; `None` if there was no row.
        old: Option<&'a [u8]>,
    },
    /// Frees a page.
    Page {
        /// The page's number.
        page: PageId,
    },
    /// Frees adjacent pages that one space map covers.
    Pages {
        /// The number of the first page.
        first: PageId,
        /// The number of pages.
        count: u32,
    },
}

impl<'a> Undo<'a> {
    /// Appends the undo to an object's body.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Row { root, key, old } => {
                let cell = old.unwrap_or_default();
                let mut head = [UNDO_ROW, u8::from(old.is_some()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                put(&mut head, 2, &(key.len() as u16).to_le_bytes());
                put(&mut head, 4, &root.to_le_bytes());
                into.reserve(head.len() + key.len() + cell.len());
                into.extend(head);
                into.extend(*key);
                into.extend(cell);
            }
            Self::Page { page } => {
                into.push(UNDO_PAGE);
                into.extend(page.to_le_bytes());
            }
            Self::Pages { first, count } => {
                into.push(UNDO_PAGES);
                into.extend(first.to_le_bytes());
                into.extend(count.to_le_bytes());
            }
        }
    }

    /// Decodes an undo from bytes that contain nothing else.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are not a valid undo.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        match bytes.first() {
            Some(&UNDO_ROW) => {
                let len = usize::from(u16::from_le_bytes(array(bytes, 2).ok_or(SHORT)?));
                let root = u64::from_le_bytes(array(bytes, 4).ok_or(SHORT)?);
                let (key, old) = bytes.get(12..).and_then(|rest| rest.split_at_checked(len)).ok_or(SHORT)?;
                Ok(Self::Row { root, key, old: (bytes[1] != 0).then_some(old) })
            }
            Some(&UNDO_PAGE) => Ok(Self::Page { page: u64::from_le_bytes(array(bytes, 1).ok_or(SHORT)?) }),
            Some(&UNDO_PAGES) => Ok(Self::Pages {
                first: u64::from_le_bytes(array(bytes, 1).ok_or(SHORT)?),
                count: u32::from_le_bytes(array(bytes, 9).ok_or(SHORT)?),
            }),
            _ => Err(DAMAGED),
        }
    }
}

/// The header of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// The object's number.
    pub lsn: Lsn,
    /// The transaction of the object; 0 if there is none.
    pub tx: TxId,
    /// A number whose meaning depends on the kind of object:
    ///
    /// - an update: the previous object of its transaction, or 0;
    /// - a compensation: the next object to undo, or 0;
    /// - a moved step: the step that was moved before it, or 0;
    /// - [`MovedAll`](ObjectKind::MovedAll): the number of steps that were moved;
    /// - freeing a page of an overflow chain after a commit: the next page of the chain.
    pub previous: Lsn,
    /// The number of times that the log had been opened when the object was written.
    pub epoch: u32,
    /// The object's claim: when it was sealed, all objects below this number were durable. 0 means no claim.
    pub durable: Lsn,
    /// The length of the object in bytes, including the header.
    pub bytes: u32,
    /// The object's kind.
    pub kind: ObjectKind,
    /// The number of bytes of the body that say how to undo the object. In a commit, these bytes hold the time.
    pub undo_bytes: u32,
}

/// A log object, decoded into its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// The header.
    pub header: ObjectHeader,
    undo: &'a [u8],
    changes: &'a [u8],
}

impl<'a> Object<'a> {
    /// Builds an object that is not sealed yet: the body, and a header that [`seal_object`] completes.
    #[must_use]
    pub fn build(
        kind: ObjectKind,
        tx: TxId,
        previous: Lsn,
        undo: &[u8],
        changes: &[(PageId, Change<'_>)],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        Self::build_in(&mut bytes, (kind, tx, previous), undo, changes.iter().copied());
        bytes
    }

    /// Like [`build`](Self::build), but replaces the content of `bytes`.
    pub fn build_in<'c>(
        bytes: &mut Vec<u8>,
        (kind, tx, previous): (ObjectKind, TxId, Lsn),
        undo: &[u8],
        changes: impl Iterator<Item = (PageId, Change<'c>)>,
    ) {
        bytes.clear();
        bytes.extend([0; OBJECT_HEADER_BYTES]);
        bytes.extend(undo);
        for (page, change) in changes {
            change.encode(page, bytes);
        }
        put(bytes, TX_AT, &tx.to_le_bytes());
        put(bytes, PREVIOUS_AT, &previous.to_le_bytes());
        let len = bytes.len() as u32;
        put(bytes, BYTES_AT, &len.to_le_bytes());
        bytes[KIND_AT] = kind.to_byte();
        put(bytes, UNDO_BYTES_AT, &(undo.len() as u32).to_le_bytes());
    }

    /// Decodes the object at the beginning of `bytes`. Ignores bytes after the object.
    ///
    /// # Errors
    /// [`FormatError`] if `bytes` does not begin with an object that was sealed with this seed.
    pub fn decode(bytes: &'a [u8], seed: u64) -> Result<Self, FormatError> {
        let len = u32::from_le_bytes(array(bytes, BYTES_AT).ok_or(SHORT)?) as usize;
        if len < OBJECT_HEADER_BYTES {
            return Err(DAMAGED);
        }
        let bytes = bytes.get(..len).ok_or(SHORT)?;
        if u64_le(bytes, 0) != checksum(bytes, seed) {
            return Err(DAMAGED);
        }
        let header = ObjectHeader {
            lsn: u64_le(bytes, LSN_AT),
            tx: u64_le(bytes, TX_AT),
            previous: u64_le(bytes, PREVIOUS_AT),
            epoch: u32_le(bytes, EPOCH_AT),
            durable: claimed(bytes),
            bytes: len as u32,
            kind: ObjectKind::from_byte(bytes[KIND_AT])?,
            undo_bytes: u32_le(bytes, UNDO_BYTES_AT),
        };
        let body = &bytes[OBJECT_HEADER_BYTES..];
        let (undo, changes) = body.split_at_checked(header.undo_bytes as usize).ok_or(DAMAGED)?;
        Ok(Self { header, undo, changes })
    }

    /// Returns how to undo the object. Returns `None` if the object is not an update, or has no undo.
    ///
    /// # Errors
    /// [`FormatError`] if the undo is damaged.
    pub fn undo(&self) -> Result<Option<Undo<'a>>, FormatError> {
        if self.header.kind != ObjectKind::Update || self.undo.is_empty() {
            return Ok(None);
        }
        Undo::decode(self.undo).map(Some)
    }

    /// Returns the encoded undo.
    #[must_use]
    pub fn undo_bytes(&self) -> &'a [u8] {
        self.undo
    }

    /// Returns the time of a commit, in nanoseconds since 1970; 0 for other objects.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        if self.header.kind == ObjectKind::Commit { u64_le(self.undo, 0) } else { 0 }
    }

    /// Returns whether this is the commit of a bulk load whose pages were written home without being logged.
    #[must_use]
    pub fn leads_to_pages_at_home(&self) -> bool {
        self.header.kind == ObjectKind::Commit && self.undo.get(8) == Some(&COMMIT_OF_PAGES_AT_HOME)
    }

    /// For the commit of a bulk load whose pages were not logged, returns the number of a superblock. The load wrote
    /// that superblock after its pages were home. Returns 0 for any other object, and for an object that an earlier
    /// build has written.
    #[must_use]
    pub fn needed_superblock(&self) -> u64 {
        if self.leads_to_pages_at_home() { array(self.undo, 9).map_or(0, u64::from_le_bytes) } else { 0 }
    }

    /// Returns the object's changes in order, each with its page.
    pub fn changes(&self) -> impl Iterator<Item = Result<(PageId, Change<'a>), FormatError>> + use<'a> {
        let mut rest = self.changes;
        std::iter::from_fn(move || match Change::decode(&mut rest) {
            Ok(found) => found.map(Ok),
            Err(error) => {
                rest = &[];
                Some(Err(error))
            }
        })
    }
}

/// Sets the number, the epoch and the checksum of an object. After this the object must not change.
pub fn seal_object(bytes: &mut [u8], lsn: Lsn, epoch: u32, seed: u64) {
    put(bytes, LSN_AT, &lsn.to_le_bytes());
    put(bytes, EPOCH_AT, &epoch.to_le_bytes());
    let sum = checksum(bytes, seed);
    put(bytes, 0, &sum.to_le_bytes());
}

/// Stores a claim in the object that will have the number `lsn`: all objects below `durable` are durable. The caller
/// ensures that this is true, and calls this before it seals the object. If the distance from `lsn` back to `durable`
/// is too large to store, the object claims nothing.
pub fn claim_durable(bytes: &mut [u8], lsn: Lsn, durable: Lsn) {
    let claim = lsn.checked_sub(durable).map(|behind| behind + 1).filter(|claim| *claim <= LARGEST_CLAIM);
    put(bytes, DURABLE_AT, &claim.unwrap_or(0).to_le_bytes()[..3]);
}

fn claimed(bytes: &[u8]) -> Lsn {
    let [a, b, c] = array(bytes, DURABLE_AT).unwrap_or_default();
    match u64::from(u32::from_le_bytes([a, b, c, 0])) {
        0 => 0,
        claim => u64_le(bytes, LSN_AT).saturating_sub(claim - 1),
    }
}

fn checksum(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes.get(LSN_AT..).unwrap_or_default(), seed)
}
