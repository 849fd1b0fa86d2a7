//! Page images of the transactions after the damage. The records that an image depends on may be lost.

use duralite_format::FormatError;
use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
use rustc_hash::FxHashMap;

use super::LaterPage;

/// The newest images of pages, from records after the damage.
pub(crate) struct Images {
    page_bytes: usize,
    known: FxHashMap<u32, Box<[u8]>>,
    /// The pages of the transaction being read, in the order of their first records.
    order: Vec<u32>,
}

impl Images {
    pub(crate) fn new(page_bytes: u32) -> Self {
        Self { page_bytes: page_bytes as usize, known: FxHashMap::default(), order: Vec::new() }
    }

    /// Drops all images, because transactions are missing that may have changed the pages.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.order.clear();
    }

    /// Applies a record, which begins with its header, to the image of its page, if there is one.
    ///
    /// # Errors
    /// `Short`, `Damaged`. If the record could not be applied, the page's image is dropped.
    pub(crate) fn lay(&mut self, record: &[u8]) -> Result<(), FormatError> {
        let short = FormatError::Short { what: "a log record" };
        let (head, payload) = record.split_at_checked(RECORD_HEADER_BYTES as usize).ok_or(short)?;
        let header = RecordHeader::decode(head.try_into().map_err(|_| short)?)?;
        self.note(header.page_number);
        if header.base == Base::Zeros {
            let zeros = vec![0; self.page_bytes].into_boxed_slice();
            self.known.insert(header.page_number, zeros);
        }
        let Some(page) = self.known.get_mut(&header.page_number) else { return Ok(()) };
        let laid = header.apply(page, payload);
        if laid.is_err() {
            self.known.remove(&header.page_number);
        }
        laid
    }

    /// Stores the image of a page that the log holds whole.
    pub(crate) fn put(&mut self, page_number: u32, page: &[u8]) {
        self.note(page_number);
        self.known.insert(page_number, page.into());
    }

    fn note(&mut self, page_number: u32) {
        if !self.order.contains(&page_number) {
            self.order.push(page_number);
        }
    }

    /// Returns the pages of the transaction that has been read, and begins the next one.
    pub(crate) fn end_transaction(&mut self) -> Vec<LaterPage> {
        let order = std::mem::take(&mut self.order);
        let page = |page_number| LaterPage { page_number, image: self.known.get(&page_number).cloned() };
        order.into_iter().map(page).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(page_number: u32, base: Base, ranges: u16, payload: &[u8]) -> Vec<u8> {
        let record_bytes = RECORD_HEADER_BYTES + payload.len() as u32;
        let header = RecordHeader { record_bytes, frame: 1, page_number, ranges, base };
        [&header.encode()[..], payload].concat()
    }

    #[test]
    fn a_change_of_a_page_that_is_lost_makes_no_page() {
        let mut images = Images::new(512);
        images.lay(&record(3, Base::Previous, 1, &[4, 0, 0, 0, 7])).unwrap();
        images.lay(&record(2, Base::Zeros, 1, &[4, 0, 0, 0, 7])).unwrap();
        let pages = images.end_transaction();
        assert_eq!((pages[0].page_number, &pages[0].image), (3, &None));
        assert_eq!(pages[1].image.as_ref().unwrap().iter().filter(|byte| **byte == 7).count(), 1);
        images.lay(&record(2, Base::Previous, 1, &[5, 0, 0, 0, 8])).unwrap();
        let image = images.end_transaction().remove(0).image.unwrap();
        assert_eq!(image.iter().copied().filter(|byte| *byte != 0).collect::<Vec<_>>(), [7, 8]);
        images.clear();
        images.lay(&record(2, Base::Previous, 1, &[5, 0, 0, 0, 8])).unwrap();
        assert_eq!(images.end_transaction()[0].image, None);
    }
}
