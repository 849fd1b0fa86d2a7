//! Numbers of `sqlite3.h`.

use std::ffi::c_int;

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: c_int = $value;)*
        /// Every constant by its C name, for the test against the header.
        pub const ALL: &[(&str, c_int)] = &[$((concat!("SQLITE_", stringify!($name)), $name)),*];
    };
}

constants! {
    OK = 0;
    ERROR = 1;
    BUSY = 5;
    BUSY_SNAPSHOT = BUSY | (2 << 8);
    LOCKED = 6;
    NOMEM = 7;
    READONLY = 8;
    READONLY_DBMOVED = READONLY | (4 << 8);
    READONLY_CANTINIT = READONLY | (5 << 8);
    IOERR = 10;
    CORRUPT = 11;
    NOTFOUND = 12;
    FULL = 13;
    CANTOPEN = 14;
    CONSTRAINT = 19;
    MISUSE = 21;
    PROTOCOL = 15;
    NOTADB = 26;
    NOTICE = 27;
    WARNING = 28;
    ROW = 100;
    DONE = 101;
    OK_LOAD_PERMANENTLY = 256;
    IOERR_READ = IOERR | (1 << 8);
    IOERR_SHORT_READ = IOERR | (2 << 8);
    IOERR_WRITE = IOERR | (3 << 8);
    IOERR_FSYNC = IOERR | (4 << 8);
    IOERR_TRUNCATE = IOERR | (6 << 8);
    IOERR_FSTAT = IOERR | (7 << 8);
    IOERR_UNLOCK = IOERR | (8 << 8);
    IOERR_DELETE = IOERR | (10 << 8);
    IOERR_BLOCKED = IOERR | (11 << 8);
    IOERR_ACCESS = IOERR | (13 << 8);
    IOERR_CHECKRESERVEDLOCK = IOERR | (14 << 8);
    IOERR_LOCK = IOERR | (15 << 8);
    IOERR_CLOSE = IOERR | (16 << 8);
    IOERR_SHMLOCK = IOERR | (20 << 8);
    IOERR_SHMMAP = IOERR | (21 << 8);
    IOERR_MMAP = IOERR | (24 << 8);
    OPEN_READONLY = 0x0000_0001;
    OPEN_READWRITE = 0x0000_0002;
    OPEN_CREATE = 0x0000_0004;
    OPEN_URI = 0x0000_0040;
    OPEN_MAIN_DB = 0x0000_0100;
    OPEN_MAIN_JOURNAL = 0x0000_0800;
    OPEN_SUPER_JOURNAL = 0x0000_4000;
    OPEN_WAL = 0x0008_0000;
    OPEN_NOMUTEX = 0x0000_8000;
    OPEN_PRIVATECACHE = 0x0004_0000;
    ACCESS_EXISTS = 0;
    LOCK_NONE = 0;
    LOCK_SHARED = 1;
    LOCK_RESERVED = 2;
    LOCK_PENDING = 3;
    LOCK_EXCLUSIVE = 4;
    SYNC_NORMAL = 2;
    SYNC_FULL = 3;
    IOCAP_ATOMIC = 0x0000_0001;
    IOCAP_ATOMIC64K = 0x0000_0100;
    IOCAP_BATCH_ATOMIC = 0x0000_4000;
    IOCAP_POWERSAFE_OVERWRITE = 0x0000_1000;
    FCNTL_LOCKSTATE = 1;
    FCNTL_SIZE_HINT = 5;
    FCNTL_OVERWRITE = 11;
    FCNTL_BUSYHANDLER = 15;
    FCNTL_HAS_MOVED = 20;
    FCNTL_LOCK_TIMEOUT = 34;
    FCNTL_CKPT_DONE = 37;
    FCNTL_EXTERNAL_READER = 40;
    FCNTL_VFSNAME = 12;
    FCNTL_PRAGMA = 14;
    FCNTL_COMMIT_PHASETWO = 22;
    FCNTL_VFS_POINTER = 27;
    FCNTL_PDB = 30;
    UTF8 = 1;
    INNOCUOUS = 0x0020_0000;
    DIRECTONLY = 0x0008_0000;
    VTAB_DIRECTONLY = 3;
    INDEX_CONSTRAINT_EQ = 2;
    SHM_UNLOCK = 1;
    SHM_LOCK = 2;
    SHM_SHARED = 4;
    SHM_EXCLUSIVE = 8;
}
