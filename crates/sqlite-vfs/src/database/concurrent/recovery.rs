//! Recovery of the wal-index from the log, as SQLite's `walIndexRecover` does it. Recovery is needed if no
//! connection has made the wal-index yet, or if a connection has died while it wrote the header.

use std::time::Duration;

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES, WalHeader};
use duralite_format::wal_index::{IndexHeader, MARK_NOT_USED, MARKS};
use duralite_locks::{CHECKPOINT, FIRST_READ, LockError, WRITE};
use duralite_sqlite_ffi as ffi;

use super::snapshot::cannot_lock;
use super::state::Concurrent;
use crate::database::Db;
use crate::errors::{During, Failure};

/// How many times a connection tries to read a complete header of the wal-index before it gives up.
const TRIES: u32 = 1000;
/// After this many attempts the connection pauses before each further attempt.
const AT_ONCE: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

impl Concurrent {
    /// Returns the header of the real wal-index. If the wal-index is broken and no other connection recovers
    /// it, this connection recovers it. `has_write` says whether the connection has WRITE.
    ///
    /// # Errors
    /// `BUSY` if another connection is recovering the wal-index and takes too long.
    pub(super) fn settled_header(&self, db: &Db, has_write: bool) -> Result<IndexHeader, Failure> {
        for tries in 0..TRIES {
            if let Some(header) = self.index().header()? {
                return Ok(header);
            }
            match if has_write { Ok(()) } else { self.holder.lock_exclusive(WRITE, 1) } {
                // A header that is just being written is whole once its writer has given WRITE back.
                Err(LockError::Busy) if tries < AT_ONCE => std::thread::yield_now(),
                Err(LockError::Busy) => std::thread::sleep(PAUSE),
                Err(error) => return Err(cannot_lock(&error)),
                Ok(()) => {
                    let recovered = self.recover(db);
                    if !has_write {
                        self.holder.unlock_exclusive(WRITE, 1);
                    }
                    if !recovered? {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
        Err(Failure::new(ffi::BUSY, format!("the wal-index of {} is being recovered", db.path.display())))
    }

    /// Recovers the wal-index, unless another connection has recovered it meanwhile. The caller holds WRITE.
    /// Returns `false` if another connection holds the locks for recovery.
    fn recover(&self, db: &Db) -> Result<bool, Failure> {
        let index = self.index();
        if index.header()?.is_some() {
            return Ok(true);
        }
        // These two locks are CHECKPOINT and, next to it, the lock for recovery.
        match self.holder.lock_exclusive(CHECKPOINT, 2) {
            Ok(()) => {}
            Err(LockError::Busy) => return Ok(false),
            Err(error) => return Err(cannot_lock(&error)),
        }
        let recovered = self.rebuild(db);
        self.holder.unlock_exclusive(CHECKPOINT, 2);
        recovered.map(|()| true)
    }

    fn rebuild(&self, db: &Db) -> Result<(), Failure> {
        let index = self.index();
        let (header, frames) = self.header_of_log(db)?;
        let last = header.frames();
        index.make_room(0, last)?;
        index.fill(&frames)?;
        index.begin(last)?;
        for mark in 1..MARKS {
            if self.holder.lock_exclusive(FIRST_READ + mark, 1).is_ok() {
                let set = index.set_mark(mark, if mark == 1 && last > 0 { last } else { MARK_NOT_USED });
                self.holder.unlock_exclusive(FIRST_READ + mark, 1);
                set?;
            }
        }
        index.publish(&header)
    }

    /// Returns the wal-index header that fits the content of the log, and the page of each frame.
    fn header_of_log(&self, db: &Db) -> Result<(IndexHeader, Vec<u32>), Failure> {
        let failed = |error| Failure::of(&error, During::Read);
        let mut log = self.attachment.log();
        let bytes = log.size().map_err(failed)?;
        let mut start = [0; WAL_HEADER_BYTES];
        if bytes == 0 || log.read(&db.base, 0, &mut start).map_err(failed)? < start.len() {
            return Ok((IndexHeader::new(None, [0; 2], 0, 0), Vec::new()));
        }
        let wal = WalHeader::parse(&start)
            .map_err(|_| Failure::new(ffi::CORRUPT, "the header of the WAL does not check"))?;
        let last = u32::try_from((bytes - WAL_HEADER_BYTES as u64) / wal.frame_bytes()).unwrap_or(u32::MAX);
        let frames = log.frames_in(1..=last).map_err(failed)?;
        let mut sum = wal.checksum;
        if last > 0 {
            let mut head = [0; FRAME_HEADER_BYTES];
            let at = WAL_HEADER_BYTES as u64 + u64::from(last - 1) * wal.frame_bytes();
            log.read(&db.base, at, &mut head).map_err(failed)?;
            sum = duralite_format::sqlite_wal::FrameHeader::parse(&head).checksum;
        }
        let pages = frames.last().map_or(0, |(_, pages)| *pages);
        let header = IndexHeader::new(Some(&wal), sum, last, pages);
        Ok((header, frames.into_iter().map(|(page, _)| page).collect()))
    }
}
