//! The file in which the processes of a rig acknowledge transactions.
//!
//! A process appends a record with one write after `COMMIT` has returned. If the process is killed, the page
//! cache holds that write either completely or not at all. The file grows only after the bytes are in the
//! page cache.

use std::fs::File;
use std::io::{Result, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The number of records that are read at a time.
const BATCH: usize = 4096;

/// Appends the acknowledgements of one process, and reads those of all processes. An
/// acknowledgement is a record of `N` numbers.
pub struct Acks<const N: usize> {
    file: File,
    read: u64,
}

impl<const N: usize> Acks<N> {
    /// The number of bytes of a record in the file.
    pub const RECORD_BYTES: usize = N * size_of::<i64>();

    /// Opens the file, or creates it if it does not exist.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).append(true).create(true).open(path);
        Ok(Self { file: file?, read: 0 })
    }

    /// Acknowledges a transaction.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn record(&mut self, record: [i64; N]) -> Result<()> {
        self.file.write_all(record.map(i64::to_le_bytes).as_flattened())
    }

    /// Returns the records that were appended since the previous call.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn refresh(&mut self) -> Result<Vec<[i64; N]>> {
        let (mut found, mut buffer) = (Vec::new(), vec![0; Self::RECORD_BYTES * BATCH]);
        loop {
            let got = self.file.read_at(&mut buffer, self.read)? / Self::RECORD_BYTES;
            if got == 0 {
                return Ok(found);
            }
            let bytes = &buffer[..got * Self::RECORD_BYTES];
            self.read += bytes.len() as u64;
            let mut numbers = bytes.as_chunks().0.iter().map(|number| i64::from_le_bytes(*number));
            found.extend((0..got).map(|_| [(); N].map(|()| numbers.next().unwrap_or_default())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_read_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        let (mut one, mut two) = (Acks::<2>::open(&path).unwrap(), Acks::<2>::open(&path).unwrap());
        one.record([1, -2]).unwrap();
        two.record([3, i64::MAX]).unwrap();
        assert_eq!(two.refresh().unwrap(), [[1, -2], [3, i64::MAX]]);
        for number in 0..BATCH as i64 + 1 {
            one.record([number, 0]).unwrap();
        }
        one.file.write_all(&[9; 15]).unwrap();
        assert_eq!(two.refresh().unwrap().len(), BATCH + 1);
        one.file.write_all(&[9]).unwrap();
        assert_eq!(two.refresh().unwrap(), [[0x0909_0909_0909_0909; 2]]);
    }
}
