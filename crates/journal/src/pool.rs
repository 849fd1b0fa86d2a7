//! The pool: a directory of log files, and the rules by which a log and a database belong
//! together (invariants 3 and 13).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_logfmt::nvwal::{
    ACTIVE_OFFSET, SLOT_BYTES, SUPERBLOCK_BYTES, Slot, Superblock, read_checked_word, slot_offset,
};
use duralite_logfmt::{LogId, nvwal::PATH_LIMIT};
use duralite_medium::{FileNvm, Latency, MapOptions, Nvm, Persistency};
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, linkat, statx};

use crate::nvwal::{Nvwal, NvwalOptions};
use crate::{ErrorKind, JournalError};

/// Where this process's open files have names.
const OWN_FILES: &str = "/proc/self/fd";

/// What kind of memory the pool is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Persistent memory, on a DAX file system.
    Dax,
    /// Any file system; what it holds survives a process crash, not a power loss.
    Emulate,
}

/// Where logs are kept and how their memory behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// The kind of memory.
    pub kind: PoolKind,
    /// The directory.
    pub dir: PathBuf,
    /// Added latency, for experiments.
    pub latency: Latency,
    /// Persistency model, for experiments.
    pub persistency: Persistency,
}

impl PoolConfig {
    /// The file of a log in this pool.
    #[must_use]
    pub fn log_path(&self, id: LogId) -> PathBuf {
        self.dir.join(format!("duralite-{id}.nvwal"))
    }

    /// Whether the log is here.
    #[must_use]
    pub fn contains(&self, id: LogId) -> bool {
        self.log_path(id).exists()
    }

    fn map_options(&self, capacity: u64, read_only: bool) -> MapOptions {
        MapOptions {
            capacity,
            dax: self.kind == PoolKind::Dax,
            latency: self.latency,
            persistency: self.persistency,
            read_only,
        }
    }
}

/// What ties a log to one database file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseIdentity {
    /// Canonical path.
    pub path: PathBuf,
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds since the epoch, 0 where unknown.
    pub birth_ns: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl DatabaseIdentity {
    /// The identity of an existing file.
    ///
    /// # Errors
    /// `Io` when it cannot be examined.
    pub fn of(path: &Path) -> Result<Self, JournalError> {
        let canonical = path.canonicalize().map_err(|error| JournalError::io("find", path, &error))?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = statx(CWD, &canonical, AtFlags::empty(), wanted)
            .map_err(|errno| JournalError::io("examine", path, &io::Error::from(errno)))?;
        let birth_ns = if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
            let seconds = u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0);
            seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_btime.tv_nsec))
        } else {
            0
        };
        Ok(Self {
            path: canonical,
            inode: stat.stx_ino,
            birth_ns,
            mode: u32::from(stat.stx_mode) & 0o777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
        })
    }

    fn owns(&self, superblock: &Superblock) -> bool {
        superblock.db_inode == self.inode && superblock.db_birth_ns == self.birth_ns
    }

    fn path_hint(&self) -> &[u8] {
        let bytes = self.path.as_os_str().as_bytes();
        &bytes[..bytes.len().min(PATH_LIMIT)]
    }
}

/// A mapped log and the file whose lock says that this process uses it.
pub(crate) struct OpenLog {
    pub(crate) engine: Nvwal,
    pub(crate) path: PathBuf,
    /// Held for its `flock`; shared while attached.
    pub(crate) file: File,
    /// Whether nobody else had the log when it was opened.
    pub(crate) alone: bool,
}

/// Makes a log for a database. It and its directory entry are durable on return.
pub(crate) fn create(
    pool: &PoolConfig,
    options: &NvwalOptions,
    db: &DatabaseIdentity,
    page_bytes: u32,
) -> Result<OpenLog, JournalError> {
    refuse_orphans(pool, db)?;
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| JournalError::Io {
        op: "draw random bytes for",
        path: db.path.clone(),
        message: error.to_string(),
        kind: io::ErrorKind::Other,
    })?;
    let path = pool.log_path(LogId(id));
    let (block_bytes, limit_blocks) = Nvwal::shape(options, page_bytes);
    let superblock = Superblock {
        page_bytes,
        log_id: LogId(id),
        db_inode: db.inode,
        db_birth_ns: db.birth_ns,
        block_bytes,
        limit_blocks,
        blocks_offset: Superblock::blocks_offset_for(limit_blocks),
        path: db.path_hint().to_vec(),
    };
    let result = create_file(pool, db, &path).and_then(|file| {
        let log = format_file(pool, options, &superblock, &path, file);
        log.inspect_err(|_| drop(std::fs::remove_file(&path)))
    })?;
    Ok(result)
}

fn create_file(pool: &PoolConfig, db: &DatabaseIdentity, path: &Path) -> Result<File, JournalError> {
    if !pool.dir.is_dir() {
        let error =
            io::Error::new(io::ErrorKind::NotFound, "no such directory; make it, or point nvram elsewhere");
        return Err(JournalError::io("use the NVRAM pool", &pool.dir, &error));
    }
    let file = open_new(pool, path, db.mode & 0o666)
        .map_err(|error| JournalError::io("make a log in", &pool.dir, &error))?;
    // The mode given to open is cut by the umask; the owner is ours. Both follow the database.
    let adjusted =
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(db.mode & 0o666)).and_then(|()| {
            let meta = file.metadata()?;
            if (meta.uid(), meta.gid()) == (db.uid, db.gid) {
                Ok(())
            } else {
                fchown(&file, Some(db.uid), Some(db.gid))
            }
        });
    match adjusted {
        // Someone who may write the database but does not own it cannot give the log away.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            drop(std::fs::remove_file(path));
            Err(JournalError::io("set the owner of", path, &error))
        }
        _ => Ok(file),
    }
}

/// A new file, without a name where the file system can do that: a process that dies while it
/// makes a log then leaves nothing behind.
fn open_new(pool: &PoolConfig, path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode);
    let flag = |flag: OFlags| flag.bits().cast_signed();
    if Path::new(OWN_FILES).is_dir()
        && let Ok(file) = options.clone().custom_flags(flag(OFlags::TMPFILE)).open(&pool.dir)
    {
        return Ok(file);
    }
    options.create_new(true).custom_flags(flag(OFlags::NOFOLLOW)).open(path)
}

/// Gives a complete log its name, if it has none yet, and makes that durable.
fn publish(pool: &PoolConfig, path: &Path, file: &File) -> io::Result<()> {
    file.sync_all()?;
    if file.metadata()?.nlink() == 0 {
        let own = Path::new(OWN_FILES).join(file.as_raw_fd().to_string());
        linkat(CWD, &own, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
    }
    File::open(&pool.dir)?.sync_all()
}

fn format_file(
    pool: &PoolConfig,
    options: &NvwalOptions,
    superblock: &Superblock,
    path: &Path,
    file: File,
) -> Result<OpenLog, JournalError> {
    let lock = |error: &io::Error| JournalError::io("lock", path, error);
    file.lock_shared().map_err(|error| lock(&error))?;
    let nvm = Arc::new(map(pool, path, &file, superblock, false)?);
    Nvwal::format(nvm.as_ref(), superblock).map_err(|error| at_path(error, &pool.dir))?;
    publish(pool, path, &file).map_err(|error| JournalError::io("make", path, &error))?;
    let engine = Nvwal::open(nvm, path, options.clone())?;
    Ok(OpenLog { engine, path: path.to_path_buf(), file, alone: true })
}

fn at_path(error: JournalError, dir: &Path) -> JournalError {
    match error {
        JournalError::Medium { source: duralite_medium::MediumError::NoSpace, .. } => {
            JournalError::NoSpace { dir: dir.to_path_buf() }
        }
        JournalError::Medium { source, .. } => JournalError::Medium { path: dir.to_path_buf(), source },
        error => error,
    }
}

fn map(
    pool: &PoolConfig,
    path: &Path,
    file: &File,
    superblock: &Superblock,
    read_only: bool,
) -> Result<FileNvm, JournalError> {
    let capacity = superblock.file_bytes(superblock.limit_blocks);
    let file = file.try_clone().map_err(|error| JournalError::io("open", path, &error))?;
    FileNvm::map(file, path, &pool.map_options(capacity, read_only))
        .map_err(|source| JournalError::Medium { path: path.to_path_buf(), source })
}

/// Opens the log that a guarded database names. The process that finds itself alone repairs the
/// heap; everybody leaves committed transactions as they are.
pub(crate) fn attach(
    pool: &PoolConfig,
    options: &NvwalOptions,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
) -> Result<OpenLog, JournalError> {
    let path = pool.log_path(id);
    let missing = || JournalError::Missing { database: db.path.clone(), id, searched: pool.dir.clone() };
    let file = open_file(&path, true).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(),
        _ => error,
    })?;
    let superblock = check_file(&path, &file)?;
    let owner = file.metadata().map_err(|error| JournalError::io("examine", &path, &error))?.uid();
    if owner != db.uid && owner != rustix::process::geteuid().as_raw() {
        return Err(JournalError::Owner(path));
    }
    if superblock.log_id != id || !(adopt || db.owns(&superblock)) {
        let owner = PathBuf::from(std::ffi::OsStr::from_bytes(&superblock.path));
        return Err(JournalError::Foreign { log: path, database: db.path.clone(), owner });
    }
    let alone = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => return Err(JournalError::io("lock", &path, &error)),
    };
    let nvm = Arc::new(map(pool, &path, &file, &superblock, false)?);
    let mut engine = Nvwal::open(nvm, &path, options.clone())?;
    if alone {
        engine.recover_heap()?;
    }
    file.lock_shared().map_err(|error| JournalError::io("lock", &path, &error))?;
    Ok(OpenLog { engine, path, file, alone })
}

/// Opens a log to look at it: nothing is stored, no lock is taken.
///
/// # Errors
/// As for attaching, but whatever database it belongs to.
pub fn open_read_only(path: &Path) -> Result<Nvwal, JournalError> {
    let (nvm, _) = map_read_only(path)?;
    Nvwal::open(nvm, path, NvwalOptions::default())
}

/// Maps a log to look at it, without reading its transactions.
///
/// # Errors
/// `Io`, `Format`, `Medium`.
pub fn map_read_only(path: &Path) -> Result<(Arc<dyn Nvm>, Superblock), JournalError> {
    let file = open_file(path, false)?;
    let superblock = check_file(path, &file)?;
    let pool = PoolConfig {
        kind: PoolKind::Emulate,
        dir: PathBuf::new(),
        latency: Latency::default(),
        persistency: Persistency::X86,
    };
    let nvm: Arc<dyn Nvm> = Arc::new(map(&pool, path, &file, &superblock, true)?);
    Ok((nvm, superblock))
}

fn open_file(path: &Path, write: bool) -> Result<File, JournalError> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|error| JournalError::io("open the log", path, &error))
}

/// Reads the superblock and checks that the file is as long as it says.
fn check_file(path: &Path, file: &File) -> Result<Superblock, JournalError> {
    let format = |source| JournalError::Format { log: path.to_path_buf(), source };
    let meta = file.metadata().map_err(|error| JournalError::io("examine", path, &error))?;
    let mut bytes = vec![0; meta.len().min(SUPERBLOCK_BYTES) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| JournalError::io("read", path, &error))?;
    let superblock = Superblock::decode(&bytes).map_err(format)?;
    let word = u64::from_le_bytes(bytes[1344..1352].try_into().unwrap_or_default());
    let grown = read_checked_word(word, "the log's size").map_err(format)?;
    if grown > superblock.limit_blocks || superblock.file_bytes(grown) > meta.len() {
        return Err(format(duralite_logfmt::FormatError::Short { what: "the log file" }));
    }
    Ok(superblock)
}

/// Looks through the pool for logs of an earlier database at this path: one with commits is
/// refused, a spent one of this very file is deleted.
fn refuse_orphans(pool: &PoolConfig, db: &DatabaseIdentity) -> Result<(), JournalError> {
    let Ok(entries) = std::fs::read_dir(&pool.dir) else { return Ok(()) };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        if !name.starts_with(b"duralite-") || !name.ends_with(b".nvwal") {
            continue;
        }
        // Logs that cannot be read are somebody else's, or not logs: not this database's business.
        let Some((file, superblock)) = peek(&path) else { continue };
        let owner = file.metadata().map(|meta| meta.uid()).ok();
        let ours = owner == Some(db.uid) || owner == Some(rustix::process::geteuid().as_raw());
        if !ours || superblock.path != db.path_hint() || file.try_lock().is_err() {
            continue;
        }
        let spent = slot_of(&file, &superblock)
            .is_some_and(|slot| slot.retired || slot.first_block == duralite_logfmt::nvwal::NO_BLOCK);
        let commits = if spent { 0 } else { open_read_only(&path).map_or(1, |log| log.transactions()) };
        if commits > 0 {
            return Err(JournalError::Orphan { log: path, database: db.path.clone(), commits });
        }
        if db.owns(&superblock) {
            drop(std::fs::remove_file(&path));
        }
    }
    Ok(())
}

fn peek(path: &Path) -> Option<(File, Superblock)> {
    let file = open_file(path, false).ok()?;
    let superblock = check_file(path, &file).ok()?;
    Some((file, superblock))
}

fn slot_of(file: &File, superblock: &Superblock) -> Option<Slot> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, ACTIVE_OFFSET).ok()?;
    let generation = read_checked_word(u64::from_le_bytes(word), "").ok()?;
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot_offset(generation)).ok()?;
    Slot::decode(&bytes, superblock.log_id, generation).ok()
}
