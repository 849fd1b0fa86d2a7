//! The roles of processes, and the phases that a process records.

use serde::{Deserialize, Serialize};

/// The role of a process: what it does with the database for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Commits. It holds the WRITE lock or queues for it, and leads or follows a group commit.
    Writer,
    /// Commits concurrently with other processes (`concurrent=on`), in its lane (see the module
    /// `lanes`).
    Concurrent,
    /// Makes checkpoints, in each mode.
    Checkpointer,
    /// Opens the database, commits once or only reads, and closes it.
    Opener,
    /// Reads.
    Reader,
    /// Forks with its connection open. Its children open connections of their own and commit.
    Forker,
    /// Opens the database read-only, reads, and closes it again.
    Onlooker,
    /// Stays connected and does nothing. The run kills it only together with all other processes.
    Keeper,
    /// Checks the database. The run kills it only together with all other processes.
    Auditor,
}

impl Role {
    /// All roles, in the order of [`Role::index`].
    pub const ALL: [Self; 9] = [
        Self::Writer,
        Self::Concurrent,
        Self::Checkpointer,
        Self::Opener,
        Self::Reader,
        Self::Forker,
        Self::Onlooker,
        Self::Keeper,
        Self::Auditor,
    ];

    /// Returns the role's index in [`Role::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the role's name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Concurrent => "concurrent writer",
            Self::Checkpointer => "checkpointer",
            Self::Opener => "opener",
            Self::Reader => "reader",
            Self::Forker => "forker",
            Self::Onlooker => "onlooker",
            Self::Keeper => "keeper",
            Self::Auditor => "auditor",
        }
    }

    /// Returns the phases at which the run may aim when it kills a process of this role.
    #[must_use]
    pub fn moments(self) -> &'static [Phase] {
        match self {
            Self::Writer => &[Phase::Starting, Phase::Opening, Phase::Begin, Phase::Commit],
            Self::Concurrent => &[
                Phase::Opening,
                Phase::Begin,
                Phase::Changing,
                Phase::Changing,
                Phase::Commit,
                Phase::Commit,
            ],
            Self::Checkpointer => &[Phase::Opening, Phase::Checkpoint],
            Self::Opener => &[Phase::Opening, Phase::Opening, Phase::Commit, Phase::Closing, Phase::Closing],
            Self::Reader => &[Phase::Opening, Phase::Reading],
            Self::Forker => &[Phase::Opening, Phase::Begin, Phase::Commit, Phase::Forking, Phase::Forking],
            Self::Onlooker => &[Phase::Opening, Phase::Reading, Phase::Closing],
            Self::Keeper | Self::Auditor => &[Phase::Opening],
        }
    }
}

/// The phase that a process last noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The process has not begun its role yet.
    Starting,
    /// The process opens the database, and attaches or recovers the log.
    Opening,
    /// The process is connected, and is between two actions.
    Ready,
    /// The process asks for the WRITE lock.
    Begin,
    /// The process changes rows.
    Changing,
    /// The process commits.
    Commit,
    /// The process rolls back or vacuums.
    Housekeeping,
    /// The process makes a checkpoint.
    Checkpoint,
    /// The process reads.
    Reading,
    /// The process closes its connection, which may be the last one.
    Closing,
    /// The process has forked, and may be waiting for its child.
    Forking,
}

impl Phase {
    const ALL: [Self; 11] = [
        Self::Starting,
        Self::Opening,
        Self::Ready,
        Self::Begin,
        Self::Changing,
        Self::Commit,
        Self::Housekeeping,
        Self::Checkpoint,
        Self::Reading,
        Self::Closing,
        Self::Forking,
    ];

    /// Returns the phase with this number.
    #[must_use]
    pub fn numbered(number: u64) -> Self {
        usize::try_from(number).ok().and_then(|at| Self::ALL.get(at).copied()).unwrap_or(Self::Starting)
    }
}
