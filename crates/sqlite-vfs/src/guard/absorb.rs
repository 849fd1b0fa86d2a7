//! Checkpoints the `-wal` file that a program without Duralite left behind: stock SQLite itself does it,
//! through the base VFS.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use duralite_sqlite_ffi as ffi;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::database::Db;
use crate::errors::Failure;
use crate::sqlite::connection::{BusyWait, OwnConnection};

const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether this user may write the `-wal` and its wal-index, as far as they exist.
pub fn may_write(db: &Db) -> bool {
    let may = |end| {
        !matches!(access(db.beside(end), Access::WRITE_OK), Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    };
    may("-wal") && may("-shm")
}

/// Checkpoints and empties the base VFS's `-wal`. Fails with BUSY when another connection uses it.
pub fn checkpoint_base_wal(db: &Db) -> Result<(), Failure> {
    let name = CString::new([b"./".as_slice(), db.path.as_os_str().as_bytes()].concat())
        .map_err(|_| Failure::cannot_open("the path of the database holds a zero byte"))?;
    // SQLite gives absolute paths, which are no URIs. A relative path gets `./` before it.
    let name = if db.path.is_absolute() { &name.as_c_str()[2..] } else { name.as_c_str() };
    let purpose = "cannot checkpoint the ordinary -wal file";
    let parent = db.sqlite.parent.name();
    let stock = OwnConnection::open(&db.sqlite.api, name, parent, BusyWait::polling(BUSY_TIMEOUT), purpose)?;
    stock.run(c"PRAGMA synchronous=FULL")?;
    let busy = stock.run(c"PRAGMA wal_checkpoint(TRUNCATE)")?;
    drop(stock);
    if busy == Some(0) && db.base_wal_bytes()?.unwrap_or(0) == 0 {
        return Ok(());
    }
    Err(Failure::new(
        ffi::BUSY,
        format!(
            "{} has an ordinary -wal file that another program is using without Duralite; close that program",
            db.path.display()
        ),
    ))
}
