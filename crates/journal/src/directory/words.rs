//! The words of the shared segment before the engine's part, and where they are.

use std::fs::File;
use std::os::unix::fs::FileExt;

use duralite_logfmt::LogId;
use duralite_medium::Segment;

use super::boot::boot;
use crate::figures::FIGURES_BYTES;
use crate::pins::{PINS_BYTES, PINS_OFFSET};

/// Where the locks of the database are in the shared segment, and how much is theirs.
pub const LOCKS_OFFSET: u64 = 4096;
/// Bytes of the shared segment that are the locks'.
pub const LOCKS_BYTES: u64 = 64 << 10;
/// Where the engine's part begins.
pub(super) const ENGINE_OFFSET: u64 = LOCKS_OFFSET + LOCKS_BYTES;

/// First word of a segment that is in use: its layout's version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"DURASEG9");
/// On which kinds of media the log is used, 0 where nobody has said.
pub(super) const MEDIA: u64 = 8;
/// How often syncing or writing the database has failed since everything in the log was written to it
/// anew, or the log became empty.
pub const HOME_FAILURES: u64 = 16;
/// The newest commit that was acknowledged: generation in the upper half, its last frame in the lower.
pub const ACKNOWLEDGED: u64 = 24;

/// Until when, by the segment's clock, somebody has the turn to start the log over; its lowest bits are the process slot.
pub const RESTART_UNTIL: u64 = 32;

/// Which guard is in the database's header, by whoever has put it there under EXCLUSIVE; 0 where nobody has said, or
/// somebody is about to change it.
pub const GUARD_KIND: u64 = 48;

/// How often something has been written to the database file while its WAL was in the log.
pub const HOME_WRITES: u64 = 56;
/// One more than that number was when the last sync of the file began that succeeded; 0 where there was none.
pub const HOME_SYNCED: u64 = 64;

/// Not 0 once it is known that log and guard are durable, and that the guard is none that is provisional.
pub const HARDENED: u64 = 80;

/// Not 0 once somebody has seen that the log was deleted while it was in use: nobody commits to it any more.
pub const LOG_DELETED: u64 = 88;

/// Which log the segment belongs to, in 16 bytes: a segment that was deleted may have lost its name in `/proc` too.
const LOG_ID: u64 = 96;

/// By which start of the system the words are ([`super::boot`]); 0 where it is not known.
pub(super) const BOOT: u64 = 72;

/// How often the shared memory has begun anew, in the upper half, and how often it has been joined since then.
pub(super) const INCARNATION: u64 = 40;
pub(super) const BEGUN: u64 = 1 << 32;
/// Beside the locks: not 0 where somebody may read along who may not write.
pub const READABLE: u64 = LOCKS_OFFSET + 8;

const _: () = assert!(PINS_OFFSET + PINS_BYTES <= LOCKS_OFFSET);

/// Where the figures of processes begin, behind an engine's part of so many bytes, and where the segment ends.
pub(super) fn figures_of(engine_bytes: u64) -> (u64, u64) {
    let begin = (ENGINE_OFFSET + engine_bytes).next_multiple_of(64);
    (begin, begin + FIGURES_BYTES)
}

/// The number of a beginning of the shared memory, by the word [`INCARNATION`].
pub(super) fn beginning_of(incarnation: u64) -> u64 {
    incarnation / BEGUN
}

/// Whether the words in the file are of a segment that was completed.
pub(super) fn is_complete(segment: &File) -> bool {
    layout_of(segment) == MAGIC
}

/// Says in a segment that is being made which log it belongs to.
pub(super) fn set_log_id(segment: &dyn Segment, id: LogId) {
    let (words, _) = id.0.as_chunks();
    for (word, at) in words.iter().zip((LOG_ID..).step_by(8)) {
        segment.store(at, u64::from_ne_bytes(*word));
    }
}

/// Whether the file is a segment of this log.
pub(super) fn is_segment_of(file: &File, id: LogId) -> bool {
    let mut of = [0; 16];
    is_complete(file) && file.read_exact_at(&mut of, LOG_ID).is_ok() && LogId(of) == id
}

/// The first `bytes` of an engine's part as the last process left them that used the segment; `None` where the system was started since,
/// or a segment was not completed.
pub(super) fn left_of(segment: &File, bytes: u64) -> Option<Vec<u8>> {
    let mut by = [0; 8];
    segment.read_exact_at(&mut by, BOOT).ok()?;
    if !is_complete(segment) || u64::from_ne_bytes(by) != boot() || boot() == 0 {
        return None;
    }
    let mut words = vec![0; bytes as usize];
    segment.read_exact_at(&mut words, ENGINE_OFFSET).ok()?;
    Some(words)
}

/// The layout of the segment in the file; 0 where none was completed.
pub(super) fn layout_of(segment: &File) -> u64 {
    let mut magic = [0; 8];
    if matches!(segment.read_at(&mut magic, 0), Ok(8)) { u64::from_le_bytes(magic) } else { 0 }
}
