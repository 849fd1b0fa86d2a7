//! The frame that each thread read last. SQLite's checkpoint reads a frame and then writes the same image home, in one thread.
//! So the engine knows which version of the page the image is, and need not search for it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_format::guard;

/// Whether two images of a page are the same. In page 1 this ignores the version bytes: one of the images may have held the
/// guard's, and what SQLite wrote there is then unknown.
pub(super) fn is_same(page_number: u32, one: &[u8], other: &[u8]) -> bool {
    if page_number != 1 || one.len() != other.len() {
        return one == other;
    }
    let (start, end) = (guard::VERSIONS.start, guard::VERSIONS.end);
    one.get(..start) == other.get(..start) && one.get(end..) == other.get(end..)
}

/// Few threads checkpoint at the same time.
const PLACES: usize = 8;

thread_local! {
    /// The address of this byte tells threads apart.
    static THREAD: u8 = const { 0 };
}

#[derive(Default)]
struct Read {
    thread: usize,
    page_number: u32,
    transaction: u64,
    image: Vec<u8>,
}

/// What each of a few threads read last.
#[derive(Default)]
pub(super) struct Recent([Mutex<Read>; PLACES]);

impl Recent {
    fn place(&self) -> Option<(usize, MutexGuard<'_, Read>)> {
        let thread = THREAD.try_with(|byte| std::ptr::from_ref(byte).addr()).ok()?;
        let place = self.0.get((thread / 64) % PLACES)?;
        Some((thread, place.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Records that this thread has read a page as it is after a transaction.
    pub(super) fn note(&self, page_number: u32, transaction: u64, page: &[u8]) {
        let Some((thread, mut read)) = self.place() else { return };
        (read.thread, read.page_number, read.transaction) = (thread, page_number, transaction);
        read.image.clear();
        read.image.extend_from_slice(page);
    }

    /// The transaction after which the page is like `page`, if that is what this thread read last.
    pub(super) fn version_of(&self, page_number: u32, page: &[u8]) -> Option<u64> {
        let (thread, read) = self.place()?;
        let is_it = read.thread == thread
            && read.page_number == page_number
            && is_same(page_number, &read.image, page);
        is_it.then_some(read.transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_thread_read_last_is_known() {
        let recent = Recent::default();
        recent.note(5, 9, &[1; 512]);
        assert_eq!(recent.version_of(5, &[1; 512]), Some(9));
        assert_eq!(recent.version_of(5, &[2; 512]), None);
        assert_eq!(recent.version_of(6, &[1; 512]), None);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(recent.version_of(5, &[1; 512]), None));
        });
        recent.note(6, 10, &[1; 512]);
        assert_eq!(recent.version_of(5, &[1; 512]), None);
    }
}
