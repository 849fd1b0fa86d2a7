//! A bounded cache of page images. Each image has a version: the number of the record or transaction after which it was
//! taken. The engine computes the next difference of a page from the page's image at its newest record. If the cache
//! does not have that image, the engine rebuilds it from the log.

use rustc_hash::FxHashMap;

/// The cache holds at least this many pages, whatever the byte limit.
const LEAST_PAGES: usize = 8;

struct Slot<V> {
    page_number: u32,
    version: V,
    /// Whether the image was used since the clock hand last passed the slot.
    used: bool,
    image: Box<[u8]>,
}

/// A cache of page images with second-chance replacement.
pub(crate) struct Images<V> {
    slots: Vec<Slot<V>>,
    by_page: FxHashMap<u32, usize>,
    page_bytes: usize,
    limit_pages: usize,
    /// The limit in pages that [`Images::clear`] restores.
    own_limit_pages: usize,
    hand: usize,
}

impl<V: Copy + PartialEq> Images<V> {
    pub(crate) fn new(page_bytes: usize, limit_bytes: usize) -> Self {
        let limit_pages = (limit_bytes / page_bytes).max(LEAST_PAGES);
        Self {
            slots: Vec::new(),
            by_page: FxHashMap::default(),
            page_bytes,
            limit_pages,
            own_limit_pages: limit_pages,
            hand: 0,
        }
    }

    /// Raises the limit to this many bytes, until [`Images::clear`] restores it.
    pub(crate) fn widen(&mut self, limit_bytes: usize) {
        self.limit_pages = self.limit_pages.max(limit_bytes / self.page_bytes);
    }

    /// Returns the image of a page, if its version is `version`.
    pub(crate) fn get(&mut self, page_number: u32, version: V) -> Option<&mut [u8]> {
        let slot = self.slots.get_mut(*self.by_page.get(&page_number)?)?;
        if slot.version != version {
            return None;
        }
        slot.used = true;
        Some(&mut slot.image)
    }

    /// Returns the image of a page, and its version.
    pub(crate) fn newest(&mut self, page_number: u32) -> Option<(V, &[u8])> {
        let slot = self.slots.get_mut(*self.by_page.get(&page_number)?)?;
        slot.used = true;
        Some((slot.version, &slot.image))
    }

    /// Applies `change` to the image of a page and sets the image's version to `to`. If the version is not `from`, or
    /// `change` returns `false`, drops the image instead.
    pub(crate) fn renew(
        &mut self,
        page_number: u32,
        from: Option<V>,
        to: V,
        change: impl FnOnce(&mut [u8]) -> bool,
    ) {
        let Some(slot) = self.by_page.get(&page_number).and_then(|&i| self.slots.get_mut(i)) else { return };
        if Some(slot.version) == from && change(&mut slot.image) {
            slot.version = to;
            slot.used = true;
        } else {
            self.remove(page_number);
        }
    }

    /// Caches a copy of the image as the page's `version`.
    pub(crate) fn put(&mut self, page_number: u32, version: V, image: &[u8]) {
        let index = match self.by_page.get(&page_number) {
            Some(&index) => index,
            None => self.take_slot(page_number, version),
        };
        if let Some(slot) = self.slots.get_mut(index) {
            slot.version = version;
            slot.used = true;
            slot.image.copy_from_slice(image);
        }
    }

    /// Drops the image of a page.
    pub(crate) fn remove(&mut self, page_number: u32) {
        if let Some(slot) = self.by_page.remove(&page_number).and_then(|i| self.slots.get_mut(i)) {
            slot.page_number = 0;
            slot.used = false;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.by_page.clear();
        self.limit_pages = self.own_limit_pages;
        self.hand = 0;
    }

    /// Returns a slot for a page: a new slot below the limit, else a slot whose image was not used recently.
    fn take_slot(&mut self, page_number: u32, version: V) -> usize {
        let index = if self.slots.len() < self.limit_pages {
            let image = vec![0; self.page_bytes].into_boxed_slice();
            self.slots.push(Slot { page_number, version, used: true, image });
            self.slots.len() - 1
        } else {
            self.evict()
        };
        if let Some(slot) = self.slots.get_mut(index) {
            slot.page_number = page_number;
        }
        self.by_page.insert(page_number, index);
        index
    }

    fn evict(&mut self) -> usize {
        loop {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[index];
            if !slot.used {
                if slot.page_number != 0 {
                    self.by_page.remove(&slot.page_number);
                }
                return index;
            }
            slot.used = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_limit_and_serves_only_the_asked_version() {
        let mut images = Images::new(512, 0);
        for page in 1..=100 {
            images.put(page, page * 10, &[page as u8; 512]);
        }
        assert_eq!(images.slots.len(), LEAST_PAGES);
        assert_eq!(images.by_page.len(), LEAST_PAGES);
        assert_eq!(images.get(100, 1000).map(|image| image[0]), Some(100));
        assert!(images.get(100, 999).is_none());
        images.remove(100);
        assert!(images.get(100, 1000).is_none());
        images.put(101, 1, &[1; 512]);
        assert!(images.get(101, 1).is_some());
    }
}
