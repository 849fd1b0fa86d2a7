//! Stores to mapped memory that may not be durable yet.

use std::collections::BTreeMap;

use duralite_medium::LINE_BYTES;

use crate::pieces::{pieces, whole};

/// The number of bytes in a word, the unit that memory stores whole or not at all.
pub const WORD_BYTES: usize = 8;

/// For each cache line, the words stored since the line was last durable. The processor may write a line back
/// at any time. A line that is flushed but not yet fenced may or may not have reached the medium.
#[derive(Clone, Debug, Default)]
pub struct Lines(BTreeMap<u64, Line>);

#[derive(Clone, Debug, Default)]
struct Line {
    /// The stores, oldest first.
    stores: Vec<Store>,
    /// The number of `stores` that the line's last flush covered.
    flushed: usize,
    /// Stores that a dropped flush should have written to the medium. They are now only in the processor's
    /// cache. The next store to the line puts them in doubt again, because the processor may then write the
    /// whole line back.
    lost: Vec<Store>,
}

type Store = (u64, [u8; WORD_BYTES]);

impl Line {
    fn is_settled(&self) -> bool {
        self.stores.is_empty() && self.lost.is_empty()
    }
}

impl Lines {
    /// Records a store of `len` bytes at `at`. `visible` is the content that programs see after the store.
    pub fn stored(&mut self, visible: &[u8], at: u64, len: usize) {
        for (within, _) in pieces(at, len, WORD_BYTES) {
            let word = within - within % WORD_BYTES as u64;
            let line = self.0.entry(word / LINE_BYTES).or_default();
            line.stores.append(&mut line.lost);
            line.stores.push((word, whole(visible, word)));
        }
    }

    /// Starts the write-back of the lines that `len` bytes at `at` touch.
    pub fn flush(&mut self, at: u64, len: u64) {
        if len > 0 {
            for line in self.0.range_mut(at / LINE_BYTES..=(at + len - 1) / LINE_BYTES).map(|(_, line)| line)
            {
                line.flushed = line.stores.len();
            }
        }
    }

    /// Makes flushed stores durable.
    pub fn fence(&mut self, durable: &mut [u8]) {
        self.settle(durable, |line| line.flushed);
    }

    /// Makes all stores durable, flushed or not.
    pub fn fence_all(&mut self, durable: &mut [u8]) {
        self.settle(durable, |line| line.stores.len());
    }

    fn settle(&mut self, durable: &mut [u8], count: impl Fn(&Line) -> usize) {
        self.0.retain(|_, line| {
            let count = count(line);
            put(durable, &line.stores[..count]);
            line.stores.drain(..count);
            line.flushed = 0;
            !line.is_settled()
        });
    }

    /// Simulates a medium that reports a flush as done but drops its data. The flushed stores (all stores if
    /// `all` is set) do not reach the medium. They can become durable only after another store to the same
    /// line.
    pub fn lose(&mut self, all: bool) {
        for line in self.0.values_mut() {
            let count = if all { line.stores.len() } else { line.flushed };
            line.lost.extend(line.stores.drain(..count));
            line.flushed = 0;
        }
    }

    /// Records that the medium was cut to `len` bytes. The stores past the new end are dropped.
    pub fn cut(&mut self, len: u64) {
        self.0.retain(|_, line| {
            let mut nth = 0;
            let flushed = line.flushed;
            line.stores.retain(|(at, _)| {
                let stays = *at < len;
                line.flushed -= usize::from(!stays && nth < flushed);
                nth += 1;
                stays
            });
            line.lost.retain(|(at, _)| *at < len);
            !line.is_settled()
        });
    }

    /// Returns the lines in doubt, and how many states each has.
    pub fn in_doubt(&self) -> impl Iterator<Item = (u64, usize)> {
        let in_doubt = self.0.iter().filter(|(_, line)| !line.stores.is_empty());
        in_doubt.map(|(number, line)| (*number, line.stores.len() + 1))
    }

    /// Puts one line of `image` into the given state. Before the call the line has its durable content.
    pub fn leave(&self, image: &mut [u8], line: u64, state: usize) {
        if let Some(line) = self.0.get(&line) {
            put(image, &line.stores[..state]);
        }
    }

    /// Returns the offset and content of each word in doubt, line by line. The words of a line are in the
    /// order of their stores.
    pub fn stores(&self) -> impl Iterator<Item = (u64, &[u8; WORD_BYTES])> {
        self.0.values().flat_map(|line| &line.stores).map(|(at, word)| (*at, word))
    }
}

fn put(image: &mut [u8], stores: &[Store]) {
    for (at, word) in stores {
        let at = *at as usize;
        let end = (at + WORD_BYTES).min(image.len());
        // The medium may have been cut shorter since the store.
        if at < end {
            image[at..end].copy_from_slice(&word[..end - at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_comes_back_with_the_next_store_in_its_line() {
        let (mut lines, mut visible, mut durable) = (Lines::default(), [0; 128], [0; 128]);
        for at in [0, 64] {
            visible[at] = 1;
            lines.stored(&visible, at as u64, 1);
        }
        lines.flush(0, 128);
        lines.lose(false);
        assert_eq!(lines.in_doubt().count(), 0);
        visible[8] = 2;
        lines.stored(&visible, 8, 1);
        lines.flush(0, 128);
        lines.fence(&mut durable);
        assert_eq!((durable[0], durable[8], durable[64]), (1, 2, 0));
    }
}
