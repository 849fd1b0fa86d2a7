//! Reading frames, and following what other processes commit.

use duralite_format::Origin;
use duralite_format::page_change::{self, ChangeKind};

use super::Ppl;
use super::staged::StagedFrame;
use super::store::{AsOf, Scratch};
use crate::LogError;
use crate::engine::home::DatabaseFile;
use crate::engine::{Frame, LogReader, Transaction};

impl LogReader for Ppl {
    fn refresh(&mut self) -> Result<(), LogError> {
        if self.frames.refresh(&self.store.area, &self.store.words)? {
            self.staged.clear();
        }
        Ok(())
    }

    fn version(&self) -> u64 {
        self.frames.generation().rotate_left(32) ^ (self.frames.known() & 0xffff_ffff)
    }

    fn committed(&self) -> u32 {
        self.frames.count()
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.frames.frame(number)
    }

    fn newest_frames(&self) -> Vec<(u32, u32)> {
        self.frames.newest()
    }

    fn origin(&self) -> Origin {
        let (position, time_ms) = self.frames.origin();
        Origin { generation: self.frames.generation(), position, time_ms }
    }

    fn transactions(&self) -> u32 {
        u32::try_from(self.frames.known().saturating_sub(self.frames.origin().0)).unwrap_or(u32::MAX)
    }

    fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        self.frames.after(self.frames.origin().0.saturating_add(u64::from(sequence)))
    }

    fn is_durable(&self, frame: u32) -> bool {
        frame <= self.frames.count()
    }

    fn is_current(&self) -> bool {
        self.store.words.fence();
        self.frames.is_current(&self.store.words)
    }

    fn read_page(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        if self.staged.get(frame).is_some() {
            return self.read_staged(file, frame, page);
        }
        let missing = LogError::Unexpected("a read of a frame that does not exist");
        let page_number = self.frames.page_of(frame).ok_or_else(|| missing.clone())?;
        let number = self.frames.number_of(frame).ok_or(missing)?;
        self.read_after(file, page_number, number, page)?;
        self.store.recent.note(page_number, number, page);
        Ok(())
    }
}

impl Ppl {
    /// The page as it is after a transaction.
    fn read_after(
        &mut self,
        file: &dyn DatabaseFile,
        page_number: u32,
        number: u64,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        if let Some(first) = self.store.area.find_chain(page_number)?
            && self.store.area.state(first, super::area::State::Last) <= number
        {
            return self.committed_page(file, page_number, page);
        }
        let as_of = AsOf::Transaction(number);
        self.store.read(file, page_number, as_of, page, &mut Scratch::default()).map(|_| ())
    }

    /// The page of a frame of the open transaction.
    fn read_staged(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        let Some(page_number) = self.staged.get(frame).map(|staged| staged.page_number) else {
            return Ok(());
        };
        // A whole page needs no version before it. There may be none, if the page is beyond the end of the database.
        let is_whole = |staged: &StagedFrame| page_change::kind(&staged.payload) == Ok(ChangeKind::Whole);
        if !self.staged.get(frame).is_some_and(is_whole) {
            self.committed_page(file, page_number, page)?;
        }
        let Some(staged) = self.staged.get(frame) else { return Ok(()) };
        page_change::apply(page, &staged.payload).map_err(|what| LogError::Corrupt { offset: 0, what })
    }
}
