//! The calls that make up a schedule.

use std::fmt;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($value:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($value,)* }

        impl $name {
            /// Returns the value with this number; the first value if no value has this number.
            pub fn of(number: u8) -> Self {
                const ALL: &[$name] = &[$($name::$value,)*];
                ALL.get(usize::from(number)).copied().unwrap_or(ALL[0])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$value => $text,)* })
            }
        }
    };
}

words! {
    /// A call of a process.
    Call {
        Other = "other",
        Open = "open",
        Close = "close",
        Read = "read",
        Write = "write",
        Truncate = "truncate",
        Lock = "lock",
        Unlock = "unlock",
        CheckReserved = "check reserved",
        Control = "control",
        ShmMap = "shm map",
        ShmLock = "shm lock",
        ShmUnmap = "shm unmap",
        Access = "access",
        Delete = "delete",
        Sleep = "sleep",
        Nap = "nap",
        Operation = "operation",
        Ended = "ended",
        Finding = "FINDING",
        Sync = "sync",
        Store = "store",
        Fence = "fence",
        Fenced = "fenced",
    }
}

words! {
    /// The file that a call works on.
    Kind {
        None = "",
        Database = "db",
        Wal = "-wal",
        Journal = "-journal",
        Shm = "-shm",
        Elsewhere = "other file",
        Log = "log",
    }
}

impl Kind {
    /// Returns the kind of file that has this path.
    pub fn of_path(path: &[u8]) -> Self {
        let ends = |end: &[u8]| path.ends_with(end);
        if ends(b"-wal") {
            Self::Wal
        } else if ends(b"-journal") {
            Self::Journal
        } else if ends(b"-shm") {
            Self::Shm
        } else if ends(b"/db") {
            Self::Database
        } else {
            Self::Elsewhere
        }
    }
}
