//! Takes rules of this module back one by one, so that the exploration of schedules has to find each fault again. It exists
//! only in builds with the feature `controls`, and nothing that users load has that feature.
//!
//! `LOCKING_CONTROL` names the rule:
//!
//! | value | what is taken back |
//! | --- | --- |
//! | `unread` | what a transaction has read does not count when it is validated (invariant 58) |
//! | `unvalidated` | a transaction is published first, and validated then (invariant 59) |
//! | `undropped` | SQLite keeps its cache when others have committed (invariant 61) |

/// A rule that is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Unread,
    Unvalidated,
    Undropped,
}

impl Control {
    /// Whether this rule is taken back.
    pub fn is_on(self) -> bool {
        let name = match self {
            Self::Unread => "unread",
            Self::Unvalidated => "unvalidated",
            Self::Undropped => "undropped",
        };
        std::env::var_os("LOCKING_CONTROL").is_some_and(|control| control == name)
    }
}
