//! The sparse content of a disk. Copies share a page until one of them writes it.

use std::sync::Arc;

use crate::pieces;

/// The number of bytes in a page.
pub const PAGE: usize = 4096;

/// A page's bytes.
pub type Page = [u8; PAGE];
/// A page that was never written.
pub const ZEROS: &Page = &[0; PAGE];

/// The content of a disk. A page takes no memory if it was never written, or was written only with zeros. A
/// clone shares all pages with its original.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    pages: Vec<Option<Arc<Page>>>,
}

impl Pages {
    /// Returns a disk of zeros. `bytes` is rounded up to whole pages.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { pages: vec![None; bytes.div_ceil(PAGE as u64) as usize] }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Returns whether the disk's size is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Fills `out` with the content at offset `at`, in bytes. Past the end the content reads as zeros.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        let mut rest = out;
        for (index, within, len) in spans(at, rest.len()) {
            let (head, tail) = rest.split_at_mut(len);
            match self.page(index) {
                Some(page) => head.copy_from_slice(&page[within..within + len]),
                None => head.fill(0),
            }
            rest = tail;
        }
    }

    /// Writes `bytes` at offset `at`, in bytes. The disk grows if the bytes reach beyond its end.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (index, within, len) in spans(at, bytes.len()) {
            let (head, tail) = rest.split_at(len);
            if index >= self.pages.len() {
                self.pages.resize(index + 1, None);
            }
            write_page(&mut self.pages[index], within, head);
            rest = tail;
        }
    }

    /// Returns the page with this number. `None` stands for a page of zeros.
    #[must_use]
    pub fn page(&self, index: usize) -> Option<&Page> {
        self.pages.get(index)?.as_deref()
    }
}

impl PartialEq for Pages {
    fn eq(&self, other: &Self) -> bool {
        let count = self.pages.len().max(other.pages.len());
        self.len() == other.len()
            && (0..count).all(|index| self.page(index).unwrap_or(ZEROS) == other.page(index).unwrap_or(ZEROS))
    }
}

impl Eq for Pages {}

fn write_page(slot: &mut Option<Arc<Page>>, within: usize, bytes: &[u8]) {
    if let Ok(whole) = <&Page>::try_from(bytes) {
        *slot = (whole != ZEROS).then(|| Arc::new(*whole));
    } else if slot.is_some() || bytes != &ZEROS[..bytes.len()] {
        let page = Arc::make_mut(slot.get_or_insert_with(|| Arc::new(*ZEROS)));
        page[within..within + bytes.len()].copy_from_slice(bytes);
    }
}

/// Returns the pages that a range touches: page number, offset within the page and length, in bytes.
fn spans(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    pieces(at, len, PAGE).map(|(at, len)| ((at / PAGE as u64) as usize, (at % PAGE as u64) as usize, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_flat_buffer() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut flat = vec![0_u8; 10 * PAGE];
        let mut pages = Pages::new(flat.len() as u64);
        for _ in 0..500 {
            let at = random.usize(..flat.len());
            let len = random.usize(..=(flat.len() - at).min(3 * PAGE));
            let before = pages.clone();
            let bytes = vec![random.u8(..3); len];
            pages.write(at as u64, &bytes);
            let mut read = vec![9; flat.len()];
            before.read(0, &mut read);
            assert_eq!(read, flat, "a clone changed with its original");
            flat[at..at + len].copy_from_slice(&bytes);
            pages.read(0, &mut read);
            assert_eq!(read, flat);
        }
    }
}
