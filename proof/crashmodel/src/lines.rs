//! Stores to mapped memory that are not surely durable.

use std::collections::BTreeMap;

use duralite_medium::LINE_BYTES;

use crate::pieces::{pieces, whole};

/// Bytes in a word, which memory stores whole or not at all.
pub const WORD_BYTES: usize = 8;

/// Of each line the words stored since it was last durable. Lines are written back spontaneously at any
/// time, and one that is flushed but not yet fenced may or may not have arrived.
#[derive(Debug, Default)]
pub struct Lines(BTreeMap<u64, Line>);

#[derive(Debug, Default)]
struct Line {
    /// Oldest first.
    stores: Vec<Store>,
    /// How many of them its last flush covered.
    flushed: usize,
}

type Store = (u64, [u8; WORD_BYTES]);

impl Lines {
    /// `len` bytes at `at` were stored; `visible` is what programs see after that.
    pub fn stored(&mut self, visible: &[u8], at: u64, len: usize) {
        for (within, _) in pieces(at, len, WORD_BYTES) {
            let word = within - within % WORD_BYTES as u64;
            self.0.entry(word / LINE_BYTES).or_default().stores.push((word, whole(visible, word)));
        }
    }

    /// The lines that `len` bytes at `at` touch begin to be written back.
    pub fn flush(&mut self, at: u64, len: u64) {
        if len > 0 {
            for line in self.0.range_mut(at / LINE_BYTES..=(at + len - 1) / LINE_BYTES).map(|(_, line)| line)
            {
                line.flushed = line.stores.len();
            }
        }
    }

    /// What was flushed becomes durable.
    pub fn fence(&mut self, durable: &mut [u8]) {
        self.settle(durable, |line| line.flushed);
    }

    /// What was stored becomes durable, flushed or not.
    pub fn fence_all(&mut self, durable: &mut [u8]) {
        self.settle(durable, |line| line.stores.len());
    }

    fn settle(&mut self, durable: &mut [u8], count: impl Fn(&Line) -> usize) {
        self.0.retain(|_, line| {
            let count = count(line);
            put(durable, &line.stores[..count]);
            line.stores.drain(..count);
            line.flushed = 0;
            !line.stores.is_empty()
        });
    }

    /// The medium was cut to `len` bytes, which takes the stores beyond along.
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
            !line.stores.is_empty()
        });
    }

    /// The lines in doubt, and how many states each has.
    pub fn in_doubt(&self) -> impl Iterator<Item = (u64, usize)> {
        self.0.iter().map(|(line, stores)| (*line, stores.stores.len() + 1))
    }

    /// Leaves a line of `image`, which is durable so far, in one of its states.
    pub fn leave(&self, image: &mut [u8], line: u64, state: usize) {
        if let Some(line) = self.0.get(&line) {
            put(image, &line.stores[..state]);
        }
    }

    /// Where each word in doubt was stored, and what, line by line, oldest first.
    pub fn stores(&self) -> impl Iterator<Item = (u64, &[u8; WORD_BYTES])> {
        self.0.values().flat_map(|line| &line.stores).map(|(at, word)| (*at, word))
    }
}

fn put(image: &mut [u8], stores: &[Store]) {
    for (at, word) in stores {
        let at = *at as usize;
        let end = (at + WORD_BYTES).min(image.len());
        // The medium may have been cut.
        if at < end {
            image[at..end].copy_from_slice(&word[..end - at]);
        }
    }
}
