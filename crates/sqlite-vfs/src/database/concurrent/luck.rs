//! Whether transactions had better be validated at their commit, or take WRITE when they begin to write.
//!
//! While a transaction is validated others commit, and each of their commits may overtake it. A transaction that
//! has WRITE cannot be overtaken, and nobody else commits meanwhile. Where transactions meet on the same rows, as at
//! the right edge of a table to which all append, one had better take WRITE: it would meet the others again, and each
//! time its writer waits longer before it tries again. But an interior page of a table changes only when a page
//! below it is split or balanced. Two transactions that meet there have done that by chance, as with random keys: the
//! one that was overtaken is run again, and lets nobody wait.

/// What the connection's last transactions have learned.
///
/// After each conflict on rows twice as many transactions take WRITE before the next one is tried without. Those do
/// not count that write pages which others have committed since the connection's last commit: there it would meet
/// them.
#[derive(Default)]
pub(super) struct Luck {
    /// How many transactions are to take WRITE.
    left: u8,
    /// How many will after the next conflict, less one.
    next: u8,
    /// Whether the last transaction was overtaken.
    has_lost: bool,
}

/// The most transactions that take WRITE after a conflict.
const LONGEST_DETOUR: u8 = 32;

impl Luck {
    /// Returns whether a transaction had better take WRITE.
    pub fn is_out(&self) -> bool {
        self.left > 0
    }

    /// A transaction was overtaken, maybe by chance. Twice in a row is none.
    pub fn lost(&mut self, by_chance: bool) {
        let counts = !by_chance || self.has_lost;
        self.has_lost = true;
        if counts {
            self.left = self.next + 1;
            self.next = (2 * self.next + 1).min(LONGEST_DETOUR - 1);
        }
    }

    /// A transaction has committed, after it was validated.
    pub fn won(&mut self) {
        self.has_lost = false;
        self.next /= 2;
    }

    /// A transaction has committed under WRITE. `has_met` says whether it has written pages that others have, too.
    pub fn passed(&mut self, has_met: bool) {
        self.has_lost = false;
        if !has_met {
            self.left = self.left.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many transactions take WRITE until the next one is tried without.
    fn detour(luck: &mut Luck) -> usize {
        let takes_write = |_: &usize| {
            let is_out = luck.is_out();
            luck.passed(true);
            luck.passed(false);
            is_out
        };
        (0..1000).take_while(takes_write).count()
    }

    #[test]
    fn after_each_conflict_on_rows_twice_as_many_transactions_take_write() {
        let mut luck = Luck::default();
        assert!(!luck.is_out());
        for expected in [1, 2, 4, 8, 16, 32, 32] {
            luck.lost(false);
            assert_eq!(detour(&mut luck), expected);
        }
        luck.won();
        luck.lost(false);
        assert_eq!(detour(&mut luck), 16);
    }

    #[test]
    fn a_conflict_by_chance_counts_the_second_time_in_a_row() {
        let mut luck = Luck::default();
        for _ in 0..3 {
            luck.lost(true);
            assert!(!luck.is_out());
            luck.won();
        }
        luck.lost(true);
        luck.lost(true);
        assert_eq!(detour(&mut luck), 1);
        luck.lost(true);
        assert!(!luck.is_out());
    }
}
