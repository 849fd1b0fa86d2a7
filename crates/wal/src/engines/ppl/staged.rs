//! The frames of the open transaction, each kept as its change of the committed page.

use rustc_hash::FxHashMap;

use crate::LogError;

/// A frame that is not committed.
#[derive(Debug)]
pub(super) struct StagedFrame {
    pub(super) page_number: u32,
    /// The version of the page to which the change applies.
    pub(super) base: u64,
    pub(super) payload: Vec<u8>,
}

/// Above this number of frames, a map finds the newest frame of each page.
const FEW: usize = 16;
/// How many payload buffers are kept for reuse, and the largest capacity of such a buffer.
const SPARE: usize = 16;
const SPARE_BYTES: usize = 16 << 10;

/// The frames of the open transaction, in the order of their numbers.
#[derive(Default)]
pub(super) struct Staged {
    first: u32,
    frames: Vec<Option<StagedFrame>>,
    bytes: u64,
    spare: Vec<Vec<u8>>,
}

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of all changes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn slot(&self, frame: u32) -> Option<usize> {
        frame.checked_sub(self.first).map(|slot| slot as usize)
    }

    pub(super) fn get(&self, frame: u32) -> Option<&StagedFrame> {
        self.frames.get(self.slot(frame)?)?.as_ref()
    }

    /// Keeps a frame. It replaces what was staged under the same number.
    pub(super) fn put(&mut self, frame: u32, staged: StagedFrame) -> Result<(), LogError> {
        if self.frames.is_empty() {
            self.first = frame;
        }
        let gap = LogError::Unexpected("a gap in the frame numbers");
        let slot = self.slot(frame).filter(|slot| *slot <= self.frames.len()).ok_or(gap)?;
        self.bytes += staged.payload.len() as u64;
        if slot == self.frames.len() {
            self.frames.push(Some(staged));
        } else if let Some(before) = self.frames[slot].replace(staged) {
            self.bytes -= before.payload.len() as u64;
            self.reuse(before.payload);
        }
        Ok(())
    }

    /// The pages of the frames from `first` to `last`, and the places of those frames that no later frame of the same page
    /// follows. `None` if one of the frames is not staged.
    pub(super) fn newest(&self, first: u32, last: u32) -> Option<(Vec<u32>, Vec<usize>)> {
        let (from, to) = (self.slot(first)?, self.slot(last)?);
        let frames = self.frames.get(from..=to)?;
        let pages: Option<Vec<u32>> =
            frames.iter().map(|staged| staged.as_ref().map(|staged| staged.page_number)).collect();
        let pages = pages?;
        let newest = if pages.len() <= FEW {
            (0..pages.len()).filter(|at| !pages[at + 1..].contains(&pages[*at])).map(|at| from + at).collect()
        } else {
            let last: FxHashMap<u32, usize> =
                pages.iter().enumerate().map(|(at, page)| (*page, at)).collect();
            (0..pages.len()).filter(|at| last.get(&pages[*at]) == Some(at)).map(|at| from + at).collect()
        };
        Some((pages, newest))
    }

    /// Removes and returns the frame at a place.
    pub(super) fn take(&mut self, place: usize) -> Option<StagedFrame> {
        self.frames.get_mut(place)?.take()
    }

    pub(super) fn clear(&mut self) {
        let mut frames = std::mem::take(&mut self.frames);
        frames.drain(..).flatten().for_each(|staged| self.reuse(staged.payload));
        self.frames = frames;
        self.bytes = 0;
    }

    /// An empty payload buffer.
    pub(super) fn spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a payload buffer for reuse.
    pub(super) fn reuse(&mut self, mut payload: Vec<u8>) {
        if self.spare.len() < SPARE && payload.capacity() <= SPARE_BYTES {
            payload.clear();
            self.spare.push(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(page_number: u32) -> StagedFrame {
        StagedFrame { page_number, base: 1, payload: vec![1; 10] }
    }

    #[test]
    fn of_a_page_that_is_there_twice_the_last_frame_counts() {
        for count in [6, 60] {
            let mut staged = Staged::default();
            for number in 0..count {
                staged.put(5 + number, frame(number % (count / 2))).unwrap();
            }
            assert_eq!(staged.bytes(), u64::from(count) * 10);
            let (pages, newest) = staged.newest(5, 4 + count).unwrap();
            assert_eq!(pages.len(), count as usize);
            assert_eq!(newest, (count as usize / 2..count as usize).collect::<Vec<_>>());
            assert_eq!(staged.newest(5, 5 + count), None);
            assert!(staged.newest(4, 5).is_none() && staged.get(4).is_none());
            staged.put(6, frame(900)).unwrap();
            assert_eq!(staged.get(6).unwrap().page_number, 900);
            assert!(staged.put(6 + count, frame(1)).is_err());
            staged.clear();
            assert!(staged.is_empty() && staged.bytes() == 0);
            staged.put(1, frame(1)).unwrap();
        }
    }
}
