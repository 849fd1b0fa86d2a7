//! Builds a tree from sorted rows, from the leaves up. Only the last page of each level is kept in memory.

use super::pages::Pages;
use crate::error::Error;
use crate::format::{
    LEAF_CELL_HEAD, PAGE_HEADER_BYTES, PageId, PageKind, Value, blank, cell_count, extra, free_bytes,
    inner_cell, leaf_cell, leaf_cell_head, push_cell, set_extra, set_payload,
};
use crate::tree::{inline_limit, shortest_between};

/// The size of a slot in bytes.
const SLOT: usize = 2;

/// The last page of a level, which is still being filled.
#[derive(Debug)]
struct Level {
    page: Vec<u8>,
    /// The lower bound of the page's keys. The keys of all pages to the left are smaller than this bound.
    low: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Builder {
    page_bytes: usize,
    /// The levels, beginning with the leaves.
    levels: Vec<Level>,
    last: Vec<u8>,
    rows: u64,
}

impl Builder {
    pub(super) fn new(page_bytes: usize) -> Self {
        Self { page_bytes, levels: Vec::new(), last: Vec::new(), rows: 0 }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns whether a key is above the key of the last row.
    pub(super) fn is_next(&self, key: &[u8]) -> bool {
        self.rows == 0 || key > self.last.as_slice()
    }

    /// Adds a row. The caller has checked that the row's key is above the last one.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], pages: &mut Pages) -> Result<(), Error> {
        if LEAF_CELL_HEAD + key.len() + value.len() <= inline_limit(self.page_bytes) {
            self.add_row(key, &[&leaf_cell_head(key, value), key, value], pages)
        } else {
            let first = self.chain(value, pages)?;
            let cell = leaf_cell(key, Value::Long { bytes: value.len() as u64, first });
            self.add_row(key, &[&cell], pages)
        }
    }

    /// Adds a row's cell, given in pieces, to the last leaf. Begins a new leaf if the cell does not fit.
    fn add_row(&mut self, key: &[u8], cell: &[&[u8]], pages: &mut Pages) -> Result<(), Error> {
        match self.levels.first() {
            None => self.add_level(),
            Some(leaf) if !has_room(&leaf.page, cell.iter().map(|piece| piece.len()).sum()) => {
                let low = shortest_between(&self.last, key);
                self.close(0, low, pages)?;
            }
            Some(_) => {}
        }
        self.add(0, cell)?;
        self.last.clear();
        self.last.extend_from_slice(key);
        self.rows += 1;
        Ok(())
    }

    /// Writes the last page of every level except the root's, and returns the root. Returns `None` if there are no
    /// rows.
    pub(super) fn finish(&mut self, pages: &mut Pages) -> Result<Option<Vec<u8>>, Error> {
        let mut level = 0;
        while level + 1 < self.levels.len() {
            self.close(level, Vec::new(), pages)?;
            level += 1;
        }
        Ok(self.levels.pop().map(|root| root.page))
    }

    /// Writes a long value as a chain of pages. Returns the first page, or 0 if the value is empty.
    fn chain(&self, value: &[u8], pages: &mut Pages) -> Result<PageId, Error> {
        if value.is_empty() {
            return Ok(0);
        }
        let most = self.page_bytes - PAGE_HEADER_BYTES;
        let first = pages.next_id()?;
        let (mut id, mut rest) = (first, value);
        let mut page = vec![0; self.page_bytes];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(most));
            let next = if after.is_empty() { 0 } else { pages.next_id()? };
            blank(&mut page, PageKind::Overflow, 0);
            set_extra(&mut page, next);
            set_payload(&mut page, piece);
            pages.write(id, &page)?;
            (id, rest) = (next, after);
        }
        Ok(first)
    }

    fn add_level(&mut self) {
        let mut page = vec![0; self.page_bytes];
        make_blank(&mut page, self.levels.len());
        self.levels.push(Level { page, low: Vec::new() });
    }

    fn add(&mut self, level: usize, cell: &[&[u8]]) -> Result<(), Error> {
        let page = &mut self.levels[level].page;
        push_cell(page, cell).map_err(|_| Error::corrupt("a page that is being built"))
    }

    /// Writes the last page of a level, adds a reference to it to the level above, and begins the level's next page.
    /// `low` is the lower bound of the next page's keys.
    fn close(&mut self, level: usize, low: Vec<u8>, pages: &mut Pages) -> Result<(), Error> {
        let id = pages.next_id()?;
        let it = &mut self.levels[level];
        pages.write(id, &it.page)?;
        make_blank(&mut it.page, level);
        let low_of_it = std::mem::replace(&mut it.low, low);
        self.add_child(level + 1, low_of_it, id, pages)
    }

    fn add_child(
        &mut self,
        level: usize,
        low: Vec<u8>,
        child: PageId,
        pages: &mut Pages,
    ) -> Result<(), Error> {
        if level == self.levels.len() {
            self.add_level();
        }
        let page = &mut self.levels[level].page;
        if cell_count(page) == 0 && extra(page) == 0 {
            // The first child of a page is left of all the page's keys, so this child has no cell.
            set_extra(page, child);
            return Ok(());
        }
        let cell = inner_cell(&low, child);
        if has_room(page, cell.len()) {
            return self.add(level, &[&cell]);
        }
        self.close(level, low, pages)?;
        set_extra(&mut self.levels[level].page, child);
        Ok(())
    }
}

fn make_blank(page: &mut [u8], level: usize) {
    let kind = if level == 0 { PageKind::Leaf } else { PageKind::Inner };
    blank(page, kind, level as u8);
}

fn has_room(page: &[u8], bytes: usize) -> bool {
    free_bytes(page) >= bytes + SLOT
}
