//! A set of page numbers.

/// A set of page numbers. It keeps them as bits, so that a lookup is fast, and as a list, so that emptying
/// the set is fast.
#[derive(Default)]
pub struct PageSet {
    bits: Vec<u64>,
    pages: Vec<u32>,
}

impl PageSet {
    /// Returns whether the page is in the set.
    pub fn contains(&self, page: u32) -> bool {
        let (word, bit) = place(page);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Adds the page.
    pub fn insert(&mut self, page: u32) {
        let (word, bit) = place(page);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        if let Some(bits) = self.bits.get_mut(word)
            && *bits & bit == 0
        {
            *bits |= bit;
            self.pages.push(page);
        }
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        for page in self.pages.drain(..) {
            if let Some(bits) = self.bits.get_mut(place(page).0) {
                *bits = 0;
            }
        }
    }
}

fn place(page: u32) -> (usize, u64) {
    (page as usize / 64, 1 << (page % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_in_the_set_until_it_is_cleared() {
        let mut set = PageSet::default();
        for page in [1, 64, 65, 100_000, 64] {
            set.insert(page);
        }
        assert!([1, 64, 65, 100_000].into_iter().all(|page| set.contains(page)));
        assert!(![0, 2, 63, 66, 99_999, u32::MAX].into_iter().any(|page| set.contains(page)));
        assert_eq!(set.pages.len(), 4);
        set.clear();
        assert!(![1, 64, 65, 100_000].into_iter().any(|page| set.contains(page)));
    }
}
