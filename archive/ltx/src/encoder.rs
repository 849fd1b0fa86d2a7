//! Writes a file: its header, then page after page.

use std::io::Write;
use std::path::PathBuf;

use super::checksum::Checksum;
use super::error::LtxError;
use super::header::{HEADER_BYTES, Header};
use super::index::Index;
use super::layout::{FRAME_HAS_SIZE, FRAME_HEAD_BYTES, FRAME_SIZE_BYTES, lock_page, page_after};

/// Writes one file. The bytes depend on nothing but the header and the pages.
pub struct Encoder<W> {
    writer: W,
    header: Header,
    checksum: Checksum,
    index: Index,
    last_page: u32,
    written: u64,
    block: Vec<u8>,
}

impl<W: Write> Encoder<W> {
    /// Begins a file by writing its header. The header must not have a checksum of the database. If the file gets
    /// very many pages, the encoder keeps their index in a temporary file without a name, in the system's directory
    /// for temporary files.
    ///
    /// # Errors
    ///
    /// [`LtxError::Refused`] if the header breaks a rule; an I/O error of the writer.
    pub fn new(writer: W, header: Header) -> Result<Self, LtxError> {
        Self::begin(writer, header, None)
    }

    /// Does the same as [`Encoder::new`], but makes the temporary file in `dir`.
    ///
    /// # Errors
    ///
    /// As [`Encoder::new`].
    pub fn with_temporary_file_in(writer: W, header: Header, dir: PathBuf) -> Result<Self, LtxError> {
        Self::begin(writer, header, Some(dir))
    }

    fn begin(writer: W, header: Header, dir: Option<PathBuf>) -> Result<Self, LtxError> {
        if header.pre_checksum.is_some() {
            return Err(LtxError::Refused("the encoder writes no checksums of the database"));
        }
        let bytes = header.encode()?;
        let mut encoder = Self {
            writer,
            header,
            checksum: Checksum::new(),
            index: Index::new(dir),
            last_page: 0,
            written: 0,
            block: vec![0; lz4_flex::block::get_maximum_output_size(header.page_size as usize)],
        };
        encoder.write(&bytes)?;
        debug_assert_eq!(encoder.written, HEADER_BYTES as u64);
        Ok(encoder)
    }

    /// Adds a page. The caller adds pages in ascending order, but never the lock page or a page after the end of the
    /// database. A snapshot must get every page except these.
    ///
    /// # Errors
    ///
    /// [`LtxError::Refused`] if the page is not the next one or has another size; an I/O error of the writer or the
    /// temporary file.
    pub fn page(&mut self, page: u32, bytes: &[u8]) -> Result<(), LtxError> {
        if bytes.len() != self.header.page_size as usize {
            return Err(LtxError::Refused("a page of another size"));
        }
        if page <= self.last_page || page > self.header.commit || page == lock_page(self.header.page_size) {
            return Err(LtxError::Refused("a page that is out of order or not in the database"));
        }
        if self.header.is_snapshot() && Some(page) != page_after(self.last_page, self.header.page_size) {
            return Err(LtxError::Refused("a snapshot without one of its pages"));
        }
        let len = lz4_flex::block::compress_into(bytes, &mut self.block)
            .map_err(|_| LtxError::Refused("a page that LZ4 does not take"))?;
        let at = self.written;
        let mut head = [0; FRAME_HEAD_BYTES + FRAME_SIZE_BYTES];
        head[..4].copy_from_slice(&page.to_be_bytes());
        head[4..FRAME_HEAD_BYTES].copy_from_slice(&FRAME_HAS_SIZE.to_be_bytes());
        head[FRAME_HEAD_BYTES..].copy_from_slice(&(len as u32).to_be_bytes());
        self.write(&head)?;
        // The checksum covers the page before compression, so it does not depend on how LZ4 compresses.
        self.checksum.add(bytes);
        self.writer.write_all(&self.block[..len])?;
        self.written += len as u64;
        self.index.push(page, at, self.written - at)?;
        self.last_page = page;
        Ok(())
    }

    /// Ends the file. Returns the writer, which it does not flush, and the number of bytes written.
    ///
    /// # Errors
    ///
    /// [`LtxError::Refused`] if a snapshot lacks pages; an I/O error of the writer or the temporary file.
    pub fn finish(mut self) -> Result<(W, u64), LtxError> {
        if self.header.is_snapshot()
            && page_after(self.last_page, self.header.page_size)
                .is_some_and(|page| page <= self.header.commit)
        {
            return Err(LtxError::Refused("a snapshot without its last pages"));
        }
        self.write(&[0; FRAME_HEAD_BYTES])?;
        let at = self.written;
        let index = std::mem::replace(&mut self.index, Index::new(None));
        index.read(|piece| self.write(piece))?;
        self.write(&[0])?;
        self.write(&(self.written - at).to_be_bytes())?;
        // Write 0 in place of the checksum of the database, because the file has no such checksum.
        self.write(&[0; 8])?;
        let checksum = self.checksum.value();
        self.writer.write_all(&checksum.to_be_bytes())?;
        Ok((self.writer, self.written + 8))
    }

    /// Writes bytes, and adds the same bytes to the checksum.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.writer.write_all(bytes)?;
        self.checksum.add(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }
}
