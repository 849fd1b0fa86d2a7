//! Log objects: what one step of a transaction did, and how to undo it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u32_le, u64_le};

use super::{Change, Lsn, PageId, TxId};

/// Bytes that an object begins with.
pub const OBJECT_HEADER_BYTES: usize = 48;

const LSN_AT: usize = 8;
const TX_AT: usize = 16;
const PREVIOUS_AT: usize = 24;
const EPOCH_AT: usize = 32;
const BYTES_AT: usize = 36;
const KIND_AT: usize = 40;
const DURABLE_AT: usize = 41;
const UNDO_BYTES_AT: usize = 44;
/// The largest claim that an object can store. A claim counts from the object's number back to what was durable.
const LARGEST_CLAIM: u64 = (1 << 24) - 1;

const UNDO_ROW: u8 = 1;
const UNDO_PAGE: u8 = 2;
const UNDO_PAGES: u8 = 3;

/// The byte after a commit's time. It says that the commit leads to pages that were written home, and that no object of
/// the log has.
pub const COMMIT_OF_PAGES_AT_HOME: u8 = 1;

const DAMAGED: FormatError = FormatError::Damaged { what: "a log object" };
const SHORT: FormatError = FormatError::Short { what: "a log object" };

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Changes that are undone if their transaction does not commit.
    Update,
    /// Changes that undo an [`Update`](Self::Update): a compensation record. They are never undone themselves.
    Compensation,
    /// Changes that stay, whatever becomes of a transaction: a page is split or given back.
    System,
    /// The transaction has committed.
    Commit,
    /// The transaction is complete: it was rolled back, or the pages that it gave back are free.
    End,
    /// A step of a transaction that is still open, logged again without its changes. It says how to undo the step.
    Moved,
    /// All steps of a transaction have been logged again as [`Moved`](Self::Moved). These replace all earlier ones.
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

/// How to undo an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo<'a> {
    /// The row gets its old cell again. If there was none, the row is removed.
    Row {
        /// The root of the row's tree.
        root: PageId,
        /// The row's key.
        key: &'a [u8],
        /// The old cell.
        old: Option<&'a [u8]>,
    },
    /// The page is free again.
    Page {
        /// The page's number.
        page: PageId,
    },
    /// A run of pages in one space map is free again.
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

    /// Reads an undo that consists of all of these bytes.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are no undo.
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
    /// The object's transaction; 0 for none.
    pub tx: TxId,
    /// For an update: the previous object of its transaction. For a compensation: the next object to undo. For a moved
    /// step: the step moved before it. 0 for none. For [`MovedAll`](ObjectKind::MovedAll): the number of moved steps.
    /// For a page of an overflow chain that a committed transaction gives back: the chain's next page.
    pub previous: Lsn,
    /// How often the log had been opened when the object was written.
    pub epoch: u32,
    /// Objects below this number were durable before this object was sealed; 0 if the object does not say.
    pub durable: Lsn,
    /// Length of the object in bytes, header included.
    pub bytes: u32,
    /// The object's kind.
    pub kind: ObjectKind,
    /// Bytes of the body that say how to undo the object. Of a commit, they hold its time.
    pub undo_bytes: u32,
}

/// An object, split into its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// The header.
    pub header: ObjectHeader,
    undo: &'a [u8],
    changes: &'a [u8],
}

impl<'a> Object<'a> {
    /// Makes an object that is not sealed yet: a header, which [`seal_object`] completes, and the body.
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

    /// Reads the object with which these bytes begin. Bytes after the object are ignored.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes do not begin with an object that was sealed with this seed.
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

    /// How to undo the object. `None` if the object is no update, or is not undone.
    ///
    /// # Errors
    /// [`FormatError`] if the undo is damaged.
    pub fn undo(&self) -> Result<Option<Undo<'a>>, FormatError> {
        if self.header.kind != ObjectKind::Update || self.undo.is_empty() {
            return Ok(None);
        }
        Undo::decode(self.undo).map(Some)
    }

    /// The bytes of the undo.
    #[must_use]
    pub fn undo_bytes(&self) -> &'a [u8] {
        self.undo
    }

    /// Time of a commit, in nanoseconds since 1970; 0 for other objects.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        if self.header.kind == ObjectKind::Commit { u64_le(self.undo, 0) } else { 0 }
    }

    /// Whether this is a commit that leads to pages that were written home, and that no object of the log has.
    #[must_use]
    pub fn leads_to_pages_at_home(&self) -> bool {
        self.header.kind == ObjectKind::Commit && self.undo.get(8) == Some(&COMMIT_OF_PAGES_AT_HOME)
    }

    /// The object's changes in order, each with its page.
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

/// Sets the number, the epoch and the checksum of an object. After that the object does not change any more.
pub fn seal_object(bytes: &mut [u8], lsn: Lsn, epoch: u32, seed: u64) {
    put(bytes, LSN_AT, &lsn.to_le_bytes());
    put(bytes, EPOCH_AT, &epoch.to_le_bytes());
    let sum = checksum(bytes, seed);
    put(bytes, 0, &sum.to_le_bytes());
}

/// Stores in the object that will have the number `lsn` that all objects below `durable` are durable. The caller makes
/// sure that this is so, and calls this before the object is sealed. If the distance is too large to store, the object
/// makes no claim.
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
