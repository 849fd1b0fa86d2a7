//! Takes away rules of the concurrent connections, one at a time, to check that the exploration of schedules
//! finds the fault that each rule prevents. This module exists only in builds with the feature `controls`,
//! and no build for users has that feature.
//!
//! `LOCKING_CONTROL` names the rule:
//!
//! | value | the rule that is taken away |
//! | --- | --- |
//! | `unread` | the pages that a transaction has read count when it is validated (invariant 58) |
//! | `unvalidated` | a transaction is validated before it is published (invariant 59) |
//! | `undropped` | SQLite drops its cache when others have committed (invariant 61) |

/// A rule that can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Unread,
    Unvalidated,
    Undropped,
}

impl Control {
    /// Returns whether this rule is taken away now.
    pub fn is_on(self) -> bool {
        let name = match self {
            Self::Unread => "unread",
            Self::Unvalidated => "unvalidated",
            Self::Undropped => "undropped",
        };
        std::env::var_os("LOCKING_CONTROL").is_some_and(|control| control == name)
    }
}
