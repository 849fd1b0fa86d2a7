//! Searches for objects after the apparent end of a log, and decides whether they prove that the log is damaged.
//!
//! Invariant 48: an object or a batch may claim that all objects below some number were durable before it was written.
//! If a claim covers a missing object, the log is damaged, however old the claim is. The reason is that a durable
//! object stays durable, and that no claim ever covers an object that a recovery has cut off. If no claim covers the
//! missing object, a crash may have prevented it from becoming durable. In that case, the log ends at the missing
//! object.

use duralite_medium::Nvm;

use crate::error::Error;
use crate::format::{Lsn, OBJECT_ALIGNMENT, OBJECT_HEADER_BYTES, Object, ObjectHeader, ObjectKind};

/// The number of bytes that are searched at a time.
pub(crate) const PIECE: usize = 1 << 20;
/// An object whose number exceeds the expected one by this much cannot belong to this log.
const FARTHEST: u64 = 1 << 32;

/// Damage to a log before its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The first object that is missing.
    pub(crate) missing: Lsn,
    /// The number of transactions that committed in the log before the missing object.
    pub(crate) before: u64,
    /// The valid objects beyond the damage.
    pub(crate) beyond: Beyond,
    /// The offset of the damage in the log's medium, in bytes.
    pub(crate) from: u64,
}

/// The valid objects after the end of a log: how many there are, which one is the first, and what they claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beyond {
    pub(crate) objects: u64,
    pub(crate) commits: u64,
    /// The number of the first of these objects (`first`), and the offset in bytes of that object or of its batch
    /// (`at`).
    pub(crate) first: Lsn,
    pub(crate) at: u64,
    /// According to the claims of the valid objects and batches, all objects below this number were durable.
    durable: Lsn,
}

impl Beyond {
    /// Counts a valid object, and its claim.
    pub(crate) fn add(&mut self, header: &ObjectHeader, at: u64) {
        self.objects += 1;
        self.commits += u64::from(header.kind == ObjectKind::Commit);
        if self.first == 0 || header.lsn < self.first {
            (self.first, self.at) = (header.lsn, at);
        }
        self.claim(header.durable);
    }

    /// Records what a valid object or batch claims about earlier objects.
    pub(crate) fn claim(&mut self, durable: Lsn) {
        self.durable = self.durable.max(durable);
    }

    /// Returns whether a claim shows that the missing object was durable.
    pub(crate) fn proves(&self, missing: Lsn) -> bool {
        self.durable > missing
    }
}

/// The caller's reaction to damage. It returns an error, or accepts that the log ends there.
pub(crate) type OnDamage<'a> = dyn FnMut(Damage) -> Result<(), Error> + 'a;

/// Reacts to damage with an error.
pub(crate) fn refuse(damage: Damage) -> Result<(), Error> {
    Err(damage.error())
}

impl Damage {
    /// Returns the error that reports this damage.
    pub(crate) fn error(&self) -> Error {
        let Self { missing, before, beyond, from } = self;
        let range = match beyond.at {
            at if at > *from => format!("bytes {from} to {at}"),
            _ => format!("from byte {from}"),
        };
        let whole = match beyond.objects {
            0 => "nothing whole is after it".to_owned(),
            objects => format!(
                "{objects} log objects are whole after it, from {} on, with {} commits",
                beyond.first, beyond.commits
            ),
        };
        Error::corrupt(&format!(
            "the log at log object {missing}, which had been durable, ({range}; {before} transactions of the \
             log before it can be saved; {whole}; `duralite store salvage STORE OUT` makes a store with the \
             state before the damage)"
        ))
    }
}

/// Searches part of a memory for valid objects with numbers from `next` on, and adds them to `beyond`. `seed_at`
/// returns the seed of the checksum that an object at a given offset must have.
pub(crate) fn look_beyond(
    nvm: &dyn Nvm,
    (from, to): (u64, u64),
    next: Lsn,
    seed_at: &dyn Fn(u64) -> u64,
    beyond: &mut Beyond,
) {
    let mut piece = Vec::new();
    let mut object = Vec::new();
    let mut begin = from;
    while begin < to {
        piece.resize((to - begin).min(PIECE as u64) as usize, 0);
        nvm.read(begin, &mut piece);
        for (nth, line) in piece.chunks_exact(OBJECT_ALIGNMENT as usize).enumerate() {
            let at = begin + nth as u64 * OBJECT_ALIGNMENT;
            let (lsn, bytes) = claimed(line);
            let is_likely = lsn.checked_sub(next).is_some_and(|later| later < FARTHEST)
                && bytes >= OBJECT_HEADER_BYTES as u64
                && bytes <= to - at;
            if !is_likely {
                continue;
            }
            object.resize(bytes as usize, 0);
            nvm.read(at, &mut object);
            if let Ok(object) = Object::decode(&object, seed_at(at)) {
                beyond.add(&object.header, at);
            }
        }
        begin += piece.len() as u64;
    }
}

/// Decodes an object's number and length from the first 64 bytes of its header. These bytes may not be a header at all.
fn claimed(line: &[u8]) -> (Lsn, u64) {
    let word = |at: usize| line.get(at..at + 8).and_then(|word| <[u8; 8]>::try_from(word).ok());
    let lsn = word(8).map_or(0, u64::from_le_bytes);
    // The length is the upper half of a word; the lower half is the epoch.
    (lsn, word(32).map_or(0, u64::from_le_bytes) >> 32)
}
