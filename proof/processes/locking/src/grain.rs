//! Decides where the processes of a race stop. Either they stop at a few steps of each transaction, so that
//! the exploration can run all interleavings. Or they stop at each call and each store that other processes
//! could notice.
//!
//! This module has an effect only in a race, and only in a process that has begun to race and has not
//! stopped.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use crate::call::{Call, Kind};

/// The distance between the stops of the processes of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Grain {
    /// A process stops before each operation. In a commit it also stops after validation, before the first
    /// store into the log. It stops again when the transaction is sealed and not yet published. In a
    /// checkpoint the process stops before it writes the first page home.
    Coarse = 1,
    /// A process stops before each lock of the wal-index, each read and write of the database file, each
    /// store into the log, and each store to the header of the wal-index. It also stops before and after each
    /// fence.
    Fine = 2,
}

/// The [`Grain`] of the race, as a number; 0 if there is no race. Forked processes inherit it.
static GRAIN: AtomicU8 = AtomicU8::new(0);

/// How many times one operation stops at one place, at most. Without this limit, an engine that recovers
/// what a dead process has left could stop thousands of times. A process that waits for this recovery gets
/// a turn after each stop.
const MOST: u32 = 80;

thread_local! {
    /// Whether this process races.
    static RACES: Cell<bool> = const { Cell::new(false) };
    /// How many times this operation has come to each of three places. With [`Grain::Coarse`] the process
    /// stops at each place only once.
    static TIMES: Cell<[u32; 3]> = const { Cell::new([0; 3]) };
}

/// Returns whether this program explores races. Otherwise it explores the locks of files.
pub fn is_race() -> bool {
    GRAIN.load(SeqCst) != 0
}

/// Sets the grain for the processes that are forked from now on.
pub fn set(grain: Grain) {
    GRAIN.store(grain as u8, SeqCst);
}

/// Notes that this process races from now on, or, with `false`, that it has stopped racing.
pub fn races(races: bool) {
    RACES.set(races);
}

/// Returns whether this process races.
pub fn is_racing() -> bool {
    RACES.get()
}

/// Notes that this process begins a new operation.
pub fn operation_begins() {
    TIMES.set([0; 3]);
}

/// Counts that this process has come to a place, and returns whether the process stops there. With
/// [`Grain::Coarse`] the process stops only when the count is `counts`.
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

/// Returns whether a process takes a step when it opens a file, deletes one or looks for one.
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

/// Returns whether the moment after a fence is a step. `nvwal` seals a transaction with its second fence.
pub fn stops_after_fence() -> bool {
    stops(2, 2)
}
