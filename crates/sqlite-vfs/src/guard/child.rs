//! The rollback journals that a super-journal names.
//!
//! When SQLite has rolled back one of several databases, it deletes the super-journal unless the journal of
//! another database still names it. If SQLite deleted the super-journal too early, the transaction would
//! count as committed in the other database (invariant 23). SQLite looks for the other database's journal by
//! its path, and that database may not be open. So this module looks at the database file beside that path.
//! The guard of that file says whether the journal is in a log.

use std::cell::Cell;
use std::ffi::{CString, OsStr, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::rollback::{RollbackJournal, counts};
use duralite_wal::placement::pause_for;
use duralite_wal::{DatabaseIdentity, Log};

use super::places;
use crate::attachment::{Attachment, Entering, Use};
use crate::database::OpenedFile;
use crate::errors::{During, Failure};
use crate::registration::Registration;
use crate::settings::Settings;
use crate::sqlite::base::OwnFile;

/// The end of every journal's name.
const END: &[u8] = b"-journal";

thread_local! {
    /// Whether this thread is reading a super-journal, and will look for the journals that the super-journal
    /// names.
    static READS_SUPER_JOURNAL: Cell<bool> = const { Cell::new(false) };
}

/// Notes that SQLite opens a super-journal, for reading or for writing.
pub fn super_journal_opened(for_reading: bool) {
    let _ = READS_SUPER_JOURNAL.try_with(|reads| reads.set(for_reading));
}

/// Returns the database that a journal with this path belongs to, if this thread is reading a super-journal.
pub fn database_of(journal: &Path) -> Option<PathBuf> {
    if !READS_SUPER_JOURNAL.try_with(Cell::get).unwrap_or(true) {
        return None;
    }
    let database = journal.as_os_str().as_bytes().strip_suffix(END)?;
    Some(OsStr::from_bytes(database).into())
}

/// A journal that a super-journal names, opened only for reading.
pub struct ChildJournal {
    journal: Arc<dyn RollbackJournal>,
    registration: &'static Registration,
    /// Keeps the log attached. This field is declared before the file, so the log is detached before the file
    /// is closed.
    _used: Use,
    _file: OwnFile,
}

impl ChildJournal {
    /// Returns the journal of this database in its log. Returns `None` if the journal is in a file, or does
    /// not exist.
    pub fn find(registration: &'static Registration, database: &Path) -> Result<Option<Self>, Failure> {
        let path = CString::new(database.as_os_str().as_bytes());
        let Ok(path) = path.map_err(drop) else { return Ok(None) };
        let Some(file) = OwnFile::open(registration.sqlite.parent, &path) else {
            // A database that cannot be opened just now may have such a journal, so the super-journal stays
            // (invariant 23).
            return match database.try_exists() {
                Ok(false) => Ok(None),
                _ => Err(Failure::cannot_open(format!("cannot open {}", database.display()))),
            };
        };
        let mut header = [0; HEADER_BYTES];
        let code = file.base().read(&mut header, 0);
        if code == ffi::IOERR_SHORT_READ {
            return Ok(None);
        }
        if code != ffi::OK {
            return Err(Failure::new(code, format!("cannot read the header of {}", database.display())));
        }
        let id = match guard::inspect(&header) {
            // While a guard is provisional, its log has no journal, and may not even exist. So there is no
            // journal to find.
            DatabaseHeader::Guarded { provisional: true, .. } => return Ok(None),
            DatabaseHeader::Guarded { log_id, .. } => log_id,
            DatabaseHeader::Damaged => {
                let message = format!("the guard in the first page of {} is damaged", database.display());
                return Err(Failure::cannot_open(message));
            }
            _ => return Ok(None),
        };
        let failed = |error| Failure::of(&error, During::Open);
        let identity = DatabaseIdentity::of(database).map_err(failed)?;
        let settings =
            registration.databases_now().iter().map(|db| db.settings().clone()).collect::<Vec<_>>();
        let settings = settings.into_iter().map(Settings::not_given);
        let opened = OpenedFile::of(file.base(), database);
        let database_file = opened.mappable(file.base(), database);
        let mut missing = None;
        for settings in settings.chain([Settings::default()]) {
            let placement = match places::find_with(&settings, database, &identity, id) {
                Ok(found) => found.placement,
                Err(failure) => {
                    missing = Some(failure);
                    continue;
                }
            };
            let pause = pause_for(std::time::Duration::from_millis(250));
            let attach = || {
                Log::attach(&database_file, &placement, &settings.options, &identity, id, &pause)
                    .map_err(failed)
            };
            let attachment = Attachment::get(&identity, id, &settings, &pause, attach)?;
            let Some(journal) = attachment.rollback_journal() else { return Ok(None) };
            let used = attachment.enter(Entering::Journal)?;
            return Ok(Some(Self { journal, registration, _used: used, _file: file }));
        }
        Err(missing.unwrap_or_else(|| Failure::cannot_open(format!("no log of {}", database.display()))))
    }

    /// Returns whether the journal may be hot.
    pub fn counts(&self) -> Result<bool, Failure> {
        counts(&self.journal).map_err(|error| Failure::of(&error, During::Open))
    }

    /// Fills `buf` as `xRead` does.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> c_int {
        match self.journal.read(buf, offset) {
            Ok(count) if count < buf.len() => {
                buf[count..].fill(0);
                ffi::IOERR_SHORT_READ
            }
            Ok(_) => ffi::OK,
            Err(error) => self.registration.sqlite.fail(&Failure::of(&error, During::Read)),
        }
    }

    /// Returns the size of the journal in bytes.
    pub fn size(&self) -> Result<u64, c_int> {
        let size = self.journal.size().map(|size| size.unwrap_or(0));
        size.map_err(|error| self.registration.sqlite.fail(&Failure::of(&error, During::Size)))
    }
}

/// Returns whether this path is that of a database file that is not empty.
pub fn is_database(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
}
