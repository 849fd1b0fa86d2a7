//! Log objects: what one step of a transaction did, and how it is taken back.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Change, Lsn, PageId, TxId};
use crate::FormatError;
use crate::bytes::{array, put, u32_le, u64_le};

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
/// What a claim of an object has at most: its number less that of what was durable.
const LARGEST_CLAIM: u64 = (1 << 24) - 1;

const UNDO_ROW: u8 = 1;
const UNDO_PAGE: u8 = 2;
const UNDO_PAGES: u8 = 3;

/// The byte behind a commit's time, where what it leads to was written home and is not in the log.
pub const COMMIT_OF_PAGES_AT_HOME: u8 = 1;

const DAMAGED: FormatError = FormatError::Damaged { what: "a log object" };
const SHORT: FormatError = FormatError::Short { what: "a log object" };

/// What an object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Changes that are taken back if their transaction does not commit.
    Update,
    /// Changes that take back an [`Update`](Self::Update); they are never taken back themselves.
    Compensation,
    /// Changes that belong to no transaction's fate: a page is split, a page is given free.
    System,
    /// The transaction has committed.
    Commit,
    /// Nothing is left to be done for the transaction: it was rolled back, or what it gave free is free.
    End,
    /// A step of a transaction that is still open, logged anew without its changes: how it is taken back.
    Moved,
    /// All steps of a transaction have moved, and count in place of all before.
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

/// How an update is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo<'a> {
    /// The row gets its old cell again, or goes if it had none.
    Row {
        /// The root of its tree.
        root: PageId,
        /// Its key.
        key: &'a [u8],
        /// The cell as it was.
        old: Option<&'a [u8]>,
    },
    /// The page is free again.
    Page {
        /// Its number.
        page: PageId,
    },
    /// Pages beside each other, of one space map, are free again.
    Pages {
        /// The first one's number.
        first: PageId,
        /// How many they are.
        count: u32,
    },
}

impl<'a> Undo<'a> {
    /// Appends it to an object's body.
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

    /// All of these bytes.
    ///
    /// # Errors
    /// [`FormatError`] for bytes that are none.
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

/// What an object begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Its number.
    pub lsn: Lsn,
    /// Its transaction, 0 for none.
    pub tx: TxId,
    /// Of an update the object of its transaction before it, of a compensation the next one to take back, of a
    /// step that has moved the one moved before it. 0 for none. When all have moved, how many they are.
    pub previous: Lsn,
    /// How often the log had been opened when it was written.
    pub epoch: u32,
    /// Objects below this were durable before it was sealed; 0 if it does not say.
    pub durable: Lsn,
    /// Its length in bytes, with the header.
    pub bytes: u32,
    /// What it says.
    pub kind: ObjectKind,
    /// Bytes of the body that say how to take it back, or of a commit the time.
    pub undo_bytes: u32,
}

/// An object in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// The header.
    pub header: ObjectHeader,
    undo: &'a [u8],
    changes: &'a [u8],
}

impl<'a> Object<'a> {
    /// An object that is not sealed yet: a header to be filled by [`seal_object`], and its body.
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

    /// The same in place of what a buffer holds: its kind, its transaction and the object before it, how it is taken
    /// back, and its changes.
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

    /// The object that these bytes begin with; longer ones are not looked at.
    ///
    /// # Errors
    /// [`FormatError`] if there is no object sealed with this seed.
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

    /// How it is taken back; `None` if it is not, or not any more.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn undo(&self) -> Result<Option<Undo<'a>>, FormatError> {
        if self.header.kind != ObjectKind::Update || self.undo.is_empty() {
            return Ok(None);
        }
        Undo::decode(self.undo).map(Some)
    }

    /// The bytes that the undo is made of.
    #[must_use]
    pub fn undo_bytes(&self) -> &'a [u8] {
        self.undo
    }

    /// Of a commit, when it was, in nanoseconds since 1970.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        if self.header.kind == ObjectKind::Commit { u64_le(self.undo, 0) } else { 0 }
    }

    /// Of a commit, whether it leads to pages that were written home, and that no object of the log has.
    #[must_use]
    pub fn leads_to_pages_at_home(&self) -> bool {
        self.header.kind == ObjectKind::Commit && self.undo.get(8) == Some(&COMMIT_OF_PAGES_AT_HOME)
    }

    /// Its changes in order, each with its page.
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

/// Gives an object its number and its checksum: it is never changed after that.
pub fn seal_object(bytes: &mut [u8], lsn: Lsn, epoch: u32, seed: u64) {
    put(bytes, LSN_AT, &lsn.to_le_bytes());
    put(bytes, EPOCH_AT, &epoch.to_le_bytes());
    let sum = checksum(bytes, seed);
    put(bytes, 0, &sum.to_le_bytes());
}

/// Says in an object that will have this number that everything below `durable` is durable: to be done before it is
/// sealed, and only if that is so.
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
