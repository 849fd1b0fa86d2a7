//! A store in a directory. The pages are in the file `pages`, the log is in `log` or `log.nvram`, and `lock` keeps
//! other processes out.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_medium::block::{Block, BlockOptions, FileBlock, sync_directory};
use duralite_medium::{FileNvm, MapOptions, Nvm};
use xxhash_rust::xxh3::xxh3_128;

use super::{DirectoryLock, Media};
use crate::backup::not_empty;
use crate::error::Error;
use crate::options::{LogMedium, Options};

const PAGES: &str = "pages";
const UNFINISHED: &str = "pages.new";
/// The name of a file that is in every backup, and in no store.
pub(crate) const BACKUP: &str = "backup";

/// The names of the files that may be in a directory while a store is being made there.
const NAMES: [&str; 4] = [UNFINISHED, "log", "log.nvram", DirectoryLock::NAME];

/// The directory of an open store, with its lock.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
    log: LogMedium,
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
        let lock = DirectoryLock::take(dir)?;
        // An earlier attempt to make a store may have left this file.
        let _ = fs::remove_file(dir.join(UNFINISHED));
        Ok(Self { dir: dir.to_owned(), log: options.log.clone(), lock: Some(lock) })
    }

    /// Makes a store in the directory, which was empty before this process took the lock. If that fails, empties the
    /// directory again, so that another attempt can use it. The lock is held all the time, so nothing of another
    /// process is removed.
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
            for name in NAMES {
                let _ = fs::remove_file(dir.join(name));
            }
        }
        made
    }

    fn file(&self, path: &Path) -> Result<File, Error> {
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| Error::io("opening", path, error))?;
        self.sync(path)?;
        Ok(file)
    }

    /// Copies the pages of a backup into the directory, as part of making a store.
    pub(crate) fn put_pages(&self, pages: &Path) -> Result<(), Error> {
        let path = self.dir.join(UNFINISHED);
        fs::copy(pages, &path).map_err(|error| Error::io("copying", pages, error))?;
        Ok(())
    }

    /// Copies the store's logs into the directory of another store.
    pub(crate) fn copy_logs(&self, to: &Path) -> Result<(), Error> {
        for kind in ["log", "log.nvram"] {
            let path = match &self.log {
                LogMedium::Nvram(dir) => nvram_file(dir, &self.dir, kind)?,
                LogMedium::Disk | LogMedium::Emulated => self.dir.join(kind),
            };
            if path.exists() {
                fs::copy(&path, to.join(kind)).map_err(|error| Error::io("copying", &path, error))?;
            }
        }
        Ok(())
    }

    fn sync(&self, path: &Path) -> Result<(), Error> {
        let dir = path.parent().unwrap_or(&self.dir);
        sync_directory(dir).map_err(|error| Error::medium("making the store", error))
    }

    fn blocks(&self, path: &Path) -> Result<Arc<dyn Block>, Error> {
        let file = self.file(path)?;
        let block = FileBlock::open(file, path, &BlockOptions::default());
        Ok(Arc::new(block.map_err(|error| Error::medium(&format!("opening {}", path.display()), error))?))
    }
}

/// The error if there is no store, and the options forbid making one.
pub(crate) fn nothing_there(dir: &Path) -> Error {
    let why = "there is no file `pages` in it, and Options::create is false".to_owned();
    Error::NotAStore { path: dir.to_owned(), why }
}

/// Checks that the directory has a store, or may become one because it contains no other files.
fn check_content(dir: &Path) -> Result<(), Error> {
    let not = |why: &str| Error::NotAStore { path: dir.to_owned(), why: why.to_owned() };
    if dir.join(BACKUP).exists() {
        return Err(not("it is a backup; Store::restore makes a store from it"));
    }
    if dir.join(PAGES).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).map_err(|error| Error::io("reading", dir, error))? {
        let name = entry.map_err(|error| Error::io("reading", dir, error))?.file_name();
        if !NAMES.iter().any(|own| *own == name) {
            return Err(not(&format!("it contains {}, and no file `pages`", name.to_string_lossy())));
        }
    }
    Ok(())
}

impl Media for Directory {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        let (path, unfinished) = (self.dir.join(PAGES), self.dir.join(UNFINISHED));
        if path.exists() {
            return self.blocks(&path);
        }
        self.blocks(&unfinished)
    }

    fn block_log(&self) -> Result<Arc<dyn Block>, Error> {
        match &self.log {
            LogMedium::Nvram(dir) => self.blocks(&nvram_file(dir, &self.dir, "log")?),
            LogMedium::Disk | LogMedium::Emulated => self.blocks(&self.dir.join("log")),
        }
    }

    fn memory_log(&self, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        let (path, dax) = match &self.log {
            LogMedium::Nvram(dir) => (nvram_file(dir, &self.dir, "log.nvram")?, true),
            LogMedium::Disk | LogMedium::Emulated => (self.dir.join("log.nvram"), false),
        };
        let file = self.file(&path)?;
        let len = file.metadata().map_err(|error| Error::io("reading", &path, error))?.len();
        let options = MapOptions { capacity: bytes.max(len), dax, ..MapOptions::default() };
        let mapped = FileNvm::map(file, &path, &options);
        Ok(Arc::new(mapped.map_err(|error| Error::medium(&format!("mapping {}", path.display()), error))?))
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

/// The longest file name. A longer one would leave no room for the suffix.
const LONGEST_NAME: usize = 200;

/// The path of a store's log file, in a directory that many stores may share.
fn nvram_file(dir: &Path, store: &Path, kind: &str) -> Result<PathBuf, Error> {
    let store = fs::canonicalize(store).map_err(|error| Error::io("finding", store, error))?;
    let bytes = store.as_os_str().as_bytes();
    // Derives a distinct name from each store's path; a slash becomes `_2f`, for example.
    let mut name = String::new();
    for byte in bytes.strip_prefix(b"/").unwrap_or(bytes) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') {
            name.push(char::from(*byte));
        } else {
            name.push_str(&format!("_{byte:02x}"));
        }
    }
    if name.len() > LONGEST_NAME {
        name = format!("{:032x}", xxh3_128(bytes));
    }
    Ok(dir.join(format!("{name}.{kind}")))
}
