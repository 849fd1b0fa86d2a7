//! The index of a file's frames. This code keeps the index in its encoded form, and moves the older part of a long
//! index to a temporary file. So the index takes little memory.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

/// The limit for the entries in memory, in bytes. At this limit they go to a temporary file. The entries of some
/// 400,000 pages have this length.
const IN_MEMORY: usize = 4 << 20;

/// The length of the longest entry in bytes: three numbers of at most ten bytes.
const LONGEST_ENTRY: usize = 30;

/// Returns the entry of a frame, encoded.
pub fn entry(page: u32, offset: u64, bytes: u64) -> impl AsRef<[u8]> {
    let mut entry = Entry { bytes: [0; LONGEST_ENTRY], len: 0 };
    for number in [u64::from(page), offset, bytes] {
        entry.push(number);
    }
    entry
}

struct Entry {
    bytes: [u8; LONGEST_ENTRY],
    len: usize,
}

impl Entry {
    /// Adds a number as a varint: seven bits in each byte, the lowest bits first.
    fn push(&mut self, mut number: u64) {
        loop {
            let rest = number >> 7;
            self.bytes[self.len] = (number & 0x7f) as u8 | if rest == 0 { 0 } else { 0x80 };
            self.len += 1;
            number = rest;
            if number == 0 {
                return;
            }
        }
    }
}

impl AsRef<[u8]> for Entry {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The index entries of the frames that were written so far.
pub struct Index {
    /// The directory for a temporary file. If it is `None`, the file goes to the system's directory for such files.
    dir: Option<PathBuf>,
    recent: Vec<u8>,
    /// The entries before those in `recent`. The file has no name, so nothing of it remains after a crash.
    spilled: Option<File>,
    in_memory: usize,
}

impl Index {
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { dir, recent: Vec::new(), spilled: None, in_memory: IN_MEMORY }
    }

    pub fn push(&mut self, page: u32, offset: u64, bytes: u64) -> io::Result<()> {
        self.recent.extend_from_slice(entry(page, offset, bytes).as_ref());
        if self.recent.len() < self.in_memory {
            return Ok(());
        }
        let file = match self.spilled.take() {
            Some(file) => file,
            None => self.dir.as_ref().map_or_else(tempfile::tempfile, tempfile::tempfile_in)?,
        };
        self.spilled.insert(file).write_all(&self.recent)?;
        self.recent.clear();
        Ok(())
    }

    /// Passes the bytes of all entries to `piece`, in order and in several calls.
    pub fn read(self, mut piece: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if let Some(mut file) = self.spilled {
            file.rewind()?;
            let mut buffer = vec![0; 64 << 10];
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    len => piece(&buffer[..len])?,
                }
            }
        }
        piece(&self.recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_seven_bits_in_each_byte() {
        assert_eq!(entry(1, 0x80, 0x3fff).as_ref(), [1, 0x80, 1, 0xff, 0x7f]);
        assert_eq!(entry(u32::MAX, u64::MAX, u64::MAX).as_ref().len(), 25);
    }

    #[test]
    fn entries_come_back_in_order_from_memory_and_from_the_file() {
        for in_memory in [IN_MEMORY, 40, 1] {
            let mut index = Index { in_memory, ..Index::new(None) };
            let mut expected = Vec::new();
            for page in 1..=100_u32 {
                index.push(page, u64::from(page) * 1000, 999).unwrap();
                expected.extend_from_slice(entry(page, u64::from(page) * 1000, 999).as_ref());
            }
            assert!(index.recent.len() < in_memory.max(1000));
            let mut found = Vec::new();
            index
                .read(|piece| {
                    found.extend_from_slice(piece);
                    Ok(())
                })
                .unwrap();
            assert_eq!(found, expected, "{in_memory}");
        }
    }
}
