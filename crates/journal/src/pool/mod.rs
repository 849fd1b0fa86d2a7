//! The pool: a directory of log files, and the rules by which a log and a database belong
//! together (invariants 3 and 13).

mod disk;
mod files;
mod head;
mod nvram;
mod tap;

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_logfmt::{LogId, PATH_LIMIT};
use duralite_medium::{FileSegment, Segment};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::engine::Engine;
use crate::{EngineOptions, ErrorKind, JournalError};
pub use disk::{open_blocks_read_only, open_disk_read_only};
pub(crate) use files::remove;
use head::Head;
pub use nvram::{map_read_only, open_read_only};
pub use tap::{FileStep, Tap, Tapped, tap};

/// Where the locks of the database are in the shared segment, and how much is theirs.
pub const LOCKS_OFFSET: u64 = 4096;
/// Bytes of the shared segment that are the locks'.
pub const LOCKS_BYTES: u64 = 64 << 10;
const ENGINE_OFFSET: u64 = LOCKS_OFFSET + LOCKS_BYTES;
/// First word of a segment that is in use: its layout's version.
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"DURASEG3");
/// The word that says as what kind of medium the log is used, 0 where nobody has said.
const SEGMENT_KIND: u64 = 8;

/// What kind of medium the pool is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Persistent memory, on a DAX file system: `nvwal`.
    Dax,
    /// Memory that any file system backs; what it holds survives a process crash, not a power
    /// loss: `nvwal`.
    Emulate,
    /// A block device: `waldio`.
    Disk,
}

impl PoolKind {
    fn word(self) -> u64 {
        match self {
            Self::Dax => 1,
            Self::Emulate => 2,
            Self::Disk => 3,
        }
    }
}

/// Where logs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// The kind of medium.
    pub kind: PoolKind,
    /// The directory.
    pub dir: PathBuf,
}

impl PoolConfig {
    /// The file of a log in this pool.
    #[must_use]
    pub fn log_path(&self, id: LogId) -> PathBuf {
        self.dir.join(format!("duralite-{id}.{}", self.extension()))
    }

    /// Whether the log is here.
    #[must_use]
    pub fn contains(&self, id: LogId) -> bool {
        self.log_path(id).exists()
    }

    fn extension(&self) -> &'static str {
        match self.kind {
            PoolKind::Dax | PoolKind::Emulate => "nvwal",
            PoolKind::Disk => "waldio",
        }
    }
}

/// What a log file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// The engine that wrote it.
    pub engine: &'static str,
    /// Its identity.
    pub id: LogId,
    /// Where its database was when it was made.
    pub database: PathBuf,
}

/// Reads what a log file says about itself.
///
/// # Errors
/// `Io`, `Format`.
pub fn describe(path: &Path) -> Result<LogFile, JournalError> {
    let head = Head::read(path, &files::open(path, false)?)?;
    let database = PathBuf::from(std::ffi::OsStr::from_bytes(&head.path));
    Ok(LogFile { engine: head.engine(), id: head.log_id, database })
}

/// Opens a log of either engine to look at it, as recovery would find it: nothing is written, no
/// lock is taken.
///
/// # Errors
/// As for attaching, but whatever database it belongs to.
pub fn open_log_read_only(path: &Path) -> Result<Box<dyn Engine>, JournalError> {
    if describe(path)?.engine == "waldio" {
        return Ok(Box::new(open_disk_read_only(path)?));
    }
    Ok(Box::new(open_read_only(path)?))
}

/// Makes the names in a file's directory durable.
///
/// # Errors
/// `Io`.
pub fn sync_names(path: &Path) -> Result<(), JournalError> {
    files::sync_names(path).map_err(|error| JournalError::io("sync the directory of", path, &error))
}

/// The file through which the processes that use a log share memory.
#[must_use]
pub fn segment_path(log: &Path) -> PathBuf {
    log.with_extension("shm")
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

    fn owns(&self, head: &Head) -> bool {
        head.db_inode == self.inode && head.db_birth_ns == self.birth_ns
    }

    fn path_hint(&self) -> &[u8] {
        let bytes = self.path.as_os_str().as_bytes();
        &bytes[..bytes.len().min(PATH_LIMIT)]
    }
}

/// An attached log and the file whose lock says that this process uses it.
pub(crate) struct OpenLog {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) segment: Arc<dyn Segment>,
    pub(crate) path: PathBuf,
    /// Held for its `flock`; shared while attached.
    pub(crate) file: File,
    /// Whether nobody else had the log when it was opened.
    pub(crate) alone: bool,
    /// Keeps others from attaching until the log has been checked.
    pub(crate) attaching: Option<File>,
}

/// Makes a log for a database. It and its directory entry are durable on return.
pub(crate) fn create(
    pool: &PoolConfig,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    page_bytes: u32,
) -> Result<OpenLog, JournalError> {
    if !pool.dir.is_dir() {
        let error = io::Error::new(io::ErrorKind::NotFound, "no such directory; make it, or name another");
        return Err(JournalError::io("use the log's directory", &pool.dir, &error));
    }
    refuse_orphans(pool, db)?;
    forget_segments(&pool.dir);
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| JournalError::Io {
        op: "draw random bytes for",
        path: db.path.clone(),
        message: error.to_string(),
        kind: io::ErrorKind::Other,
    })?;
    let id = LogId(id);
    let path = pool.log_path(id);
    let file = files::create(&pool.dir, &path, db)?;
    let make = || {
        let _making = files::lock_segment(&segment_path(&path), db)?;
        // Before the log, which makes do with what room is left.
        let segment = join_segment(pool, &path, db, true)?;
        match pool.kind {
            PoolKind::Disk => disk::format(options, db, &path, &file, id, page_bytes)?,
            _ => nvram::format(pool, options, db, &path, &file, id, page_bytes)?,
        }
        file.lock_shared().map_err(|error| JournalError::io("lock", &path, &error))?;
        files::publish(&path, &file).map_err(|error| JournalError::io("make", &path, &error))?;
        Ok(segment)
    };
    make()
        .and_then(|segment| open(pool, options, &path, file, segment, true))
        .map_err(|error| at_pool(error, &pool.dir))
        .inspect_err(|_| {
            drop(std::fs::remove_file(&path));
            drop(std::fs::remove_file(segment_path(&path)));
        })
}

/// What fails while a log is made is the directory's fault: the file has no name yet.
fn at_pool(error: JournalError, dir: &Path) -> JournalError {
    match error {
        JournalError::Medium { source: duralite_medium::MediumError::NoSpace, .. } => {
            JournalError::NoSpace { dir: dir.to_path_buf() }
        }
        JournalError::Medium { source, .. } => JournalError::Medium { path: dir.to_path_buf(), source },
        error => error,
    }
}

/// Opens the log that a guarded database names. The process that finds itself alone recovers it;
/// everybody leaves committed transactions as they are.
pub(crate) fn attach(
    pool: &PoolConfig,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
) -> Result<OpenLog, JournalError> {
    let path = pool.log_path(id);
    let missing = || JournalError::Missing { database: db.path.clone(), id, searched: pool.dir.clone() };
    let file = files::open(&path, true).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(),
        _ => error,
    })?;
    let head = Head::read(&path, &file)?;
    let owner = file.metadata().map_err(|error| JournalError::io("examine", &path, &error))?.uid();
    if owner != db.uid && owner != rustix::process::geteuid().as_raw() {
        return Err(JournalError::Owner(path));
    }
    if head.log_id != id || !(adopt || db.owns(&head)) {
        let owner = PathBuf::from(std::ffi::OsStr::from_bytes(&head.path));
        return Err(JournalError::Foreign { log: path, database: db.path.clone(), owner });
    }
    // One at a time: between finding itself alone and saying that it is there, a process must
    // not be overtaken by another that then finds itself alone too.
    let attaching = files::lock_segment(&segment_path(&path), db)?;
    let gone = || {
        let what = "its log has just been folded into it or put aside; open it again";
        JournalError::Busy { path: db.path.clone(), what }
    };
    if !is_in_place(&path, &file)? {
        if matches!(path.try_exists(), Ok(false)) {
            drop(std::fs::remove_file(segment_path(&path)));
        }
        return Err(gone());
    }
    let alone = find_alone(&file, &path, &attaching)?;
    if alone && pool.kind == PoolKind::Dax {
        // It may have been used as emulated memory, on this very file system. Blocks that were first
        // touched then are not durable, nor is what an emulated model of persistency did not
        // flush, and a commit that survives a power loss would stand behind one that does not.
        file.sync_all().map_err(|error| JournalError::io("sync", &path, &error))?;
    }
    let segment = join_segment(pool, &path, db, alone)?;
    let mut log = open(pool, options, &path, file, segment, alone)?;
    log.attaching = Some(attaching);
    // Here ends the wait for who folds the log without SQLite's locks. SQLite's own users cannot
    // have deleted it: that takes EXCLUSIVE on the database, and who attaches holds SHARED.
    log.file.lock_shared().map_err(|error| JournalError::io("lock", &path, &error))?;
    if !is_in_place(&path, &log.file)? {
        return Err(gone());
    }
    Ok(log)
}

/// Whether the name of a log still leads to the file that was opened by it.
fn is_in_place(path: &Path, file: &File) -> Result<bool, JournalError> {
    let failed = |error: io::Error| JournalError::io("examine", path, &error);
    let opened = file.metadata().map_err(failed)?;
    match path.symlink_metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Whether nobody else has the log. The kernel gives the locks of a dead process back one after
/// another, so that its lock of the log may outlive the one that attachers wait for: only a
/// member that lives, of a segment that was completed, proves that somebody is there.
///
/// Who gets the lock reads no state older than what was acknowledged. The engine's descriptors are
/// duplicates of the one that locked, so that the lock goes with the last of them, when nothing of
/// that process is under way any more, and it acknowledged nothing that it had not flushed (or
/// flushed it when it let go, under Group Synch). All that it may still have is the memory that
/// was shared, with its locks given back, and the lock of its own member slot, which nobody
/// else takes until then. Who does not get it shares the state that is in force, whose last member
/// may leave at any time: what it has sealed and not flushed stays in the ring for the next leader.
fn find_alone(file: &File, path: &Path, attaching: &File) -> Result<bool, JournalError> {
    use std::os::unix::fs::FileExt;
    let start = std::time::Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => {
                // What a power loss left there is of another time: nobody may join it before it is
                // completed again, should this process die meanwhile.
                let cleared = match attaching.read_at(&mut [0; 8], 0) {
                    Ok(8) => attaching.write_all_at(&[0; 8], 0),
                    _ => Ok(()),
                };
                cleared.map_err(|error| JournalError::io("clear", &segment_path(path), &error))?;
                return Ok(true);
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(JournalError::io("lock", path, &error)),
        }
        let mut magic = [0; 8];
        let complete = attaching.read_at(&mut magic, 0).is_ok() && magic == SEGMENT_MAGIC.to_le_bytes();
        let living = FileSegment::has_members(attaching)
            .map_err(|source| JournalError::Medium { path: path.to_path_buf(), source })?;
        let late = start.elapsed() > std::time::Duration::from_secs(2);
        if living && (complete || late) {
            return Ok(false);
        }
        if late {
            let what = "something that does not use the database holds its log's lock";
            return Err(JournalError::Busy { path: path.to_path_buf(), what });
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

/// Joins those who use the log, as the first if `alone`.
fn join_segment(
    pool: &PoolConfig,
    log: &Path,
    db: &DatabaseIdentity,
    alone: bool,
) -> Result<Arc<dyn Segment>, JournalError> {
    let path = segment_path(log);
    let (state_bytes, engine_bytes) = match pool.kind {
        PoolKind::Disk => (crate::waldio::STATE_BYTES, crate::waldio::SHARED_BYTES),
        PoolKind::Dax | PoolKind::Emulate => (0, 0),
    };
    let fresh = alone.then_some(ENGINE_OFFSET + state_bytes);
    tap::step(FileStep::MapShared, &path).map_err(|error| JournalError::io("map", &path, &error))?;
    let segment = FileSegment::join(files::open_segment(&path, db)?, ENGINE_OFFSET + engine_bytes, fresh)
        .map_err(|source| JournalError::Medium { path: path.clone(), source })?;
    if !alone && segment.load(0) != SEGMENT_MAGIC {
        let what = "another version of Duralite uses this database; use the same version everywhere";
        return Err(JournalError::Busy { path, what });
    }
    // Emulated memory and direct access to the same file promise different things, and each builds
    // on what the other has stored.
    if alone {
        segment.store(SEGMENT_KIND, pool.kind.word());
    } else if ![0, pool.kind.word()].contains(&segment.load(SEGMENT_KIND)) {
        return Err(JournalError::Settings);
    }
    Ok(Arc::new(segment))
}

fn open(
    pool: &PoolConfig,
    options: &EngineOptions,
    path: &Path,
    file: File,
    segment: Arc<dyn Segment>,
    alone: bool,
) -> Result<OpenLog, JournalError> {
    let engine = match pool.kind {
        PoolKind::Disk => disk::open(options, path, &file, segment.clone(), ENGINE_OFFSET, alone)?,
        _ => nvram::open(pool, options, path, &file, alone)?,
    };
    // Last: from here on others may join.
    if alone {
        segment.store(0, SEGMENT_MAGIC);
    }
    Ok(OpenLog { engine, segment, path: path.to_path_buf(), file, alone, attaching: None })
}

/// Deletes shared memory whose log is gone: processes died while they made or deleted one. Who
/// makes a log holds the lock until it has its name.
pub(crate) fn forget_segments(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let is_gone = |log: &Path| matches!(log.try_exists(), Ok(false));
        let gone = || ["nvwal", "waldio"].iter().all(|end| is_gone(&path.with_extension(end)));
        let id = name.strip_prefix(b"duralite-").and_then(|name| name.strip_suffix(b".shm"));
        if !id.is_some_and(|id| id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit)) || !gone() {
            continue;
        }
        let Ok(file) = files::open(&path, true) else { continue };
        if file.try_lock().is_ok() && gone() {
            drop(std::fs::remove_file(&path));
        }
    }
}

/// Looks through the pool for logs of an earlier database at this path: one with commits is
/// refused, a spent one of this very file is deleted.
fn refuse_orphans(pool: &PoolConfig, db: &DatabaseIdentity) -> Result<(), JournalError> {
    let Ok(entries) = std::fs::read_dir(&pool.dir) else { return Ok(()) };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let known = name.ends_with(b".nvwal") || name.ends_with(b".waldio");
        if !name.starts_with(b"duralite-") || !known {
            continue;
        }
        // Logs that cannot be read are somebody else's, or not logs: not this database's business.
        let Ok(file) = files::open(&path, false) else { continue };
        let Ok(head) = Head::read(&path, &file) else { continue };
        let owner = file.metadata().map(|meta| meta.uid()).ok();
        let ours = owner == Some(db.uid) || owner == Some(rustix::process::geteuid().as_raw());
        if !ours || head.path != db.path_hint() || file.try_lock().is_err() {
            continue;
        }
        let commits = head.commits(&path, &file);
        if commits > 0 {
            return Err(JournalError::Orphan { log: path, database: db.path.clone(), commits });
        }
        if db.owns(&head) {
            drop(files::remove(&path));
        }
    }
    Ok(())
}
