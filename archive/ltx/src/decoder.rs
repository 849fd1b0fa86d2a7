//! Reads an LTX file, and refuses a file that contradicts itself.

use std::io::{self, BufReader, Read};

use super::checksum::{CHECKSUM_FLAG, Checksum, DatabaseChecksum};
use super::error::LtxError;
use super::header::{HEADER_BYTES, Header};
use super::index::entry;
use super::layout::{
    FRAME_HAS_SIZE, FRAME_HEAD_BYTES, FRAME_SIZE_BYTES, INDEX_SIZE_BYTES, TRAILER_BYTES, lock_page,
    longest_block, page_after,
};

/// The number of bytes that the decoder reads at once.
const BUFFER: usize = 64 << 10;

/// What the decoder found in a file. The decoder returns this only after it has checked the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The file's header.
    pub header: Header,
    /// The number of pages in the file.
    pub pages: u32,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The checksum of the database after the file's last transaction, if the file has one.
    pub post_checksum: Option<u64>,
}

/// Reads one file. A caller may rely on the pages only after [`Decoder::finish`] has checked the whole file.
pub struct Decoder<R> {
    input: Input<R>,
    header: Header,
    /// The checksum and the length in bytes that the file's index must have, according to the frames read so far. The
    /// decoder compares the index with these two values, so it need not keep the index in memory.
    index: Checksum,
    index_bytes: u64,
    pages: u32,
    last_page: u32,
    /// The checksum of the pages read so far. The decoder needs it only for a snapshot that has checksums of the
    /// database.
    database: DatabaseChecksum,
    at_end_of_pages: bool,
    block: Vec<u8>,
}

impl<R: Read> Decoder<R> {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// [`LtxError::Damaged`] if there is no valid header; an I/O error of the reader.
    pub fn new(reader: R) -> Result<Self, LtxError> {
        let mut input =
            Input { reader: BufReader::with_capacity(BUFFER, reader), checksum: Checksum::new(), read: 0 };
        let mut bytes = [0; HEADER_BYTES];
        input.read(&mut bytes, "the file ends in its header")?;
        let header = Header::decode(&bytes)?;
        Ok(Self {
            input,
            header,
            index: Checksum::new(),
            index_bytes: 0,
            pages: 0,
            last_page: 0,
            database: DatabaseChecksum::new(),
            at_end_of_pages: false,
            block: vec![0; longest_block(header.page_size) as usize],
        })
    }

    /// Returns the file's header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the next page into `page`, which must be as long as a page, and returns the page's number. After the
    /// last page, returns `None`.
    ///
    /// # Errors
    ///
    /// [`LtxError::Damaged`] if the bytes are not a frame that may come next; an I/O error of the reader.
    pub fn next_page(&mut self, page: &mut [u8]) -> Result<Option<u32>, LtxError> {
        if page.len() != self.header.page_size as usize {
            return Err(LtxError::Refused("a page of another size"));
        }
        if self.at_end_of_pages {
            return Ok(None);
        }
        let at = self.input.read;
        let damaged = |what| LtxError::Damaged { offset: at, what };
        let mut head = [0; FRAME_HEAD_BYTES];
        self.input.read(&mut head, "the file ends between its pages")?;
        let [n0, n1, n2, n3, f0, f1] = head;
        let (number, flags) = (u32::from_be_bytes([n0, n1, n2, n3]), u16::from_be_bytes([f0, f1]));
        if number == 0 && flags == 0 {
            self.at_end_of_pages = true;
            return self.check_that_snapshot_is_whole(at).map(|()| None);
        }
        if flags != FRAME_HAS_SIZE {
            return Err(damaged("the page is encoded in a way that is not of version 3"));
        }
        self.check_order(number).map_err(damaged)?;
        let mut size = [0; FRAME_SIZE_BYTES];
        self.input.read(&mut size, "the file ends in a page")?;
        let size = u32::from_be_bytes(size) as usize;
        let Some(block) = self.block.get_mut(..size) else {
            return Err(damaged("the page is compressed to more than LZ4 makes of it"));
        };
        self.input.read_uncounted(block, "the file ends in a page")?;
        match lz4_flex::block::decompress_into(block, page) {
            Ok(len) if len == page.len() => {}
            _ => return Err(damaged("the compressed page is not a page")),
        }
        self.input.checksum.add(page);
        if self.header.is_snapshot() && self.header.pre_checksum.is_some() {
            self.database.add(number, page);
        }
        let entry = entry(number, at, self.input.read - at);
        self.index.add(entry.as_ref());
        self.index_bytes += entry.as_ref().len() as u64;
        self.pages += 1;
        self.last_page = number;
        Ok(Some(number))
    }

    /// Reads the remaining pages, and checks what follows them. The index must match the frames, the checksums must be
    /// right, and nothing may come after the checksums.
    ///
    /// # Errors
    ///
    /// [`LtxError::Damaged`] if one of these is wrong; an I/O error of the reader.
    pub fn finish(mut self) -> Result<Summary, LtxError> {
        if !self.at_end_of_pages {
            let mut page = vec![0; self.header.page_size as usize];
            while self.next_page(&mut page)?.is_some() {}
        }
        self.check_index()?;
        let at = self.input.read;
        let damaged = |what| LtxError::Damaged { offset: at, what };
        let mut trailer = [[0; TRAILER_BYTES / 2]; 2];
        self.input.read(&mut trailer[0], "the file ends in its trailer")?;
        let of_file = self.input.checksum.value();
        self.input.read(&mut trailer[1], "the file ends in its trailer")?;
        let [of_database, stated] = trailer.map(u64::from_be_bytes);
        if stated != of_file {
            return Err(damaged("the checksum of the file does not match"));
        }
        let is_right = match self.header.pre_checksum {
            None => of_database == 0,
            Some(_) if self.header.is_snapshot() => of_database == self.database.value(),
            Some(_) => of_database & CHECKSUM_FLAG != 0,
        };
        if !is_right {
            return Err(damaged("the checksum of the database does not match"));
        }
        let bytes = self.input.read;
        match self.input.read(&mut [0], "") {
            Err(LtxError::Damaged { .. }) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                return Err(LtxError::Damaged { offset: bytes, what: "something follows the file's end" });
            }
        }
        let post_checksum = self.header.pre_checksum.map(|_| of_database);
        Ok(Summary { header: self.header, pages: self.pages, bytes, post_checksum })
    }

    /// Checks that this page may come after the last one.
    fn check_order(&self, page: u32) -> Result<(), &'static str> {
        if page <= self.last_page {
            return Err("a page is out of order");
        }
        if page > self.header.commit || page == lock_page(self.header.page_size) {
            return Err("a page is not in the database");
        }
        if self.header.is_snapshot() && Some(page) != page_after(self.last_page, self.header.page_size) {
            return Err("the snapshot lacks a page");
        }
        Ok(())
    }

    fn check_that_snapshot_is_whole(&self, at: u64) -> Result<(), LtxError> {
        let next = page_after(self.last_page, self.header.page_size);
        if self.header.is_snapshot() && next.is_some_and(|page| page <= self.header.commit) {
            return Err(LtxError::Damaged { offset: at, what: "the snapshot lacks its last pages" });
        }
        Ok(())
    }

    /// Compares the index with the frames. The frames determine how long the index must be.
    fn check_index(&mut self) -> Result<(), LtxError> {
        let at = self.input.read;
        let damaged = |what| LtxError::Damaged { offset: at, what };
        let short = "the file ends in its index";
        let mut found = Checksum::new();
        let mut left = self.index_bytes;
        while left > 0 {
            let piece = left.min(self.block.len() as u64) as usize;
            self.input.read(&mut self.block[..piece], short)?;
            found.add(&self.block[..piece]);
            left -= piece as u64;
        }
        let mut end = [0; 1 + INDEX_SIZE_BYTES];
        self.input.read(&mut end, short)?;
        let [zero, size @ ..] = end;
        if found.value() != self.index.value()
            || zero != 0
            || u64::from_be_bytes(size) != self.index_bytes + 1
        {
            return Err(damaged("the index does not name the pages of the file"));
        }
        Ok(())
    }
}

/// Reads the file's bytes, counts them, and adds them to the checksum.
struct Input<R> {
    reader: BufReader<R>,
    checksum: Checksum,
    read: u64,
}

impl<R: Read> Input<R> {
    fn read(&mut self, bytes: &mut [u8], short: &'static str) -> Result<(), LtxError> {
        self.read_uncounted(bytes, short)?;
        self.checksum.add(bytes);
        Ok(())
    }

    /// Reads the bytes of a compressed page, and leaves them out of the checksum. The checksum of the file covers the
    /// uncompressed page instead.
    fn read_uncounted(&mut self, bytes: &mut [u8], short: &'static str) -> Result<(), LtxError> {
        self.reader.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => LtxError::Damaged { offset: self.read, what: short },
            _ => LtxError::Io(error),
        })?;
        self.read += bytes.len() as u64;
        Ok(())
    }
}
