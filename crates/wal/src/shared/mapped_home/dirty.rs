//! Lines that were stored through the cache and not flushed yet.

use std::collections::BTreeMap;
use std::ops::Range;

use duralite_medium::{LINE_BYTES, Nvm};

/// Lines for which a word has bits.
const LINES: u64 = 64;
/// Bytes of memory that one word represents.
const CHUNK_BYTES: u64 = LINES * LINE_BYTES;
/// The most words that are kept, enough for 64 MiB of pages. When there are that many, all lines are flushed.
const MOST_CHUNKS: usize = 16 << 10;

/// The dirty lines, with a bit for each.
#[derive(Debug, Default)]
pub(super) struct Dirty(BTreeMap<u64, u64>);

impl Dirty {
    /// Records a store of bytes. Returns how many of their lines were not dirty before.
    pub(super) fn stored(&mut self, range: Range<u64>) -> u64 {
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

    /// Records a non-temporal store of bytes: lines that it covers completely need no flush any more.
    pub(super) fn streamed(&mut self, range: Range<u64>) {
        for line in range.start.div_ceil(LINE_BYTES)..range.end / LINE_BYTES {
            if let Some(lines) = self.0.get_mut(&(line / LINES)) {
                *lines &= !(1 << (line % LINES));
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MOST_CHUNKS
    }

    /// Flushes all dirty lines that lie inside the memory.
    pub(super) fn flush(&mut self, nvm: &dyn Nvm) {
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

/// The runs of ones in a word.
fn runs(mut lines: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        if lines == 0 {
            return None;
        }
        let start = lines.trailing_zeros();
        let count = (lines >> start).trailing_ones();
        // If the run ends at the last bit, there is nothing left to shift.
        let end = start + count;
        lines = if end >= u64::BITS { 0 } else { lines >> end << end };
        Some(u64::from(start)..u64::from(end))
    })
}

#[cfg(test)]
mod tests {
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
        // Lines 0, 2, 63, 64 and 127. Line 1 was stored non-temporally.
        assert_eq!(nvm.counters().flushed_lines, 5);
        dirty.flush(&nvm);
        assert_eq!(nvm.counters().flushed_lines, 5);
    }
}
