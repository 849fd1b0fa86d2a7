//! The guard as it stands in the first page of the database file.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use duralite_format::LogId;
use duralite_format::guard::{DatabaseHeader, HEADER_BYTES};
use duralite_locks::file::Exclusive;
use duralite_sqlite_ffi as ffi;
use duralite_wal::LogError;

use crate::attachment::Attachment;
use crate::database::Db;
use crate::errors::{During, Failure};
use crate::sqlite::base::BaseFile;

/// Proof that the database is this connection's alone. Code that puts a guard on or takes one off has to show
/// it (invariant 2).
pub type Alone<'h> = Exclusive<'h, BaseFile>;

pub fn is_guarded_by(db: &Db, id: LogId) -> Result<bool, Failure> {
    Ok(matches!(db.header()?, DatabaseHeader::Guarded { log_id, .. } if log_id == id))
}

/// Whether the guard that is on is provisional. If so, the log has no commits, and nothing in it or in the
/// database waits for a sync. A guard that is no longer provisional never becomes so again. That it is not
/// provisional does not mean that it is durable.
pub fn is_provisional(db: &Db, attachment: &Attachment) -> Result<bool, Failure> {
    if attachment.is_hardened() {
        return Ok(false);
    }
    let header = db.header()?;
    let id = attachment.id();
    Ok(matches!(header, DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id))
}

/// Refuses a database that has a file beside it with the name of its rollback journal. Lets pass a file that
/// is empty or begins with a zero, as a journal does that counts for nothing. Returns whether there is such a
/// file.
pub fn check_journal(db: &Db) -> Result<bool, Failure> {
    let name = db.beside("-journal");
    let failed =
        |code: i32, what: &str| Failure::new(code, format!("cannot delete {}: {what}", name.display()));
    let mut first = [0];
    match File::open(&name).and_then(|journal| journal.read_at(&mut first, 0)) {
        Ok(0) => Ok(true),
        Ok(_) if first == [0] => Ok(true),
        Ok(_) => Err(failed(ffi::BUSY, "a transaction is using it, or a crash has left it")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(match Failure::of(&LogError::io("open", &name, &error), During::Delete) {
            out_of_descriptors if out_of_descriptors.code == ffi::CANTOPEN => out_of_descriptors,
            other => failed(ffi::IOERR_DELETE, &other.message),
        }),
    }
}

/// Writes and syncs the header as it is to be on disk. Everything else in the file is durable already.
///
/// SQLite goes on as the header reads now, whatever it is told, so a sync that failed is tried again. With
/// the guard in doubt on disk, a rollback journal that comes back with it could not be rolled back. A second
/// sync proves something here, because the bytes are written anew before it. If it fails too, this connection
/// gets no rollback journal any more.
pub fn write_header(db: &Db, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    put_header(db, header)?;
    if db.base.sync(ffi::SYNC_FULL) == ffi::OK {
        return Ok(());
    }
    let synced = put_header(db, header).and_then(|()| sync(db));
    if synced.is_err() {
        db.set_header_in_doubt();
    }
    synced
}

fn sync(db: &Db) -> Result<(), Failure> {
    match db.sync_file(ffi::SYNC_FULL) {
        ffi::OK => Ok(()),
        code => Err(Failure::new(code, format!("cannot sync {}", db.path.display()))),
    }
}

pub fn put_header(db: &Db, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    match db.base.write(header, 0) {
        ffi::OK => Ok(()),
        code => Err(Failure::new(code, format!("cannot write the header of {}", db.path.display()))),
    }
}
