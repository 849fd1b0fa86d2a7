//! SQLite's locks of the database file, with what goes along with them.

use std::ffi::c_int;

use duralite_logfmt::guard::{DatabaseHeader, JournalKind};
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;

use super::{Db, Serving};
use crate::errors::Failure;
use crate::guard::journal;

/// Takes a lock.
///
/// Whoever has the WAL to itself is alone by the log's own account too ([`Attachment::take_alone`]): the base's
/// bookkeeping is wrong in a child of a process that had the database open.
///
/// [`Attachment::take_alone`]: crate::attachment::Attachment::take_alone
pub fn lock(db: &Db, level: c_int) -> Result<c_int, Failure> {
    let exclusive = level >= ffi::LOCK_EXCLUSIVE;
    let attachment = if exclusive { db.attached() } else { None };
    if exclusive {
        db.hold_off_checkpoints();
    }
    // Who writes with a rollback journal has the database to itself, and the log along with others.
    let shared = db.attached_for(Serving::Journal).is_some();
    let alone = match &attachment {
        Some(attachment) if !shared => attachment.take_alone(SegmentUse::Wal),
        _ => Ok(true),
    };
    let code = match &alone {
        Ok(true) => base_lock(db, level),
        Ok(false) => ffi::BUSY,
        Err(failure) => db.sqlite.fail(failure),
    };
    let begins = db.lock_level() == ffi::LOCK_NONE;
    if code == ffi::OK {
        db.set_lock_level(level.max(db.lock_level()));
        if begins && let Err(failure) = journal::renew(db) {
            unlock(db, ffi::LOCK_NONE);
            return Err(failure);
        }
    } else if let Some(attachment) = attachment.filter(|_| !shared) {
        db.set_refused_exclusive(attachment.log().segment_path().to_path_buf());
        attachment.share();
    }
    db.allow_checkpoints();
    Ok(code)
}

/// Goes back from EXCLUSIVE, which SQLite is told that it has not got, to what it had before. It keeps SHARED all the time, so
/// that nobody else writes; RESERVED somebody else may take meanwhile, who then cannot commit before SQLite here has ended its
/// transaction.
pub fn refuse_exclusive(db: &Db, before: c_int) {
    if before < ffi::LOCK_EXCLUSIVE
        && db.base.unlock(ffi::LOCK_SHARED) == ffi::OK
        && before > ffi::LOCK_SHARED
    {
        let _ = db.base.lock(ffi::LOCK_RESERVED);
    }
    db.set_lock_level(before);
    db.allow_checkpoints();
}

/// SHARED may be in the way of somebody who opens or closes the log just now, and is done in a moment.
fn base_lock(db: &Db, level: c_int) -> c_int {
    let begins = db.lock_level() == ffi::LOCK_NONE && level == ffi::LOCK_SHARED;
    for tries in 0.. {
        let code = db.base.lock(level);
        if !begins || code & 0xff != ffi::BUSY {
            if code == ffi::OK && begins {
                db.patience.renew_at_shared();
            }
            return code;
        }
        let concerns_log = db.is_capable() && may_be_opening(db);
        if !concerns_log || !db.patience.pause(tries) {
            return code;
        }
    }
    ffi::BUSY
}

/// Whether whoever is in the way may be opening or closing the log. With a rollback journal EXCLUSIVE is also how SQLite
/// commits: then who has the log attached already is busy, as without one.
fn may_be_opening(db: &Db) -> bool {
    match db.header() {
        Ok(DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. }) => db.attached().is_none(),
        Ok(DatabaseHeader::Guarded { .. } | DatabaseHeader::Plain { wal: true, .. }) => true,
        _ => false,
    }
}

/// Gives a lock back.
pub fn unlock(db: &Db, level: c_int) -> c_int {
    if level < ffi::LOCK_EXCLUSIVE {
        db.detach_lingering();
    }
    let code = db.base.unlock(level);
    db.set_lock_level(level.min(db.lock_level()));
    if level == ffi::LOCK_NONE {
        db.end_outside();
    }
    if level < ffi::LOCK_EXCLUSIVE
        && let Some(attachment) = db.attached()
    {
        attachment.share();
    }
    db.allow_checkpoints();
    code
}
