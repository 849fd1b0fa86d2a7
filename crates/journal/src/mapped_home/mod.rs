//! A home that is the database file itself, mapped: reads are loads, writes are stores, and a sync is a fence (invariants
//! 5, 6, 19 and 20). It has nothing that is not in the file, so that nothing of it survives or needs recovery.
//!
//! # What is durable when
//!
//! On a medium that survives a power loss a page is durable after [`Home::sync`], as everywhere. A write stores the lines
//! that differ from what is there: through the cache, and then they are flushed at the sync, or past it ([`HomeSync`]). On
//! any other medium the same is done, since latencies are measured there, and nothing more: stores survive the death of the
//! process, and [`Home::drain`] syncs the file.
//!
//! A line that a process has stored and not flushed is seen by everybody and durable for nobody. Should that process die,
//! the next one writes the same pages again, and finds no difference. So it has to flush lines that it does not store, if
//! they may be of somebody else. Processes that share a word ([`MappedHome::sharing`]) know when that is: it names who
//! has written since the last sync, or says that several have. Then all lines of a page that is written are flushed, and
//! the sync is one of the file, by which the kernel writes back whatever anybody has stored. Without such a word that is
//! assumed always.
//!
//! # How large it is
//!
//! The file has the database's size, for everybody who looks: nothing is allocated beyond it. It grows by what is
//! written, or at once by what SQLite announces; what is new is allocated and its page faults are taken before anything is
//! stored there, so that no store can fail. It may be cut or grown by other processes, under SQLite's locks: its size is asked
//! where SQLite asks for it, before whoever may write begins to, and where something lies beyond what is known. What is
//! gone SQLite does not read.
//!
//! # A cut by an outsider
//!
//! Ends in an error: what was read or stored is checked behind each access ([`duralite_medium::Nvm::check`]).

mod dirty;
mod policy;
mod shared;

use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duralite_medium::{Guarantee, LINE_BYTES, MediumError, Nvm, Segment};

use crate::JournalError;
use crate::home::{DatabaseFile, Header, Home};
pub use crate::media::HomeSync;
use dirty::Dirty;
use policy::Policy;
use shared::Writers;

/// A database file in memory.
pub struct MappedHome {
    nvm: Arc<dyn Nvm>,
    page_bytes: u32,
    sync: HomeSync,
    /// Whether pages are stored whole, as in the paper.
    whole_pages: bool,
    writers: Writers,
    /// The file's size, as last learnt. The memory is at least as long.
    size: AtomicU64,
    /// Held while the size is learnt or changed.
    resizing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dirty: Dirty,
    /// `None` where the setting says how all pages are written.
    policy: Option<Policy>,
    /// Whether anything was stored since the last fence.
    unfenced: bool,
    page: Vec<u8>,
    figures: Figures,
}

/// What was done through a home.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Pages written, or parts of them.
    pub writes: u64,
    /// Of those, past the cache.
    pub through: u64,
    /// Lines stored.
    pub lines: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappedHome {
    /// A home over a database file that is mapped ([`DatabaseFile::map`]), with pages of so many bytes.
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

    /// The same for processes that share a word, which is 0 when they begin: at byte `at` of the memory of the log.
    #[must_use]
    pub fn sharing(mut self, segment: Arc<dyn Segment>, at: u64) -> Self {
        self.writers = Writers::sharing(segment, at);
        self
    }

    /// The same, storing every page whole, as the paper does: to measure what that costs.
    #[must_use]
    pub fn with_whole_pages(mut self, whole_pages: bool) -> Self {
        self.whole_pages = whole_pages;
        self
    }

    /// To be called by whoever attaches the log and has it alone: processes that have died may have stored what they did not
    /// flush. It is durable on return.
    ///
    /// # Errors
    /// Those of syncing `file`.
    pub fn recover(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        if self.survives_power_loss() { file.sync() } else { Ok(()) }
    }

    /// The memory.
    #[must_use]
    pub fn nvm(&self) -> &Arc<dyn Nvm> {
        &self.nvm
    }

    /// When its pages become durable.
    #[must_use]
    pub fn home_sync(&self) -> HomeSync {
        self.sync
    }

    /// What this process has done through it.
    #[must_use]
    pub fn figures(&self) -> Figures {
        locked(&self.state).figures
    }

    fn survives_power_loss(&self) -> bool {
        self.nvm.guarantee() == Guarantee::PowerLoss
    }

    fn check(&self) -> Result<(), JournalError> {
        self.nvm.check().map_err(failed)
    }

    /// Learns the file's size.
    fn learn(&self, file: &dyn DatabaseFile) -> Result<u64, JournalError> {
        let _one_at_a_time = locked(&self.resizing);
        self.learn_locked(file)
    }

    fn learn_locked(&self, file: &dyn DatabaseFile) -> Result<u64, JournalError> {
        let size = file.size()?;
        // The memory first: nothing is accessed beyond what is known.
        self.nvm.refresh_len(size).map_err(failed)?;
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    /// Makes the file at least so long.
    fn grow(&self, file: &dyn DatabaseFile, end: u64) -> Result<(), JournalError> {
        let _one_at_a_time = locked(&self.resizing);
        let size = self.learn_locked(file)?;
        if size < end {
            self.nvm.restore(size, end - size).map_err(failed)?;
            self.size.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// Stores what is to be at `at`, which lies in one page and inside of the file.
    fn put(&self, bytes: &[u8], at: u64) {
        // The lock is the process's: other processes do not write meanwhile.
        let state = &mut *locked(&self.state);
        let number = at / u64::from(self.page_bytes);
        let through = match &state.policy {
            Some(policy) => policy.is_through(number),
            None => self.sync == HomeSync::WriteThrough,
        };
        let start = state.is_timed().then(Instant::now);
        let known = self.writers.claim();
        state.unfenced = true;
        state.figures.writes += 1;
        state.figures.through += u64::from(through);
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
        state.figures.lines += done.lines;
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

    /// Makes durable what this process has stored; whether that is all that anybody has. The word that tells who has stored
    /// something changes with the state locked: another thread of this process that stores meanwhile names itself after that.
    fn flush(&self, state: &mut State) -> Result<bool, JournalError> {
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

/// Lines that were stored, and those of them that have to be flushed and had not to be before.
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

fn failed(source: MediumError) -> JournalError {
    JournalError::Medium { path: "the database in memory".into(), source }
}

/// The ranges of whole lines, cut at the ends, in which `new` is not what `old` is; both are what is at `at`.
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

    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, JournalError> {
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

    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
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

    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        let state = &mut *locked(&self.state);
        if !self.flush(state)? {
            if self.survives_power_loss() {
                file.sync()?;
            }
            self.writers.end(false);
        }
        self.check()
    }

    fn checkpointed(&self, _file: &dyn DatabaseFile) -> Result<(), JournalError> {
        // Not every checkpoint is followed by a sync, and the next one may be by somebody else.
        self.flush(&mut locked(&self.state)).map(drop)
    }

    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, JournalError> {
        self.learn(file)
    }

    fn hint(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), JournalError> {
        self.grow(file, bytes)
    }

    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), JournalError> {
        let _one_at_a_time = locked(&self.resizing);
        if self.learn_locked(file)? <= bytes {
            return Ok(());
        }
        self.size.store(bytes, Ordering::Release);
        self.nvm.shrink(bytes).map_err(failed)?;
        // Whoever syncs next may be another process, which knows nothing of this.
        if self.survives_power_loss() { file.sync() } else { Ok(()) }
    }

    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        let state = &mut *locked(&self.state);
        let complete = self.flush(state)?;
        file.sync()?;
        if !complete {
            self.writers.end(false);
        }
        self.check()
    }
}

#[cfg(test)]
mod tests;
