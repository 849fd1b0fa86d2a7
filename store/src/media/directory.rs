//! A store in a directory. The pages are in the file `pages`, the log is in `log` or `log.nvram`, and `lock` keeps
//! other processes out.
//!
//! Invariant 75: if the log is in another directory, the log's name contains the log's number, which the store draws at
//! random and keeps in its page file. So a store never writes to the log of another store, and never replaces or
//! deletes it. This holds even if the other store was at the same path earlier, or if one store was restored from a
//! backup of the other.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_medium::block::{Block, BlockOptions, FileBlock, sync_directory};
use duralite_medium::{FileNvm, MapOptions, Nvm};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::{DirectoryLock, Media, WhichLog, random};
use crate::backup::{not_empty, prepare};
use crate::error::Error;
use crate::format::log_seed;
use crate::options::{LogMedium, Options};
use crate::page_file::newest_head;

const PAGES: &str = "pages";
const UNFINISHED: &str = "pages.new";
/// The name of the page file while it is being copied from a backup or from another store. No user gives this name to a
/// file, so the store may remove a file of this name.
const COPY: &str = "pages.unfinished-copy";
/// The name of a file that is in every backup, and in no store.
pub(crate) const BACKUP: &str = "backup";

/// The endings of the names of logs: on blocks (`log`), and in memory (`log.nvram`).
const KINDS: [&str; 2] = ["log", "log.nvram"];
/// The names of the files that may be in a directory while a store is being made there.
const NAMES: [&str; 5] = [COPY, UNFINISHED, KINDS[0], KINDS[1], DirectoryLock::NAME];

/// The directory of an open store, with its lock.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
    log: LogMedium,
    /// The path of the log, if this process has made one in another directory.
    made_log: Mutex<Option<PathBuf>>,
    lock: Option<DirectoryLock>,
}

impl Directory {
    /// Opens the directory, or makes it if it does not exist, and takes its lock.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::NotAStore`], or an error of the system.
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, Error> {
        if !options.create && !dir.join(PAGES).exists() && !dir.join(BACKUP).exists() {
            return Err(nothing_there(dir));
        }
        let is_new = !dir.exists();
        fs::create_dir_all(dir).map_err(|error| Error::io("making", dir, error))?;
        if is_new && let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_directory(parent).map_err(|error| Error::medium("making the store", error))?;
        }
        check_content(dir)?;
        let lock = Some(DirectoryLock::take(dir)?);
        let it = Self { dir: dir.to_owned(), log: options.log.clone(), made_log: Mutex::default(), lock };
        it.clear_unfinished();
        Ok(it)
    }

    /// Removes the files that an earlier attempt to make a store has left, as far as possible.
    fn clear_unfinished(&self) {
        if !is_unfinished(&self.dir) {
            return;
        }
        let path = self.dir.join(UNFINISHED);
        let has_pages = path.exists();
        // The store makes `UNFINISHED` before it makes a log. So if `UNFINISHED` does not exist, a log in this
        // directory belongs to a complete store.
        let logs: &[&str] = if has_pages { &KINDS } else { &[] };
        // If these pages are a copy, the log that they name may belong to another store. This build gives a copy the
        // name `UNFINISHED` only after it has removed the log's number from the copy. But earlier builds, which did not
        // record `home`, gave a copy that name from the start. So remove the log only if the pages record `home`, or if
        // no store was ever opened with them. In the second case they are not a copy.
        if has_pages
            && let Ok(block) = self.file(&path, false).and_then(|file| blocks(file, &path))
            && let Ok(head) = newest_head(&*block)
            && (head.home != 0 || head.opened == 0)
        {
            let _ = self.remove_log(head.log_seed);
        }
        // Removes the pages last. If a crash interrupts this, the next attempt can still learn from the pages which log
        // it has to remove.
        self.remove_in_order(logs, &[COPY, UNFINISHED]);
    }

    /// Removes files of a store that is being made, as far as possible. The removal of the files in `first` is durable
    /// before a file in `then` is removed.
    fn remove_in_order(&self, first: &[&str], then: &[&str]) {
        for names in [first, then] {
            for name in names {
                let _ = fs::remove_file(self.dir.join(name));
            }
            let _ = sync_directory(&self.dir);
        }
    }

    /// Makes a store in the directory, which was empty before this process took the lock. If making the store fails,
    /// empties the directory again, so that another attempt can use it. This process holds the lock all the time, so it
    /// removes nothing that another process has made.
    pub(crate) fn make<T>(&self, make: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        let dir = &self.dir;
        // Another process may have made a store here before this process took the lock.
        for entry in fs::read_dir(dir).map_err(|error| Error::io("reading", dir, error))? {
            let name = entry.map_err(|error| Error::io("reading", dir, error))?.file_name();
            if name != DirectoryLock::NAME {
                return Err(not_empty(dir));
            }
        }
        let made = make(self);
        if made.is_err() {
            if let Some(log) = self.made_log.lock().take() {
                let _ = fs::remove_file(log);
            }
            // Removes the logs before the pages. If only a log were left, the next attempt would take it for the log of
            // a store. Removes the lock file last, because without it another process can take the lock.
            self.remove_in_order(&KINDS, &[COPY, UNFINISHED, DirectoryLock::NAME]);
        }
        made
    }

    /// Opens a file, or makes it. If `has_to_be_new`, returns an error if the file exists.
    fn file(&self, path: &Path, has_to_be_new: bool) -> Result<File, Error> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).create_new(has_to_be_new).truncate(false);
        let file = options.open(path).map_err(|error| Error::io("opening", path, error))?;
        self.sync(path)?;
        Ok(file)
    }

    /// Copies the pages of a backup or of another store into the directory, as part of making a store. The caller then
    /// makes sure that the copy names no log of another store. After that it calls [`has_copied`](Self::has_copied).
    pub(crate) fn copy_pages(&self, pages: &Path) -> Result<Arc<dyn Block>, Error> {
        let path = self.dir.join(COPY);
        fs::copy(pages, &path).map_err(|error| Error::io("copying", pages, error))?;
        blocks(self.file(&path, false)?, &path)
    }

    /// Renames the copied pages, so that they belong to the store that is being made. From now on, if the attempt is
    /// interrupted, `clear_unfinished` removes the log that they name. The change is durable on return.
    pub(crate) fn has_copied(&self) -> Result<(), Error> {
        let path = self.dir.join(UNFINISHED);
        fs::rename(self.dir.join(COPY), &path).map_err(|error| Error::io("making", &path, error))?;
        self.sync(&path)
    }

    /// Copies the store's log with this number, on blocks or in memory, into the directory of another store.
    pub(crate) fn copy_log(&self, number: u64, is_on_blocks: bool, to: &Path) -> Result<(), Error> {
        let kind = KINDS[usize::from(!is_on_blocks)];
        let path = self.existing_log(number, kind)?;
        fs::copy(&path, to.join(kind)).map_err(|error| Error::io("copying", &path, error))?;
        Ok(())
    }

    /// Returns the path of the log with this number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such log. The error names the file that was looked for.
    fn existing_log(&self, number: u64, kind: &str) -> Result<PathBuf, Error> {
        let LogMedium::Nvram(dir) = &self.log else {
            let path = self.dir.join(kind);
            return if path.exists() { Ok(path) } else { Err(no_log_beside(&path)) };
        };
        let logs = LogsOf::new(dir, &self.dir)?;
        logs.find(number, kind).ok_or_else(|| logs.missing(number, kind))
    }

    /// Opens the file of a log. Returns its path too.
    fn log_file(&self, log: WhichLog, kind: &str) -> Result<(File, PathBuf), Error> {
        let path = match (&self.log, log) {
            (_, WhichLog::Existing(number)) => self.existing_log(number, kind)?,
            (LogMedium::Disk | LogMedium::Emulated, WhichLog::New(_)) => self.dir.join(kind),
            (LogMedium::Nvram(dir), WhichLog::New(number)) => {
                let path = LogsOf::new(dir, &self.dir)?.named(number, kind);
                let file = self.file(&path, true)?;
                *self.made_log.lock() = Some(path.clone());
                return Ok((file, path));
            }
        };
        Ok((self.file(&path, false)?, path))
    }

    fn sync(&self, path: &Path) -> Result<(), Error> {
        let dir = path.parent().unwrap_or(&self.dir);
        sync_directory(dir).map_err(|error| Error::medium("making the store", error))
    }
}

fn blocks(file: File, path: &Path) -> Result<Arc<dyn Block>, Error> {
    let block = FileBlock::open(file, path, &BlockOptions::default());
    Ok(Arc::new(block.map_err(|error| Error::medium(&format!("opening {}", path.display()), error))?))
}

/// Returns the error for a directory without a store, if the options forbid making one.
pub(crate) fn nothing_there(dir: &Path) -> Error {
    let why = "there is no file `pages` in it, and Options::create is false".to_owned();
    Error::NotAStore { path: dir.to_owned(), why }
}

/// Returns the error for a log that is missing from its store's own directory.
fn no_log_beside(path: &Path) -> Error {
    let what = format!(
        "the store's log is not there, at {}; if it is in another directory, as in NVRAM, name that directory, and \
         otherwise restore the store from a backup",
        path.display()
    );
    Error::Invalid { what }
}

/// Like [`prepare`], for a directory in which a store will be made. Also accepts a directory with the files that an
/// interrupted attempt has left.
pub(crate) fn prepare_store(dir: &Path) -> Result<(), Error> {
    if is_unfinished(dir) { Ok(()) } else { prepare(dir) }
}

/// Returns whether a store is being made in the directory, or an attempt to make one was interrupted.
fn is_unfinished(dir: &Path) -> bool {
    !dir.join(PAGES).exists() && [COPY, UNFINISHED].iter().any(|name| dir.join(name).exists())
}

/// Checks that the directory has a store, or that a store can be made there because it contains no other files.
fn check_content(dir: &Path) -> Result<(), Error> {
    let not = |why: &str| Error::NotAStore { path: dir.to_owned(), why: why.to_owned() };
    if dir.join(BACKUP).exists() {
        return Err(not("it is a backup; Store::restore makes a store from it"));
    }
    if dir.join(PAGES).exists() {
        return Ok(());
    }
    let is_being_made = dir.join(UNFINISHED).exists();
    for entry in fs::read_dir(dir).map_err(|error| Error::io("reading", dir, error))? {
        let name = entry.map_err(|error| Error::io("reading", dir, error))?.file_name();
        let shown = name.to_string_lossy();
        if !NAMES.iter().any(|own| *own == name) {
            return Err(not(&format!("it contains {shown}, and no file `pages`")));
        }
        // Invariant 75: this log belongs to a store whose pages are now elsewhere. A new store in this directory would
        // overwrite it.
        if KINDS.iter().any(|log| *log == name) && !is_being_made {
            return Err(not(&format!(
                "it contains {shown}, the log of a store whose file `pages` is not there; put `pages` back, or move \
                 {shown} away"
            )));
        }
    }
    Ok(())
}

impl Media for Directory {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        let (path, unfinished) = (self.dir.join(PAGES), self.dir.join(UNFINISHED));
        let path = if path.exists() { path } else { unfinished };
        blocks(self.file(&path, false)?, &path)
    }

    fn block_log(&self, log: WhichLog) -> Result<Arc<dyn Block>, Error> {
        let (file, path) = self.log_file(log, KINDS[0])?;
        blocks(file, &path)
    }

    fn memory_log(&self, log: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        let (file, path) = self.log_file(log, KINDS[1])?;
        let dax = matches!(self.log, LogMedium::Nvram(_));
        let len = file.metadata().map_err(|error| Error::io("reading", &path, error))?.len();
        let options = MapOptions { capacity: bytes.max(len), dax, ..MapOptions::default() };
        let mapped = FileNvm::map(file, &path, &options);
        Ok(Arc::new(mapped.map_err(|error| Error::medium(&format!("mapping {}", path.display()), error))?))
    }

    fn can_make_log(&self) -> Result<(), Error> {
        // A log in the store's own directory replaces the previous one, so nothing needs to be checked.
        let LogMedium::Nvram(dir) = &self.log else { return Ok(()) };
        let logs = LogsOf::new(dir, &self.dir)?;
        logs.remove_old_probes();
        let path = logs.probe()?;
        let making = |error| Error::io("making a log in", dir, error);
        // Other users may write in the directory too. `create_new` never opens what they have put there, such as a
        // symbolic link.
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(making)?;
        match fs::remove_file(&path) {
            // Another process, whose store has the same path, has mistaken the probe for an old one and removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(making),
        }
    }

    fn remove_log(&self, number: u64) -> Result<(), Error> {
        let logs = match &self.log {
            LogMedium::Nvram(dir) => Some(LogsOf::new(dir, &self.dir)?),
            LogMedium::Disk | LogMedium::Emulated => None,
        };
        // In the store's own directory, a new log would overwrite this one only if both are of the same kind. So always
        // remove this log.
        let find = |kind| match &logs {
            Some(logs) => logs.find(number, kind),
            None => Some(self.dir.join(kind)).filter(|path| number_in(path) == Some(number)),
        };
        for path in KINDS.into_iter().filter_map(find) {
            fs::remove_file(&path).map_err(|error| Error::io("removing", &path, error))?;
            self.sync(&path)?;
        }
        Ok(())
    }

    fn made(&self) -> Result<(), Error> {
        let (path, unfinished) = (self.dir.join(PAGES), self.dir.join(UNFINISHED));
        if !path.exists() {
            fs::rename(&unfinished, &path).map_err(|error| Error::io("making", &path, error))?;
        }
        self.sync(&path)
    }

    fn take_lock(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        self.lock.take().map(|lock| Box::new(lock) as Box<dyn Any + Send + Sync>)
    }
}

/// The largest length of the part of a log's name that is derived from the store's path. If it were longer, the rest of
/// the name might not fit.
const LONGEST_NAME: usize = 200;
/// The ending of the names of probes (see `probe`).
const PROBE: &str = ".probe";

/// The logs of one store, in a directory that many stores may share.
struct LogsOf<'a> {
    store: &'a Path,
    dir: &'a Path,
    /// The beginning of the names of the logs, derived from the store's path. A slash becomes `_2f`, for example.
    stem: String,
}

impl<'a> LogsOf<'a> {
    fn new(dir: &'a Path, store: &'a Path) -> Result<Self, Error> {
        let path = fs::canonicalize(store).map_err(|error| Error::io("finding", store, error))?;
        let bytes = path.as_os_str().as_bytes();
        let mut stem = String::new();
        for byte in bytes.strip_prefix(b"/").unwrap_or(bytes) {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') {
                stem.push(char::from(*byte));
            } else {
                stem.push_str(&format!("_{byte:02x}"));
            }
        }
        if stem.len() > LONGEST_NAME {
            stem = format!("{:032x}", xxh3_128(bytes));
        }
        Ok(Self { store, dir, stem })
    }

    fn named(&self, number: u64, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{}", self.stem, ending(number, kind)))
    }

    /// Returns the path for a probe: an empty file that is made only to show that files can be made in the directory.
    /// No other attempt uses the same path.
    fn probe(&self) -> Result<PathBuf, Error> {
        let number = u64::from_le_bytes(random()?);
        Ok(self.dir.join(format!("{}.{}-{number:016x}{PROBE}", self.stem, std::process::id())))
    }

    /// Removes the probes that interrupted attempts have left, as far as possible.
    fn remove_old_probes(&self) {
        let Ok(entries) = fs::read_dir(self.dir) else { return };
        for entry in entries.flatten() {
            let is_probe = entry.file_name().to_str().is_some_and(|name| self.names_probe(name));
            if is_probe && entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Returns whether a file of this name may be a probe of this store.
    fn names_probe(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.stem).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(PROBE));
        rest.and_then(|rest| rest.split_once('-')).is_some_and(|(process, number)| {
            let is_hex = number.bytes().all(|byte| byte.is_ascii_hexdigit());
            process.parse::<u32>().is_ok() && number.len() == 16 && is_hex
        })
    }

    /// Returns the path of the log with this number, if it exists. The name of a log also contains the path of its
    /// store. The reason is that a copy of a store has the same log number, but must not use the log of the original.
    fn find(&self, number: u64, kind: &str) -> Option<PathBuf> {
        // Earlier builds derived the name of a log only from the store's path.
        let earlier = self.dir.join(format!("{}.{kind}", self.stem));
        let named = Some(self.named(number, kind)).filter(|path| path.exists());
        named.or_else(|| Some(earlier).filter(|path| number_in(path) == Some(number)))
    }

    /// Returns the error for a log that does not exist.
    fn missing(&self, number: u64, kind: &str) -> Error {
        let wanted = self.named(number, kind);
        let wanted = wanted.file_name().unwrap_or_default().to_string_lossy();
        let (store, dir) = (self.store.display(), self.dir.display());
        let elsewhere = fs::read_dir(self.dir).ok().and_then(|entries| {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let mut of_kind = names.filter(|name| name.ends_with(&format!(".{kind}")));
            of_kind.find(|name| {
                name.ends_with(&ending(number, kind)) || number_in(&self.dir.join(name)) == Some(number)
            })
        });
        let what = match elsewhere {
            Some(name) => format!(
                "the log of {store} is called {name} in {dir}, after another path of the store; if the store was \
                 moved, rename the log to {wanted}, and if it was copied, use the original"
            ),
            None => format!(
                "the log of {store} is not in {dir}; name the directory that has the file {wanted}, or restore \
                 the store from a backup"
            ),
        };
        Error::Invalid { what }
    }
}

/// Returns the ending of the name of the log with this number.
fn ending(number: u64, kind: &str) -> String {
    format!("{number:016x}.{kind}")
}

/// Returns the number of the log that a file contains, if it contains one.
fn number_in(path: &Path) -> Option<u64> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(64).read_to_end(&mut head).ok()?;
    log_seed(&head)
}
