//! Lock modes, and which of them are compatible.

/// The mode of a lock: what the lock permits its holder to do, and what it prevents other transactions from doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The holder reads some rows of the table.
    IntentionShared,
    /// The holder changes some rows of the table.
    IntentionExclusive,
    /// The holder reads the whole target.
    Shared,
    /// The holder reads the whole table, and changes some rows.
    SharedIntentionExclusive,
    /// The holder may change the whole target.
    Exclusive,
}

impl Mode {
    /// Returns whether two transactions may hold locks in these modes at once.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        use Mode::{Exclusive as X, IntentionExclusive as IX, IntentionShared as IS, Shared as S};
        match (self, other) {
            (X, _) | (_, X) => false,
            (IS, _) | (_, IS) | (IX, IX) | (S, S) => true,
            _ => false,
        }
    }

    /// Returns the weakest mode that permits everything that either of the two modes permits.
    pub(crate) fn and(self, other: Self) -> Self {
        use Mode::{
            Exclusive as X, IntentionExclusive as IX, IntentionShared as IS, Shared as S,
            SharedIntentionExclusive as SIX,
        };
        match (self, other) {
            (a, b) if a == b => a,
            (X, _) | (_, X) => X,
            (SIX, _) | (_, SIX) | (S, IX) | (IX, S) => SIX,
            (IS, other) | (other, IS) => other,
            (a, _) => a,
        }
    }

    /// Returns whether the mode permits changes.
    pub(crate) fn changes(self) -> bool {
        self == Self::Exclusive
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{self, *};

    const ALL: [Mode; 5] = [IntentionShared, IntentionExclusive, Shared, SharedIntentionExclusive, Exclusive];

    #[test]
    fn compatibility_is_that_of_the_textbook() {
        let table = [
            [true, true, true, true, false],
            [true, true, false, false, false],
            [true, false, true, false, false],
            [true, false, false, false, false],
            [false; 5],
        ];
        for (a, row) in ALL.into_iter().zip(table) {
            for (b, goes) in ALL.into_iter().zip(row) {
                assert_eq!(a.goes_with(b), goes, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn both_together_keep_out_what_either_does_and_no_more() {
        for a in ALL {
            for b in ALL {
                let both = a.and(b);
                assert_eq!(both, b.and(a));
                for other in ALL {
                    let either = a.goes_with(other) && b.goes_with(other);
                    assert_eq!(both.goes_with(other), either, "{a:?} {b:?} {other:?}");
                }
            }
        }
    }
}
