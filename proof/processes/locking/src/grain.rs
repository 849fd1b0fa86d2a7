//! Decides where the processes of a race stop. With coarse grain they stop at a few steps of each
//! transaction, so that the exploration can run all interleavings. With fine grain they stop at each call and
//! each store that other processes could notice.
//!
//! This module has an effect only in a race, and only in a process that is racing at the moment.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use crate::call::{Call, Kind};

/// How often the processes of a race stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Grain {
    /// A process stops before each operation. In a commit it also stops after validation, before the first
    /// store into the log. It stops in the commit once more when the log has the sealed transaction, but
    /// other processes do not see it yet. In a checkpoint it stops before it writes the first page into the
    /// database file.
    Coarse = 1,
    /// A process stops before each lock of the wal-index, each read and write of the database file, each
    /// store into the log, and each store to the header of the wal-index. It also stops before and after each
    /// fence.
    Fine = 2,
}

/// The [`Grain`] of the race, as a number; 0 if there is no race. Forked processes inherit it.
static GRAIN: AtomicU8 = AtomicU8::new(0);

/// The largest number of times that one operation stops at one place. Without this limit, a process that
/// recovers what a dead process has left could stop thousands of times. Each time, a process that waits for
/// the recovery would get a turn.
const MOST: u32 = 80;

thread_local! {
    /// Whether this process races.
    static RACES: Cell<bool> = const { Cell::new(false) };
    /// How many times the present operation has come to each of three places in the code. With
    /// [`Grain::Coarse`] the process stops at each place only once.
    static TIMES: Cell<[u32; 3]> = const { Cell::new([0; 3]) };
}

/// Returns whether this program explores races. If not, it explores the locks of files.
pub fn is_race() -> bool {
    GRAIN.load(SeqCst) != 0
}

/// Sets the grain for all processes that are forked after this call.
pub fn set(grain: Grain) {
    GRAIN.store(grain as u8, SeqCst);
}

/// Records that this process begins to race, or, with `false`, that it no longer races.
pub fn races(races: bool) {
    RACES.set(races);
}

/// Returns whether this process races.
pub fn is_racing() -> bool {
    RACES.get()
}

/// Records that this process begins a new operation.
pub fn operation_begins() {
    TIMES.set([0; 3]);
}

/// Counts that the present operation has come to a place, and returns whether the process stops there. With
/// [`Grain::Coarse`] it stops there only the `counts`-th time.
fn stops(place: usize, counts: u32) -> bool {
    if !RACES.get() {
        return false;
    }
    let mut times = TIMES.get();
    times[place] += 1;
    TIMES.set(times);
    times[place] == counts || times[place] <= MOST && GRAIN.load(SeqCst) == Grain::Fine as u8
}

/// Returns whether this process races with [`Grain::Fine`].
pub fn is_fine() -> bool {
    RACES.get() && GRAIN.load(SeqCst) == Grain::Fine as u8
}

/// Returns whether a call to Duralite's VFS is a step.
pub fn stops_above(call: Call, kind: Kind) -> bool {
    kind == Kind::Database && matches!(call, Call::ShmLock | Call::Read) && is_fine()
}

/// Returns whether a call to the base VFS is a step.
pub fn stops_below(call: Call, kind: Kind) -> bool {
    match (call, kind) {
        (Call::Write, Kind::Database) => stops(0, 1),
        (Call::Read | Call::Truncate | Call::Sync | Call::Lock | Call::Unlock, Kind::Database) => is_fine(),
        _ => false,
    }
}

/// Returns whether it is a step when a process opens a file, deletes a file, or checks whether a file exists.
pub fn stops_at_files() -> bool {
    !is_race() || is_fine()
}

/// Returns whether a store into the log is a step.
pub fn stops_at_store() -> bool {
    stops(1, 1)
}

/// Returns whether the moment before a fence is a step.
pub fn stops_at_fence() -> bool {
    is_fine()
}

/// Returns whether the moment after a fence is a step. The second fence of `nvwal` in a commit is the one
/// that seals the transaction.
pub fn stops_after_fence() -> bool {
    stops(2, 2)
}
