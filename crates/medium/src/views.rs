//! Where a file is mapped: as much of it as is needed, and anew elsewhere once that is not enough.
#![allow(unsafe_code)] // memory mapping

use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::cut::Watched;
use crate::mapping::map_shared;
use crate::process;

/// Each view is twice as long as the one before, where the address space has room for that.
const MOST_VIEWS: usize = 48;

/// How views are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) read_only: bool,
    pub(crate) dax: bool,
    pub(crate) watched: bool,
}

/// One mapping of the file, from its first byte on.
struct View {
    base: NonNull<u8>,
    bytes: usize,
    watched: Option<Watched>,
}

// SAFETY: the mapping belongs to this object alone and stays where it is until the drop; no reference points
// into it.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    fn map(file: &File, bytes: usize, how: How) -> Result<Self, Errno> {
        let protection = if how.read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let base = map_shared(file, bytes, protection, how.dax)?;
        // SAFETY: the whole of the mapping made above.
        unsafe { process::keep_from_children(base.as_ptr(), bytes) };
        Ok(Self { base, bytes, watched: how.watched.then(|| Watched::new(base.as_ptr(), bytes)) })
    }
}

/// The mappings of a file. All of them show the same pages of memory, so a read, a store or a flush may go
/// through any of them. The longest is used. The others stay as long as this object does, since another
/// thread may be using an address in them. Together they are no longer than twice the longest one.
pub(crate) struct Views {
    how: How,
    /// The address of the longest view.
    base: AtomicPtr<u8>,
    bytes: AtomicUsize,
    all: [OnceLock<View>; MOST_VIEWS],
    widening: Mutex<()>,
}

impl Views {
    /// Maps the first `bytes` of the file.
    pub(crate) fn new(file: &File, bytes: usize, how: How) -> Result<Self, Errno> {
        let first = View::map(file, bytes, how)?;
        let (base, bytes) = (AtomicPtr::new(first.base.as_ptr()), AtomicUsize::new(first.bytes));
        let all = [const { OnceLock::new() }; MOST_VIEWS];
        let widening = Mutex::new(());
        let views = Self { how, base, bytes, all, widening };
        let _ = views.all[0].set(first);
        Ok(views)
    }

    /// Where the file's first byte is. If [`Views::cover`] was called for a length before that length was
    /// published, a thread that has learnt of the length finds that many bytes here.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Acquire)
    }

    /// Bytes of the file that are mapped at that address.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Maps at least `bytes`, and `most` at most.
    pub(crate) fn cover(&self, file: &File, bytes: usize, most: usize) -> Result<(), Errno> {
        if bytes <= self.bytes() {
            return Ok(());
        }
        let _one_at_a_time = self.widening.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= self.bytes() {
            return Ok(());
        }
        let free = self.all.iter().find(|view| view.get().is_none()).ok_or(Errno::NOMEM)?;
        let wide = bytes.saturating_mul(2).min(most).max(bytes);
        let view = match View::map(file, wide, self.how) {
            Err(Errno::NOMEM) => View::map(file, bytes, self.how)?,
            mapped => mapped?,
        };
        let (base, mapped) = (view.base.as_ptr(), view.bytes);
        // The view is registered before any thread can meet a cut there.
        let _ = free.set(view);
        self.base.store(base, Ordering::Release);
        self.bytes.store(mapped, Ordering::Release);
        Ok(())
    }

    /// Whether an access through any of the views has found nothing.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        let mut all = self.all.iter().map_while(OnceLock::get);
        self.how.watched && all.any(|view| view.watched.as_ref().is_some_and(Watched::is_cut))
    }

    /// Forgets the views, and unmaps them in the process that has made them. A child has no such mappings,
    /// and may have others at those addresses.
    pub(crate) fn end(&mut self, is_own: bool) {
        for mut view in self.all.iter_mut().filter_map(OnceLock::take) {
            // Another mapping may soon be at this place.
            view.watched = None;
            if is_own {
                // SAFETY: this object made the mapping and nothing refers to it any more. An error would
                // leave the address space reserved, which harms nobody.
                let _ = unsafe { rustix::mm::munmap(view.base.as_ptr().cast(), view.bytes) };
            }
        }
    }
}
