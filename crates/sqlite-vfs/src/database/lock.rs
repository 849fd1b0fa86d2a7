//! SQLite's locks of the database file, and what this VFS does when SQLite takes or releases such a lock.

use std::ffi::c_int;

use duralite_locks::file::{Code, Level};
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;

use super::{Db, Serving};

/// Takes a lock stronger than SHARED for SQLite, or takes SHARED again if SQLite holds SHARED already.
/// (`guard::begin` takes the first SHARED.)
pub fn lock(db: &Db, level: Level) -> c_int {
    if level >= Level::Exclusive {
        return lock_exclusive(db);
    }
    let code = code_of(db.lock.lock_for_sqlite(level));
    if code == ffi::OK {
        db.forget_prepared(db.lock.believed());
    }
    code
}

/// Takes EXCLUSIVE for SQLite. A connection that has the WAL open must also be the log's only user according
/// to the log itself ([`Attachment::take_alone`]). The base VFS's bookkeeping is not enough, because that
/// bookkeeping is wrong in a child of a process that had the database open.
///
/// [`Attachment::take_alone`]: crate::attachment::Attachment::take_alone
fn lock_exclusive(db: &Db) -> c_int {
    db.hold_off_checkpoints();
    // While a connection writes with a rollback journal, no other connection uses the database file, but
    // others may have the log attached. So such a connection need not be the log's only user.
    let serving = db.serving().filter(|(_, serving)| *serving != Serving::Journal);
    let attachment = serving.map(|(attachment, _)| attachment);
    let alone = attachment.as_ref().map_or(Ok(true), |attachment| attachment.take_alone(SegmentUse::Wal));
    let code = match &alone {
        Ok(true) => code_of(db.lock.lock_for_sqlite(Level::Exclusive)),
        Ok(false) => ffi::BUSY,
        Err(failure) => db.sqlite.fail(failure),
    };
    if code == ffi::OK {
        db.forget_prepared(Level::Exclusive);
    } else if let Some(attachment) = attachment {
        db.set_refused_exclusive(attachment.log().segment_path().to_path_buf());
        attachment.share();
    }
    db.allow_checkpoints();
    code
}

/// Tells SQLite that it did not get EXCLUSIVE. SQLite then believes that it holds `before`.
pub fn refuse_exclusive(db: &Db, before: Level) {
    db.lock.refuse_exclusive(before);
    db.allow_checkpoints();
}

/// Gives a lock back.
pub fn unlock(db: &Db, level: Level) -> c_int {
    if level < Level::Exclusive {
        db.detach_lingering();
    }
    if level == Level::None {
        db.forget_prepared(level);
    }
    let leaves_wal = db.end_leaving_wal() && level == Level::Shared;
    let code = if leaves_wal {
        // SQLite is about to change the mode in the header. If this function unlocked now, other connections
        // could open the database before the change, and make a `-wal` that this SQLite no longer looks for.
        // So keep the lock until SQLite has ended the transaction that changes the mode (invariant 46).
        db.lock.keep_for_sqlite(level);
        ffi::OK
    } else {
        code_of(db.lock.unlock_for_sqlite(level))
    };
    if level == Level::None {
        db.end_outside();
    }
    if level < Level::Exclusive
        && let Some(attachment) = db.attached()
    {
        attachment.share();
    }
    db.allow_checkpoints();
    code
}

fn code_of(result: Result<(), Code>) -> c_int {
    result.err().unwrap_or(ffi::OK)
}
