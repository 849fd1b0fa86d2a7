//! Decides whether a transaction runs without WRITE and is validated at its commit, or takes WRITE when it
//! begins to write.
//!
//! While a transaction runs without WRITE, other transactions commit, and each of their commits may overtake
//! it. A transaction that has WRITE cannot be overtaken, but no other transaction commits meanwhile.
//!
//! If transactions conflict on the same rows, as at the right edge of a table to which all append, they
//! should take WRITE. Otherwise they would conflict again and again, and the program would wait longer before
//! each new attempt. But two transactions may also meet by chance, as with random keys: on a page on which no
//! other transaction was overtaken a moment ago, or on an interior page of a table, which changes only when
//! child pages are split or balanced. The overtaken transaction then runs again without WRITE, and makes no
//! other transaction wait.

/// What this VFS has learned from the connection's last transactions.
///
/// After a conflict on hot rows, a certain number of the connection's transactions take WRITE. Then the
/// connection tries a transaction without WRITE. Each further conflict doubles the number. A transaction with
/// WRITE does not count if it writes pages that others have committed since the connection's last commit:
/// without WRITE, it would have conflicted with them.
#[derive(Default)]
pub(super) struct Luck {
    /// How many more transactions take WRITE before one runs without it.
    left: u8,
    /// The number of transactions that take WRITE after the next conflict, minus 1.
    next: u8,
    /// Whether the last transaction was overtaken.
    has_lost: bool,
}

/// The largest number of transactions that take WRITE after a conflict.
const LONGEST_DETOUR: u8 = 32;

impl Luck {
    /// Returns whether a transaction should take WRITE.
    pub fn is_out(&self) -> bool {
        self.left > 0
    }

    /// Notes that a transaction was overtaken. `by_chance` says whether that may have been chance. A second
    /// conflict in a row does not count as chance.
    pub fn lost(&mut self, by_chance: bool) {
        let counts = !by_chance || self.has_lost;
        self.has_lost = true;
        if counts {
            self.left = self.next + 1;
            self.next = (2 * self.next + 1).min(LONGEST_DETOUR - 1);
        }
    }

    /// Notes that a transaction has committed after it was validated.
    pub fn won(&mut self) {
        self.has_lost = false;
        self.next /= 2;
    }

    /// Notes that a transaction has committed under WRITE. `has_met` says whether the transaction has written
    /// pages that others have written too.
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

    /// Returns how many transactions take WRITE before one runs without WRITE again.
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
