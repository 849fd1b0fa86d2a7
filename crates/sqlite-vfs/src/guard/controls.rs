//! Brings back faults that [`super::opening`] once had, to check that the exploration of schedules finds each
//! of them. This module exists only in builds with the feature `controls`, and no build for users has that
//! feature.
//!
//! The environment variable `LOCKING_CONTROL` names the fault:
//!
//! | value | the fault |
//! | --- | --- |
//! | `lapse` | when SQLite opens the WAL, SHARED is released without SQLite's knowledge, and the header is then read again to decide what serves the WAL |
//! | `absorb` | when SQLite opens the WAL, an ordinary `-wal` is checkpointed; meanwhile EXCLUSIVE is released, and afterwards SQLite still believes that it holds EXCLUSIVE |
//! | `unlocked` | when SQLite opens the WAL, a read-only connection releases SHARED, and goes on even if it does not get SHARED back |

use std::time::Duration;

use duralite_format::guard::DatabaseHeader;
use duralite_locks::file::{Level, LockedFile};

use super::helper;
use super::states::{Raised, raise};
use super::waits::in_use;
use crate::attachment::Entering;
use crate::database::{Db, Prepared};
use crate::errors::Failure;

/// A fault to bring back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control {
    Lapse,
    Absorb,
    Unlocked,
}

fn control() -> Option<Control> {
    match std::env::var("LOCKING_CONTROL").ok()?.as_str() {
        "lapse" => Some(Control::Lapse),
        "absorb" => Some(Control::Absorb),
        "unlocked" => Some(Control::Unlocked),
        _ => None,
    }
}

fn is_in_wal_mode(db: &Db) -> Result<bool, Failure> {
    Ok(matches!(db.header()?, DatabaseHeader::Plain { wal: true, .. }))
}

fn has_base_wal(db: &Db) -> Result<bool, Failure> {
    Ok(db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0))
}

/// Returns whether SQLite gets SHARED although this VFS has prepared no log, because of the control. The log
/// is then opened only when SQLite opens the WAL.
pub fn leaves_log_for_later(db: &Db) -> Result<bool, Failure> {
    if !is_in_wal_mode(db)? {
        return Ok(false);
    }
    Ok(match control() {
        Some(Control::Lapse) => !db.read_only && !has_base_wal(db)?,
        Some(Control::Absorb) => !db.read_only && has_base_wal(db)?,
        Some(Control::Unlocked) => db.read_only,
        None => false,
    })
}

/// Returns what serves the WAL, as the faulty code decided it. Returns `None` if the control does not apply.
pub fn open_wal(db: &Db) -> Result<Option<Prepared>, Failure> {
    let served = match control() {
        Some(Control::Lapse) if !db.read_only => lapse(db)?,
        Some(Control::Absorb) if !db.read_only && db.lock.believed() == Level::Exclusive => {
            absorb_unlocked(db)?
        }
        Some(Control::Unlocked) if db.read_only && is_in_wal_mode(db)? => {
            let _ = db.base.unlock(Level::None);
            let writer = helper::writer(db, "cannot open the log");
            let is_locked = lock_again(db);
            if writer.is_some() && is_locked { None } else { Some(Prepared::Base) }
        }
        _ => None,
    };
    Ok(served)
}

fn lock_again(db: &Db) -> bool {
    (0..5).any(|_| {
        let is_locked = db.base.lock(Level::Shared).is_ok();
        if !is_locked {
            std::thread::sleep(Duration::from_millis(50));
        }
        is_locked
    })
}

fn lapse(db: &Db) -> Result<Option<Prepared>, Failure> {
    if !is_in_wal_mode(db)? || has_base_wal(db)? {
        return Ok(None);
    }
    let _ = db.base.unlock(Level::None);
    std::thread::sleep(Duration::from_millis(1));
    if !lock_again(db) {
        return Err(in_use(db));
    }
    let header = db.header()?;
    Ok(matches!(header, DatabaseHeader::Plain { wal: false, .. }).then_some(Prepared::Base))
}

fn absorb_unlocked(db: &Db) -> Result<Option<Prepared>, Failure> {
    if !is_in_wal_mode(db)? {
        return Ok(None);
    }
    if has_base_wal(db)? && db.base.level() == Some(Level::Exclusive) {
        let _ = db.base.unlock(Level::Shared);
        helper::checkpoint_base_wal(db)?;
        let _ = db.base.lock(Level::Exclusive);
        return Err(in_use(db));
    }
    // The fault: this code assumes that the file holds the lock that SQLite believes in.
    let Ok(placement) = db.placement() else { return Ok(None) };
    for name in ["-wal", "-shm"] {
        drop(std::fs::remove_file(db.beside(name)));
    }
    match raise(db, &db.lock.believed_exclusive(), placement)? {
        Raised::Log(attachment) => Ok(Some(Prepared::Log(attachment.enter(Entering::WalAlone)?))),
        Raised::LookAgain => Err(in_use(db)),
    }
}
