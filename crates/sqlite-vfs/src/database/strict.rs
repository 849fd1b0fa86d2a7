//! `strict=on`: refuses an operation that plain SQLite would serve, and says why. `replicated=on` refuses the
//! transactions that `strict=on` refuses, and also those whose rollback journal a log keeps.
//!
//! When a database is opened, it is not known whether the database will be in WAL mode. `PRAGMA
//! journal_mode=WAL` comes later, and is itself a transaction with a rollback journal, which writes page 1
//! and nothing else. So an application may open and read a database outside WAL mode, and this module permits
//! that pragma. It refuses every other transaction on such a database before the transaction changes
//! anything. Normally it does so when SQLite opens the journal. If the journal is in memory, or under
//! EXCLUSIVE, it does so when SQLite first writes to the database. Two kinds of transactions with a rollback
//! journal are allowed: those whose journal a log keeps, and the transaction that makes the database.

use std::path::Path;

use duralite_format::guard::{DatabaseHeader, VERSIONS};
use duralite_locks::file::Level;
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::media;

use super::Db;
use crate::errors::Failure;
use crate::settings::{REPLICATED, STRICT, Settings};

/// The format versions (bytes 18 and 19 of page 1) in WAL mode.
const WAL_VERSIONS: [u8; 2] = [2, 2];
/// Journal modes with a rollback journal, which a log may keep.
const ROLLBACK_MODES: [&str; 3] = ["delete", "truncate", "persist"];
/// Journal modes in which Duralite has nothing to do.
const OTHER_MODES: [&str; 2] = ["memory", "off"];

/// The setting that refuses something.
#[derive(Clone, Copy)]
enum Refuser {
    Strict,
    /// `replicated=on`, which refuses a transaction that no log serves as a WAL, because the archive would
    /// never get that transaction.
    Replicated,
}

impl Refuser {
    fn setting(self) -> &'static str {
        match self {
            Self::Strict => STRICT,
            Self::Replicated => REPLICATED,
        }
    }

    /// Returns a phrase that tells what would become of the operation without the refusal.
    fn outcome(self) -> &'static str {
        match self {
            Self::Strict => "would be plain SQLite",
            Self::Replicated => "would not get into the archive",
        }
    }
}

fn refused(who: Refuser, path: &Path, why: &str) -> Failure {
    let (setting, path, outcome) = (who.setting(), path.display(), who.outcome());
    Failure::cannot_open(format!("{setting}=on refuses {path}, which {outcome}: {why}"))
}

/// Returns the setting that refuses transactions with a rollback journal, or `None` if none does. `strict=on`
/// permits transactions whose journal a log keeps.
fn refuses_journals(db: &Db) -> Option<Refuser> {
    if db.settings().replicated {
        return Some(Refuser::Replicated);
    }
    (db.is_strict() && !db.keeps_rollback_journals()).then_some(Refuser::Strict)
}

/// Checks a database that does not exist yet.
pub fn check_new(settings: &Settings, path: &Path) -> Result<(), Failure> {
    let Some(why) = settings.placement(path).err().filter(|_| settings.strict) else { return Ok(()) };
    // A missing directory has nothing to do with settings, so report it with an error of its own.
    match media::check_parent(path) {
        Err(missing) => Err(Failure::cannot_open(format!("cannot make {}: {missing}", path.display()))),
        Ok(()) => Err(refused(Refuser::Strict, path, &why)),
    }
}

/// Checks a database when it is opened.
pub fn check_open(db: &Db, ignores_wal: bool) -> Result<(), Failure> {
    if !db.is_strict() {
        return Ok(());
    }
    let header = db.header()?;
    let why = match (header, db.placement()) {
        (DatabaseHeader::Guarded { .. }, _) => return Ok(()),
        (_, Err(why)) => why,
        _ if ignores_wal => "immutable and nolock use no write-ahead log",
        (DatabaseHeader::Plain { wal: true, .. }, _) => return Ok(()),
        _ if db.read_only => "it is opened read-only and not in WAL mode",
        _ => return Ok(()),
    };
    Err(refused(Refuser::Strict, &db.path, why))
}

/// Refuses to open a WAL that SQLite would keep in an ordinary `-wal` file.
pub fn check_wal(db: &Db) -> Result<(), Failure> {
    let who = if db.is_strict() {
        Refuser::Strict
    } else if !db.read_only && db.settings().replicated {
        Refuser::Replicated
    } else {
        return Ok(());
    };
    let why = match db.placement() {
        Err(why) => why,
        Ok(_) if db.read_only => "it is opened read-only, and no log is in use",
        Ok(_) if db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0) && db.reserves_bytes()? => {
            "it has an ordinary -wal file; to checkpoint that file, open the database with strict=off \
             through the VFS that fills the bytes at the ends of its pages (cksumvfs), and close the \
             database in all programs"
        }
        Ok(_) if db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0) => {
            "it has an ordinary -wal file that this user may not write, so this user can only read the \
             database, without a log"
        }
        Ok(_) => "its first page does not say that it is in WAL mode",
    };
    Err(refused(who, &db.path, why))
}

/// Refuses to open a rollback journal under RESERVED. This permits `PRAGMA journal_mode=WAL`, which opens its
/// journal under EXCLUSIVE.
pub fn check_journal(db: &Db, journal: &Path) -> Result<(), Failure> {
    if db.lock.believed() != Level::Reserved || journal != db.beside("-journal") {
        return Ok(());
    }
    refuses_journals(db).map_or(Ok(()), |who| Err(not_wal(db, who)))
}

/// Refuses the first write of a transaction with a rollback journal, unless the transaction sets WAL mode.
/// After the refusal SQLite rolls back, and writes what the file holds already. So this function permits a
/// write that changes nothing.
pub fn check_write(db: &Db, offset: u64, data: &[u8]) -> Result<(), Failure> {
    if !db.lock.in_rollback_transaction() {
        return Ok(());
    }
    db.note_plain_write();
    if db.journal.is_open() || db.journal.makes_database() {
        return Ok(());
    }
    let who = match db.is_strict() {
        true => Refuser::Strict,
        false if db.settings().replicated => Refuser::Replicated,
        false => return Ok(()),
    };
    let stays_wal = match data.get(VERSIONS).filter(|_| offset == 0) {
        Some(versions) => versions == WAL_VERSIONS,
        None => {
            matches!(db.header()?, DatabaseHeader::Guarded { .. } | DatabaseHeader::Plain { wal: true, .. })
        }
    };
    let mut there = vec![0; data.len()];
    if stays_wal || db.read(&mut there, offset)? == ffi::OK && there == data {
        return Ok(());
    }
    Err(not_wal(db, who))
}

/// Refuses to leave WAL mode.
pub fn check_pragma(db: &Db, name: &str, value: Option<&str>) -> Result<(), Failure> {
    let Some(mode) = value.filter(|_| name == "journal_mode").map(str::to_lowercase) else { return Ok(()) };
    let who = if ROLLBACK_MODES.contains(&mode.as_str()) {
        refuses_journals(db)
    } else if OTHER_MODES.contains(&mode.as_str()) {
        refuses_journals(db).or(db.is_strict().then_some(Refuser::Strict))
    } else {
        None
    };
    who.map_or(Ok(()), |who| {
        let (setting, path, outcome) = (who.setting(), db.path.display(), who.outcome());
        let message = format!("{setting}=on refuses journal_mode={mode}: {path} {outcome}");
        Err(Failure::new(ffi::ERROR, message))
    })
}

fn not_wal(db: &Db, who: Refuser) -> Failure {
    let (setting, path, outcome) = (who.setting(), db.path.display(), who.outcome());
    let message = format!(
        "{setting}=on refuses to write to {path}: it is not in WAL mode, so the commit {outcome}; use PRAGMA \
         journal_mode=WAL first, or open the database with {setting}=off"
    );
    Failure::new(ffi::READONLY, message)
}
