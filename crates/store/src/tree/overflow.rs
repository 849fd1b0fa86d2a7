//! Long values, in chains of pages.

use duralite_logfmt::store::{
    Change, Lsn, PAGE_HEADER_BYTES, PageId, PageKind, Undo, blank, extra, kind, payload, set_extra,
    set_payload,
};

use crate::error::{Error, VALUE_LIMIT};
use crate::pager::{Author, Logged, Pager};
use crate::space::{GivenPage, Purpose, Space};

/// How many pages a value of so many bytes takes.
pub(crate) fn chain_pages(page_bytes: usize, bytes: u64) -> u64 {
    bytes.div_ceil((page_bytes - PAGE_HEADER_BYTES) as u64).max(1)
}

/// Writes a value from its end on, each page by an object of the author's that is taken back by giving the page
/// back; `logged` is told of each, with its undo. The chain's first page.
pub(crate) fn write_chain(
    pager: &Pager,
    space: &Space,
    value: &[u8],
    author: &mut dyn FnMut() -> Author,
    logged: &mut dyn FnMut(Logged, Vec<u8>),
) -> Result<PageId, Error> {
    let mut next: PageId = 0;
    let mut image = vec![0; pager.pool.page_bytes()];
    let room = pager.pool.page_bytes() - PAGE_HEADER_BYTES;
    for piece in value.chunks(room).rev() {
        let mut given = space.find(pager, 1, Purpose::Do)?;
        let GivenPage { id, set, .. } = given.pages[0];
        let mut page = pager.pool.make(id)?;
        blank(&mut image, PageKind::Overflow, 0);
        set_extra(&mut image, next);
        set_payload(&mut image, piece);
        let mut undo = Vec::new();
        Undo::Page { page: id }.encode(&mut undo);
        let changes = [(0, set), (1, Change::image_of(&image))];
        let step = pager.step(author(), &undo, &mut [&mut given.maps[0], &mut page], &changes)?;
        given.taken();
        logged(step, undo);
        next = id;
    }
    Ok(next)
}

/// The value in a chain.
pub(crate) fn read_chain(pager: &Pager, first: PageId, bytes: u64) -> Result<Vec<u8>, Error> {
    if bytes > VALUE_LIMIT {
        return Err(Error::Corrupt { what: "a long row".to_owned(), page: Some(first) });
    }
    let mut value = Vec::new();
    let mut next = first;
    while (value.len() as u64) < bytes {
        let page = pager.pool.read(next)?;
        let piece = payload(page.bytes());
        if kind(page.bytes()) != PageKind::Overflow || piece.is_empty() {
            return Err(Error::Corrupt { what: "a long row".to_owned(), page: Some(next) });
        }
        value.extend(piece);
        next = extra(page.bytes());
    }
    if value.len() as u64 == bytes { Ok(value) } else { Err(Error::corrupt("a long row")) }
}

/// Gives the first page of a chain back, for a transaction that has committed; which page is the next, 0 at the end. The
/// object says that too, in the field for the previous one.
pub(crate) fn free_chain_step(pager: &Pager, space: &Space, tx: u64, page: PageId) -> Result<PageId, Error> {
    let next: Lsn = {
        let page = pager.pool.read(page)?;
        if kind(page.bytes()) != PageKind::Overflow {
            return Err(Error::Corrupt { what: "a long row that goes".to_owned(), page: Some(page.id()) });
        }
        extra(page.bytes())
    };
    space.give_back(pager, Author { tx, previous: next, ..Author::SYSTEM }, page)?;
    Ok(next)
}
