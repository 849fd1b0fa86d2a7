//! A home that is a mapping of the database file itself, so that reads are loads, writes are stores, and a sync is a fence
//! (invariants 5, 6, 19 and 20). The home has no state outside the file, so there is nothing to recover.
//!
//! # What is durable when
//!
//! On a medium that survives a power loss, a page is durable after [`Home::sync`], as in every home. A write stores
//! only those cache lines of the page that differ from the memory. It stores them either through the cache, from which
//! the sync flushes them, or with non-temporal stores ([`HomeSync`]). On any other medium the home does the same, so
//! that latencies can be measured, but pages survive only the death of a process, until [`Home::drain`] syncs the file.
//!
//! If a process stores a line and dies before it flushes the line, the other processes see the line, although it is not
//! durable. The next writer writes the same page again, finds no difference, and stores nothing. So it must also flush
//! lines that another process may have stored. A word that all processes share ([`MappedHome::sharing`]) tells a writer
//! whether there may be such lines. The word names the one process that has written since the last sync, or says that
//! several have. If several have, a writer flushes all lines of each page that it writes, and `sync` syncs the file, so
//! that the kernel writes back what any process has stored. Without that word, a home always assumes several writers.
//!
//! # The file's size
//!
//! In every process the file has the size of the database, and nothing is allocated beyond that. A write makes the file
//! grow. If SQLite announces the size that it expects ([`Home::hint`]), the home makes the file grow in advance. Before
//! the home stores anything in the new part, it allocates the space and takes the page faults, so that no store can
//! fail. Other processes may cut or grow the file under SQLite's locks. So the home asks for the file's size when
//! SQLite asks for it, before a writer begins, and when an access lies beyond the known size. If another process has
//! cut off a part, SQLite does not read that part.
//!
//! # A file that another program truncates
//!
//! If a program that does not hold these locks truncates the file, the home reports an error. After each access it checks
//! that what it has read or stored was still in the file ([`duralite_medium::Nvm::check`]).

mod policy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duralite_medium::{Guarantee, LINE_BYTES, MediumError, Nvm, Segment};

use crate::LogError;
use crate::engine::home::{DatabaseFile, Header, Home};
pub use crate::engine::media::HomeSync;
use crate::shared::mapped_home::policy::Policy;

/// A database file in memory.
pub struct MappedHome {
    nvm: Arc<dyn Nvm>,
    page_bytes: u32,
    sync: HomeSync,
    /// Whether the home stores every page whole, as in the paper.
    whole_pages: bool,
    writers: Writers,
    /// The file's size when the home last asked for it. The mapped memory is at least that long.
    size: AtomicU64,
    /// A mutex that a thread holds while it asks for the size or changes it.
    resizing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dirty: Dirty,
    /// The policy that chooses for each page whether to use non-temporal stores; `None` if the setting prescribes one
    /// way for all pages.
    policy: Option<Policy>,
    /// Whether this process has stored anything since the last fence.
    unfenced: bool,
    page: Vec<u8>,
    counts: Counts,
}

/// Counts of what a process has done through a home, as metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of writes of pages, or of parts of pages.
    pub writes: u64,
    /// The number of these writes that used non-temporal stores.
    pub through: u64,
    /// The number of cache lines that were stored.
    pub lines: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappedHome {
    /// Makes a home over a mapped database file ([`DatabaseFile::map`]), with pages of this many bytes.
    #[must_use]
    pub fn new(nvm: Arc<dyn Nvm>, page_bytes: u32, sync: HomeSync) -> Self {
        let size = AtomicU64::new(nvm.len());
        Self {
            nvm,
            page_bytes: page_bytes.max(1),
            sync,
            whole_pages: false,
            writers: Writers::default(),
            size,
            resizing: Mutex::default(),
            state: Mutex::new(State { policy: Policy::of(sync), ..State::default() }),
        }
    }

    /// Makes the home share a word with the homes of other processes, at byte `at` of the log's segment. The word must
    /// be 0 at first.
    #[must_use]
    pub fn sharing(mut self, segment: Arc<dyn Segment>, at: u64) -> Self {
        self.writers = Writers::sharing(segment, at);
        self
    }

    /// Makes the home store every page whole if `whole_pages`, as the paper does, so that a benchmark can measure the
    /// cost.
    #[must_use]
    pub fn with_whole_pages(mut self, whole_pages: bool) -> Self {
        self.whole_pages = whole_pages;
        self
    }

    /// Makes durable what dead processes may have stored but not flushed. Does nothing on a medium that does not
    /// survive a power loss. No other process may use the log yet.
    ///
    /// # Errors
    /// The error of syncing `file`.
    pub fn recover(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        if self.survives_power_loss() { file.sync() } else { Ok(()) }
    }

    /// Returns the mapped memory of the database file.
    #[must_use]
    pub fn nvm(&self) -> &Arc<dyn Nvm> {
        &self.nvm
    }

    /// Returns how pages become durable.
    #[must_use]
    pub fn home_sync(&self) -> HomeSync {
        self.sync
    }

    /// Returns the metrics of what this process has done through the home.
    #[must_use]
    pub fn counts(&self) -> Counts {
        locked(&self.state).counts
    }

    fn survives_power_loss(&self) -> bool {
        self.nvm.guarantee() == Guarantee::PowerLoss
    }

    fn check(&self) -> Result<(), LogError> {
        self.nvm.check().map_err(failed)
    }

    /// Asks for the file's size, and stores it.
    fn learn(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        let _one_at_a_time = locked(&self.resizing);
        self.learn_locked(file)
    }

    fn learn_locked(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        let size = file.size()?;
        // Update the memory's length first, so that no access goes beyond it.
        self.nvm.refresh_len(size).map_err(failed)?;
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    /// Makes the file at least `end` bytes long.
    fn grow(&self, file: &dyn DatabaseFile, end: u64) -> Result<(), LogError> {
        let _one_at_a_time = locked(&self.resizing);
        let size = self.learn_locked(file)?;
        if size < end {
            self.nvm.restore(size, end - size).map_err(failed)?;
            self.size.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// Stores `bytes` at `at`. The range lies in one page and inside the file.
    fn put(&self, bytes: &[u8], at: u64) {
        // The lock excludes the other threads of this process. SQLite's locks exclude writers in other processes.
        let state = &mut *locked(&self.state);
        let number = at / u64::from(self.page_bytes);
        let through = match &state.policy {
            Some(policy) => policy.is_through(number),
            None => self.sync == HomeSync::WriteThrough,
        };
        let start = state.is_timed().then(Instant::now);
        let known = self.writers.claim();
        state.unfenced = true;
        state.counts.writes += 1;
        state.counts.through += u64::from(through);
        let mut page = std::mem::take(&mut state.page);
        let mut done = Stored::default();
        if self.whole_pages {
            done += self.store(state, bytes, at, through);
        } else {
            page.resize(bytes.len(), 0);
            self.nvm.read(at, &mut page);
            for range in differing_lines(&page, bytes, at) {
                done += self.store(state, &bytes[range.clone()], at + range.start as u64, through);
            }
            if !known {
                done.fresh += state.dirty.stored(at..at + bytes.len() as u64);
            }
        }
        state.page = page;
        state.counts.lines += done.lines;
        if let Some(policy) = &mut state.policy {
            policy.wrote(
                number,
                done.lines,
                done.fresh,
                start.map_or(Duration::ZERO, |start| start.elapsed()),
            );
        }
        if state.dirty.is_full() {
            state.dirty.flush(&*self.nvm);
        }
    }

    fn store(&self, state: &mut State, bytes: &[u8], at: u64, through: bool) -> Stored {
        let len = bytes.len() as u64;
        let lines = duralite_medium::lines_touched(at, len);
        if through {
            self.nvm.stream(at, bytes);
            state.dirty.streamed(at..at + len);
            Stored { lines, fresh: 0 }
        } else {
            self.nvm.store(at, bytes);
            Stored { lines, fresh: state.dirty.stored(at..at + len) }
        }
    }

    /// Makes durable what this process has stored. Returns `true` if no other process has stored anything since the
    /// last sync. The caller keeps the state locked until it has cleared the word that names the writers. So if another
    /// thread of this process stores something, it enters the process's name only after the word was cleared, and the
    /// name is not lost.
    fn flush(&self, state: &mut State) -> Result<bool, LogError> {
        let start = state.is_timed().then(Instant::now);
        state.dirty.flush(&*self.nvm);
        if std::mem::take(&mut state.unfenced) {
            self.nvm.fence();
        }
        if let Some(policy) = &mut state.policy {
            policy.synced(start.map_or(Duration::ZERO, |start| start.elapsed()));
        }
        self.check()?;
        let complete = self.writers.synced();
        if complete {
            self.writers.end(true);
        }
        Ok(complete)
    }
}

/// The number of cache lines that were stored, and how many of them need a flush now but did not need one before.
#[derive(Debug, Default, Clone, Copy)]
struct Stored {
    lines: u64,
    fresh: u64,
}

impl AddAssign for Stored {
    fn add_assign(&mut self, more: Self) {
        self.lines += more.lines;
        self.fresh += more.fresh;
    }
}

impl State {
    fn is_timed(&self) -> bool {
        self.policy.as_ref().is_some_and(Policy::is_timed)
    }
}

fn failed(source: MediumError) -> LogError {
    LogError::Medium { path: "the database in memory".into(), source }
}

/// Returns the ranges in which `old` and `new` differ, in whole cache lines. Both slices begin at offset `at` of the
/// memory, so their first and last line may be incomplete.
fn differing_lines<'a>(old: &'a [u8], new: &'a [u8], at: u64) -> impl Iterator<Item = Range<usize>> + 'a {
    let line = LINE_BYTES as usize;
    let skew = (at % LINE_BYTES) as usize;
    let end_of = move |from: usize| ((from + skew) / line * line + line - skew).min(new.len());
    let differs = move |from: usize, end: usize| old[from..end] != new[from..end];
    let mut next = 0;
    std::iter::from_fn(move || {
        while next < new.len() && !differs(next, end_of(next)) {
            next = end_of(next);
        }
        let start = next;
        while next < new.len() && differs(next, end_of(next)) {
            next = end_of(next);
        }
        (start < next).then_some(start..next)
    })
}

impl Home for MappedHome {
    fn header(&self) -> Header {
        Header::Shared
    }

    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let end = offset.saturating_add(buf.len() as u64);
        let mut size = self.size.load(Ordering::Acquire);
        if end > size {
            size = self.learn(file)?;
        }
        let count =
            usize::try_from(size.saturating_sub(offset)).map_or(buf.len(), |left| left.min(buf.len()));
        if count > 0 {
            self.nvm.read(offset, &mut buf[..count]);
        }
        self.check()?;
        Ok(count)
    }

    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.size.load(Ordering::Acquire) {
            self.grow(file, end)?;
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let left = u64::from(self.page_bytes) - at % u64::from(self.page_bytes);
            let count = usize::try_from(left).map_or(bytes.len(), |left| left).min(bytes.len() - done);
            self.put(&bytes[done..done + count], at);
            done += count;
        }
        self.check()
    }

    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        let state = &mut *locked(&self.state);
        if !self.flush(state)? {
            if self.survives_power_loss() {
                file.sync()?;
            }
            self.writers.end(false);
        }
        self.check()
    }

    fn checkpointed(&self, _file: &dyn DatabaseFile) -> Result<(), LogError> {
        // Flush now, because not every checkpoint is followed by a sync. The next sync may be by another process, which
        // does not know the lines to flush.
        self.flush(&mut locked(&self.state)).map(drop)
    }

    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        self.learn(file)
    }

    fn hint(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), LogError> {
        self.grow(file, bytes)
    }

    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), LogError> {
        let _one_at_a_time = locked(&self.resizing);
        if self.learn_locked(file)? <= bytes {
            return Ok(());
        }
        self.size.store(bytes, Ordering::Release);
        self.nvm.shrink(bytes).map_err(failed)?;
        // Sync now, because another process may do the next sync, and that process does not know of this truncation.
        if self.survives_power_loss() { file.sync() } else { Ok(()) }
    }

    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        let state = &mut *locked(&self.state);
        let complete = self.flush(state)?;
        file.sync()?;
        if !complete {
            self.writers.end(false);
        }
        self.check()
    }
}

// Lines that were stored through the cache and not flushed yet.

/// The number of cache lines that one word covers. The word has a bit for each line.
const LINES: u64 = 64;
/// The number of bytes of memory that one word covers.
const CHUNK_BYTES: u64 = LINES * LINE_BYTES;
/// The most words that `Dirty` keeps, enough for 64 MiB of pages. A write that reaches this number flushes all lines.
const MOST_CHUNKS: usize = 16 << 10;

/// The dirty lines, by chunk of [`CHUNK_BYTES`]: the key is the chunk's number, and the value has a bit for each line.
#[derive(Debug, Default)]
struct Dirty(BTreeMap<u64, u64>);

impl Dirty {
    /// Records a store of bytes. Returns how many cache lines of these bytes were not dirty before.
    fn stored(&mut self, range: Range<u64>) -> u64 {
        let mut line = range.start / LINE_BYTES;
        let mut fresh = 0;
        while line * LINE_BYTES < range.end {
            let lines = self.0.entry(line / LINES).or_default();
            let bit = 1 << (line % LINES);
            fresh += u64::from(*lines & bit == 0);
            *lines |= bit;
            line += 1;
        }
        fresh
    }

    /// Records a non-temporal store of bytes. The cache lines that the store covers completely need no flush any more.
    fn streamed(&mut self, range: Range<u64>) {
        for line in range.start.div_ceil(LINE_BYTES)..range.end / LINE_BYTES {
            if let Some(lines) = self.0.get_mut(&(line / LINES)) {
                *lines &= !(1 << (line % LINES));
            }
        }
    }

    fn is_full(&self) -> bool {
        self.0.len() >= MOST_CHUNKS
    }

    /// Flushes all dirty lines that lie inside the memory.
    fn flush(&mut self, nvm: &dyn Nvm) {
        let len = nvm.len();
        for (chunk, lines) in std::mem::take(&mut self.0) {
            for run in runs(lines) {
                let from = chunk * CHUNK_BYTES + run.start * LINE_BYTES;
                let end = (chunk * CHUNK_BYTES + run.end * LINE_BYTES).min(len);
                if from < end {
                    nvm.flush(from, end - from);
                }
            }
        }
    }
}

/// Returns the ranges of consecutive ones in a word.
fn runs(mut lines: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        if lines == 0 {
            return None;
        }
        let start = lines.trailing_zeros();
        let count = (lines >> start).trailing_ones();
        // If the range ends at the last bit, nothing is left. A shift by 64 bits would overflow.
        let end = start + count;
        lines = if end >= u64::BITS { 0 } else { lines >> end << end };
        Some(u64::from(start)..u64::from(end))
    })
}

// Which processes have stored in the database file since it was last made durable.

/// The value of the shared word if no process has stored anything.
const NOBODY: u64 = 0;
/// The value of the shared word if several processes have stored something. Some of them may be dead.
const SEVERAL: u64 = u64::MAX;

/// A word that the processes share, and this process's name in it. SQLite's locks let only one process write at a time, so
/// each writer finds the name that the previous writer left.
#[derive(Default)]
struct Writers(Option<Shared>);

struct Shared {
    segment: Arc<dyn Segment>,
    at: u64,
    /// This process's name: not 0, and not `SEVERAL`.
    me: u64,
}

impl Writers {
    fn sharing(segment: Arc<dyn Segment>, at: u64) -> Self {
        // The name is random. If two processes had the same name, each would mistake the other's stores for its own. If
        // the system gives no random bytes, this process has no name, and must assume several writers.
        let me = getrandom::u64().ok().map(|word| word & (u64::MAX >> 1) | 1);
        Self(me.map(|me| Shared { segment, at, me }))
    }

    /// Enters this process as a writer. The caller calls this method before it stores anything. Returns whether only this
    /// process can have stored something that is not durable.
    fn claim(&self) -> bool {
        let Some(Shared { segment, at, me }) = &self.0 else { return false };
        loop {
            let word = segment.load(*at);
            match word {
                SEVERAL => return false,
                word if word == *me => return true,
                NOBODY => {
                    if segment.compare_exchange(*at, NOBODY, *me).is_ok() {
                        return true;
                    }
                }
                other => {
                    if segment.compare_exchange(*at, other, SEVERAL).is_ok() {
                        return false;
                    }
                }
            }
        }
    }

    /// Returns `true` if no other process can have stored anything since the word was last cleared. The caller has
    /// already made its own stores durable.
    fn synced(&self) -> bool {
        let Some(Shared { segment, at, me }) = &self.0 else { return false };
        let word = segment.load(*at);
        word == NOBODY || word == *me
    }

    /// Clears the word, because everything stored is durable. With `own`, only this process had stored something, and
    /// has flushed it. Without `own`, several processes may have stored something, and the caller has synced the file.
    fn end(&self, own: bool) {
        let Some(Shared { segment, at, me }) = &self.0 else { return };
        let expected = if own { *me } else { SEVERAL };
        // Clear the word only if it has the expected value. If it has another value, some process may have stored
        // something after the sync.
        let _ = segment.compare_exchange(*at, expected, NOBODY);
    }
}

#[cfg(test)]
mod dirty_tests {
    use duralite_medium::{FileNvm, MapOptions};

    use super::*;

    #[test]
    fn runs_of_lines() {
        let found = |lines| runs(lines).collect::<Vec<_>>();
        assert!(found(0).is_empty());
        assert_eq!(found(u64::MAX), vec![Range { start: 0, end: 64 }]);
        assert_eq!(found(0b1101 | 1 << 63), [0..1, 2..4, 63..64]);
    }

    #[test]
    fn each_line_is_flushed_once_and_none_beyond_the_end() {
        let options = MapOptions { capacity: 1 << 20, ..MapOptions::default() };
        let nvm = FileNvm::map(tempfile::tempfile().unwrap(), "nvm".as_ref(), &options).unwrap();
        nvm.grow(8192).unwrap();
        let mut dirty = Dirty::default();
        assert_eq!(dirty.stored(10..20), 1);
        assert_eq!(dirty.stored(10..130), 2);
        dirty.stored(4095..4097);
        dirty.stored(8191..9000);
        dirty.streamed(60..128);
        dirty.flush(&nvm);
        // The dirty lines are 0, 2, 63, 64 and 127. Line 1 was stored non-temporally.
        assert_eq!(nvm.counters().flushed_lines, 5);
        dirty.flush(&nvm);
        assert_eq!(nvm.counters().flushed_lines, 5);
    }
}

#[cfg(test)]
mod shared_tests {
    use duralite_medium::LocalSegment;

    use super::*;

    #[test]
    fn the_word_tells_whether_lines_may_be_somebody_elses() {
        let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(4096));
        let [one, other] = [0; 2].map(|_| Writers::sharing(Arc::clone(&segment), 64));
        assert!(one.claim() && one.claim() && one.synced());
        one.end(true);
        assert!(other.claim(), "the first has synced");
        // The second process dies after its store. Then the first process writes.
        assert!(!one.claim() && !one.synced());
        one.end(true);
        assert!(!one.claim(), "its own stores are not all");
        one.end(false);
        assert!(one.claim() && one.synced());
        let alone = Writers::default();
        assert!(!alone.claim() && !alone.synced());
    }
}
