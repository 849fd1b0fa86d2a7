//! SQLite's header of the wal-index, which all processes see at the same time.
#![allow(unsafe_code)] // reads memory that others change

use std::ptr::NonNull;

use super::Attachment;

/// The offset, in the first region, of the number of changes of the database.
const CHANGES: usize = 8;
/// The offset there of the number of committed frames.
const FRAMES: usize = 16;

impl Attachment {
    /// How often the database has been changed, by SQLite's count. By this count SQLite knows that a snapshot
    /// is old.
    pub fn changes(&self) -> u32 {
        self.word_of_index(CHANGES)
    }

    /// How many frames are committed. Another process may have started the log over since this one last
    /// looked.
    pub fn indexed_frames(&self) -> u32 {
        self.word_of_index(FRAMES)
    }

    fn word_of_index(&self, offset: usize) -> u32 {
        let first = self.index_region(0, false).ok().flatten();
        // SAFETY: inside the region, which stays mapped as long as `self` lives, and aligned.
        first.map_or(0, |region: NonNull<u8>| unsafe { region.add(offset).cast::<u32>().read_volatile() })
    }
}
