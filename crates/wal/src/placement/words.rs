//! The words of the segment before the engine's part, and their offsets. The segment is the memory that the log's users
//! share.

use std::fs::File;
use std::os::unix::fs::FileExt;

use duralite_format::LogId;
use duralite_medium::Segment;

use super::boot::boot;
use crate::metrics::METRICS_BYTES;
use crate::shared::pins::{PINS_BYTES, PINS_OFFSET};

/// Where the locks of the database begin in the segment.
pub const LOCKS_OFFSET: u64 = 4096;
/// Bytes of the segment that belong to the locks.
pub const LOCKS_BYTES: u64 = 64 << 10;
/// Where the engine's part of the segment begins.
pub(super) const ENGINE_OFFSET: u64 = LOCKS_OFFSET + LOCKS_BYTES;

/// The first word of a segment that is in use: the version of its layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"DURASEG9");
/// The kinds of media on which the log is used; 0 if unknown.
pub(super) const MEDIA: u64 = 8;
/// How often syncing or writing the database has failed since everything in the log was written to the database anew,
/// or the log became empty.
pub const HOME_FAILURES: u64 = 16;
/// The newest commit that was acknowledged: the low half of its generation in the upper half, its last frame in the
/// lower half.
pub const ACKNOWLEDGED: u64 = 24;

/// The time, by the segment's clock, until which a process has the turn to start the log over. The lowest bits are its
/// process slot.
pub const RESTART_UNTIL: u64 = 32;

/// Which guard is in the database's header, or that another log is about to replace this one. A connection stores this
/// under EXCLUSIVE when it changes the header; 0 where the guard is unknown, or about to change.
pub const GUARD_KIND: u64 = 48;

/// How often the database file has been written to while its WAL was in the log.
pub const HOME_WRITES: u64 = 56;
/// One more than the value of [`HOME_WRITES`] when the last successful sync of the file began; 0 if there was none.
pub const HOME_SYNCED: u64 = 64;

/// Not 0 once the log's file and the guard are known to be durable, and the guard not to be provisional. It says nothing
/// about single commits: the word of the same name in `group/words.rs` says up to which byte they survive a power loss.
pub const HARDENED: u64 = 80;

/// Not 0 once a process has seen that the log was deleted while it was in use: no process commits to the log any more.
pub const LOG_DELETED: u64 = 88;
/// The bit of [`LOG_DELETED`] that a process sets which has seen the deletion.
pub const DELETION_SEEN: u64 = 1;
/// The bit of [`LOG_DELETED`] that a process sets before it copies the log.
pub const DELETED_LOG_COPIED: u64 = 2;

/// The id of the log to which the segment belongs, in 16 bytes. The path of a deleted segment in `/proc` may not show
/// it.
const LOG_ID: u64 = 96;

/// The start of the system during which the words were written ([`super::boot`]); 0 if unknown.
pub(super) const BOOT: u64 = 72;

/// How often the segment has begun anew, in the upper half, and how often processes have joined it since then, in the
/// lower half.
pub(super) const INCARNATION: u64 = 40;
pub(super) const BEGUN: u64 = 1 << 32;
/// Beside the locks: not 0 where some user may read the segment and not write it.
pub const READABLE: u64 = LOCKS_OFFSET + 8;

const _: () = assert!(PINS_OFFSET + PINS_BYTES <= LOCKS_OFFSET);

/// Where the metrics of processes begin, after an engine's part of `engine_bytes`, and where the segment ends.
pub(super) fn metrics_of(engine_bytes: u64) -> (u64, u64) {
    let begin = (ENGINE_OFFSET + engine_bytes).next_multiple_of(64);
    (begin, begin + METRICS_BYTES)
}

/// The number of the segment's beginning, from the word [`INCARNATION`].
pub(super) fn beginning_of(incarnation: u64) -> u64 {
    incarnation / BEGUN
}

/// Whether the file is a segment whose initialization was completed.
pub(super) fn is_complete(segment: &File) -> bool {
    layout_of(segment) == MAGIC
}

/// Stores in a new segment the id of its log.
pub(super) fn set_log_id(segment: &dyn Segment, id: LogId) {
    let (words, _) = id.0.as_chunks();
    for (word, at) in words.iter().zip((LOG_ID..).step_by(8)) {
        segment.store(at, u64::from_ne_bytes(*word));
    }
}

/// Whether the file is a segment of the log with this id.
pub(super) fn is_segment_of(file: &File, id: LogId) -> bool {
    let mut of = [0; 16];
    is_complete(file) && file.read_exact_at(&mut of, LOG_ID).is_ok() && LogId(of) == id
}

/// The first `bytes` of an engine's part as the last process that used the segment left them; `None` where the system
/// has been restarted since, or the segment was never completed.
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

/// The layout of the segment in the file; 0 for a segment that was never completed.
pub(super) fn layout_of(segment: &File) -> u64 {
    let mut magic = [0; 8];
    if matches!(segment.read_at(&mut magic, 0), Ok(8)) { u64::from_le_bytes(magic) } else { 0 }
}
