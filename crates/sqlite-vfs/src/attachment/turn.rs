//! The turn to start the log over. One connection of all processes has it, until its time is up or its
//! process is dead.

use duralite_medium::{PROCESS_SLOTS, Segment};
use duralite_wal::placement::RESTART_UNTIL;

/// The process slot that has the turn stands in the lowest bits of the time at which the turn ends. They are
/// less than a microsecond.
const SLOT: u64 = PROCESS_SLOTS as u64 - 1;
const _: () = assert!(PROCESS_SLOTS.is_power_of_two());

/// The turn, in the memory that the users of a log share.
pub struct RestartTurn<'a>(pub &'a dyn Segment);

impl RestartTurn<'_> {
    /// Takes the turn for this thread, for at most `limit_ns`. Returns the word that ends it, if this thread
    /// has the turn now.
    pub fn take(&self, limit_ns: u64) -> Option<u64> {
        let found = self.0.load(RESTART_UNTIL);
        let until = self.0.clock_ns().saturating_add(limit_ns) & !SLOT;
        let turn = until | (self.0.process_slot() as u64 & SLOT);
        (!self.is_held(found) && self.0.compare_exchange(RESTART_UNTIL, found, turn).is_ok()).then_some(turn)
    }

    /// Whether a connection has the turn.
    pub fn is_taken(&self) -> bool {
        self.is_held(self.0.load(RESTART_UNTIL))
    }

    /// Ends the turn, unless it took so long that another connection has it by now.
    pub fn end(&self, turn: u64) {
        let _ = self.0.compare_exchange(RESTART_UNTIL, turn, 0);
    }

    /// Whether the turn in this word lasts. A process counts as alive if the kernel does not tell.
    fn is_held(&self, word: u64) -> bool {
        let is_on = word != 0 && word & !SLOT > self.0.clock_ns();
        is_on && self.0.is_alive((word & SLOT) as usize).unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use duralite_medium::LocalSegment;

    use super::*;

    const LONG: u64 = 1_000_000_000_000;

    #[test]
    fn it_is_one_threads_until_it_ends() {
        let segment = LocalSegment::new(4096);
        let turns = RestartTurn(&segment);
        assert!(!turns.is_taken());
        let turn = turns.take(LONG).unwrap();
        assert!(turns.is_taken() && turns.take(LONG).is_none());
        turns.end(turn ^ 1 << 40);
        assert!(turns.is_taken(), "that was another one");
        turns.end(turn);
        assert!(!turns.is_taken() && turns.take(LONG).is_some());
    }

    #[test]
    fn one_that_ran_out_is_free_and_so_is_that_of_a_dead_process() {
        let segment = LocalSegment::new(4096);
        let turns = RestartTurn(&segment);
        turns.take(0).unwrap();
        let next = turns.take(LONG).unwrap();
        assert!(turns.is_taken());
        // Only the first slot's process lives here.
        segment.store(RESTART_UNTIL, next | 5);
        assert!(!turns.is_taken(), "its process has died");
        assert!(turns.take(LONG).is_some());
    }
}
