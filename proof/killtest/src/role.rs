//! What a process does, and what it is doing at the moment.

/// What a process does with the database for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Commits: holds the WRITE lock, queues for it, leads or follows a group commit.
    Writer,
    /// Checkpoints, in each mode.
    Checkpointer,
    /// Opens, commits once or only reads, and closes.
    Opener,
    /// Reads.
    Reader,
    /// Forks with its connection open; its children open their own, and commit.
    Forker,
    /// Reads through connections that are opened read-only, and closes them.
    Onlooker,
    /// Stays connected and does nothing; killed only together with all others.
    Keeper,
    /// Checks what is there; killed only together with all others.
    Auditor,
}

impl Role {
    /// All, in the order of [`Role::index`].
    pub const ALL: [Self; 8] = [
        Self::Writer,
        Self::Checkpointer,
        Self::Opener,
        Self::Reader,
        Self::Forker,
        Self::Onlooker,
        Self::Keeper,
        Self::Auditor,
    ];

    /// Its place in [`Role::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Its name in arguments and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Checkpointer => "checkpointer",
            Self::Opener => "opener",
            Self::Reader => "reader",
            Self::Forker => "forker",
            Self::Onlooker => "onlooker",
            Self::Keeper => "keeper",
            Self::Auditor => "auditor",
        }
    }

    /// The role with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The moments at which a process of this role may be aimed at.
    #[must_use]
    pub fn moments(self) -> &'static [Phase] {
        match self {
            Self::Writer => &[Phase::Starting, Phase::Opening, Phase::Begin, Phase::Commit],
            Self::Checkpointer => &[Phase::Opening, Phase::Checkpoint],
            Self::Opener => &[Phase::Opening, Phase::Opening, Phase::Commit, Phase::Closing, Phase::Closing],
            Self::Reader => &[Phase::Opening, Phase::Reading],
            Self::Forker => &[Phase::Opening, Phase::Begin, Phase::Commit, Phase::Forking, Phase::Forking],
            Self::Onlooker => &[Phase::Opening, Phase::Reading, Phase::Closing],
            Self::Keeper | Self::Auditor => &[Phase::Opening],
        }
    }
}

/// What a process last said that it is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It has not come to its role yet.
    Starting,
    /// It opens the database, and attaches or recovers its log.
    Opening,
    /// It is connected and between two things.
    Ready,
    /// It asks for the WRITE lock.
    Begin,
    /// It changes rows.
    Changing,
    /// It commits.
    Commit,
    /// It rolls back, or vacuums.
    Housekeeping,
    /// It checkpoints.
    Checkpoint,
    /// It reads.
    Reading,
    /// It closes, and may be the last.
    Closing,
    /// It has forked, and may wait for its child.
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

    /// The phase with this number.
    #[must_use]
    pub fn numbered(number: u64) -> Self {
        usize::try_from(number).ok().and_then(|at| Self::ALL.get(at).copied()).unwrap_or(Self::Starting)
    }
}
