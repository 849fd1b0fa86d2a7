//! Long values, which are stored in chains of pages.

use std::io::{self, Read};

use crate::error::{Error, VALUE_LIMIT};
use crate::format::{
    Change, Lsn, PAGE_HEADER_BYTES, PageId, PageKind, Undo, blank, extra, kind, payload, set_extra,
    set_payload,
};
use crate::pager::{Author, Logged, Pager};
use crate::space::{GivenPage, Purpose, Space};

/// Returns how many pages a value of this many bytes takes.
pub(crate) fn chain_pages(page_bytes: usize, bytes: u64) -> u64 {
    bytes.div_ceil((page_bytes - PAGE_HEADER_BYTES) as u64).max(1)
}

/// A page of a value that is being written. The page itself is not written yet. It has to name the next page, which is
/// not known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainPage<'a> {
    pub(crate) id: PageId,
    pub(crate) piece: &'a [u8],
}

/// Allocates a page for the next piece of a value. Makes it an empty overflow page at once, so that nothing mistakes
/// its old content for the root of a table. Then writes the previous page, which now refers to the new page. The undo
/// frees the new page. Returns the new page, the log object, and the undo.
pub(crate) fn add_to_chain(
    pager: &Pager,
    space: &Space,
    author: Author,
    before: Option<ChainPage<'_>>,
) -> Result<(PageId, Logged, Vec<u8>), Error> {
    let mut given = space.find(pager, 1, Purpose::Do)?;
    let GivenPage { id, set, .. } = given.pages[0];
    let mut undo = Vec::new();
    Undo::Page { page: id }.encode(&mut undo);
    let empty = chain_image(pager, &[], 0);
    let logged = match before {
        None => {
            let mut new = pager.pool.make(id)?;
            let changes = [(0, set), (1, Change::image_of(&empty))];
            pager.step(author, &undo, &mut [&mut given.maps[0], &mut new], &changes)?
        }
        Some(before) => {
            let image = chain_image(pager, before.piece, id);
            let mut page = pager.pool.make(before.id)?;
            let mut new = pager.pool.make(id)?;
            let changes = [(0, set), (1, Change::image_of(&image)), (2, Change::image_of(&empty))];
            pager.step(author, &undo, &mut [&mut given.maps[0], &mut page, &mut new], &changes)?
        }
    };
    given.taken();
    Ok((id, logged, undo))
}

/// Writes the last page of a value. This step needs no undo, because undoing the earlier steps frees the page.
pub(crate) fn end_chain(pager: &Pager, last: ChainPage<'_>) -> Result<Logged, Error> {
    let image = chain_image(pager, last.piece, 0);
    let mut page = pager.pool.make(last.id)?;
    pager.step(Author::SYSTEM, &[], &mut [&mut page], &[(0, Change::image_of(&image))])
}

fn chain_image(pager: &Pager, piece: &[u8], next: PageId) -> Vec<u8> {
    let mut image = vec![0; pager.pool.page_bytes()];
    blank(&mut image, PageKind::Overflow, 0);
    set_extra(&mut image, next);
    set_payload(&mut image, piece);
    image
}

/// Reads one page of a chain. Returns the piece of the value in it, and the next page.
pub(crate) fn chain_piece(pager: &Pager, page: PageId) -> Result<(Vec<u8>, PageId), Error> {
    let page = pager.pool.read(page)?;
    let piece = payload(page.bytes());
    if kind(page.bytes()) != PageKind::Overflow || piece.is_empty() {
        return Err(Error::Corrupt { what: "a long row".to_owned(), page: Some(page.id()) });
    }
    Ok((piece.to_vec(), extra(page.bytes())))
}

/// The rest of a long value, read piece by piece.
#[derive(Debug)]
pub(crate) struct Chain<'p> {
    pager: &'p Pager,
    /// The number of bytes that follow the current piece.
    left: u64,
    next: PageId,
    /// The number of bytes to skip before the first one that is returned.
    over: u64,
    piece: Vec<u8>,
    at: usize,
}

impl<'p> Chain<'p> {
    /// Returns a reader of a value of `bytes` bytes, from byte `over` on.
    pub(crate) fn new(pager: &'p Pager, first: PageId, bytes: u64, over: u64) -> Self {
        Self { pager, left: bytes, next: first, over, piece: Vec::new(), at: 0 }
    }

    /// Returns whether the current piece is used up, so that [`fill`](Self::fill) has to read the next one.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.piece.len() && self.left > 0
    }

    /// Reads the next piece.
    pub(crate) fn fill(&mut self) -> Result<(), Error> {
        loop {
            let (piece, next) = chain_piece(self.pager, self.next)?;
            let bytes = piece.len() as u64;
            let left = self.left.checked_sub(bytes).ok_or_else(|| Error::corrupt("a long row"))?;
            (self.piece, self.next, self.left) = (piece, next, left);
            if self.over < bytes || left == 0 {
                self.at = self.over.min(bytes) as usize;
                self.over = 0;
                return Ok(());
            }
            self.over -= bytes;
        }
    }

    /// Copies as much of the current piece as fits into the buffer. Returns how many bytes that is.
    pub(crate) fn read_piece(&mut self, buffer: &mut [u8]) -> usize {
        let left = &self.piece[self.at..];
        let some = left.len().min(buffer.len());
        buffer[..some].copy_from_slice(&left[..some]);
        self.at += some;
        some
    }
}

impl Read for Chain<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_empty() {
            self.fill().map_err(io::Error::other)?;
        }
        Ok(self.read_piece(buffer))
    }
}

/// Reads the whole value of a chain.
pub(crate) fn read_chain(pager: &Pager, first: PageId, bytes: u64) -> Result<Vec<u8>, Error> {
    if bytes > VALUE_LIMIT {
        return Err(Error::Corrupt { what: "a long row".to_owned(), page: Some(first) });
    }
    let mut value = Vec::new();
    let mut next = first;
    while (value.len() as u64) < bytes {
        let (piece, after) = chain_piece(pager, next)?;
        value.extend(piece);
        next = after;
    }
    if value.len() as u64 == bytes { Ok(value) } else { Err(Error::corrupt("a long row")) }
}

/// Frees the first page of a chain, for a transaction that has committed. Returns the next page, or 0 at the end of the
/// chain. The log object names the next page too, in its field `previous`.
pub(crate) fn free_chain_step(pager: &Pager, space: &Space, tx: u64, page: PageId) -> Result<PageId, Error> {
    let next: Lsn = {
        let page = pager.pool.read(page)?;
        if kind(page.bytes()) != PageKind::Overflow {
            return Err(Error::Corrupt {
                what: "a long row that is being freed".to_owned(),
                page: Some(page.id()),
            });
        }
        extra(page.bytes())
    };
    space.give_back(pager, Author { tx, previous: next, ..Author::SYSTEM }, page)?;
    Ok(next)
}
