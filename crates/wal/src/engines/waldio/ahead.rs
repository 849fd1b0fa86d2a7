//! Read-ahead for a process that reads a log sequentially. Each read is twice as large as the previous one, up to a limit.

use crate::LogError;

/// Smallest and largest size of a read, in bytes.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 1 << 20;
/// The number of bytes of memory that a buffer keeps when it is cleared.
const KEPT: usize = 16 << 10;

/// A buffer with a part of the log.
#[derive(Default)]
pub(super) struct Ahead {
    bytes: Vec<u8>,
    /// Position of the first byte in `bytes`.
    at: u64,
    /// Intended size of the last read, in bytes.
    size: u64,
}

impl Ahead {
    /// Returns `len` bytes from a byte position on. If the buffer does not hold them, fills the buffer from that
    /// position on by calling `read`, which may read more than `len` bytes. `at_once()` returns how many bytes can be
    /// read in one piece from that position on.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn get(
        &mut self,
        from: u64,
        len: u64,
        at_once: impl FnOnce() -> u64,
        read: impl FnOnce(u64, &mut [u8]) -> Result<(), LogError>,
    ) -> Result<&[u8], LogError> {
        let within = from.wrapping_sub(self.at);
        if from < self.at || within.saturating_add(len) > self.bytes.len() as u64 {
            self.size = (self.size * 2).clamp(LEAST, MOST);
            self.bytes.resize(len.max(self.size.min(at_once())) as usize, 0);
            self.at = from;
            if let Err(error) = read(from, &mut self.bytes) {
                self.clear();
                return Err(error);
            }
        }
        let within = (from - self.at) as usize;
        Ok(&self.bytes[within..within + len as usize])
    }

    /// Returns whether the buffer begins at this byte position or before it.
    pub(super) fn is_at_or_before(&self, position: u64) -> bool {
        self.at <= position
    }

    /// Fills the buffer with bytes that the caller has read.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.at = at;
    }

    /// Uses `read` to fill the buffer with `len` bytes from a byte position on. If `read` returns `false`, because the bytes
    /// have left the ring, the buffer is empty afterwards.
    pub(super) fn fill(&mut self, at: u64, len: usize, read: impl FnOnce(&mut [u8]) -> bool) {
        self.bytes.resize(len, 0);
        self.at = at;
        if !read(&mut self.bytes) {
            self.clear();
        }
    }

    /// Empties the buffer. The next read is small again.
    pub(super) fn clear(&mut self) {
        self.size = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_on_and_on_comes_in_ever_larger_pieces() {
        let log: Vec<u8> = (0..8_000_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut ahead, mut pieces) = (Ahead::default(), 0);
        for from in (0..log.len() as u64 - 300).step_by(4096) {
            let read = |at: u64, buf: &mut [u8]| {
                buf.copy_from_slice(&log[at as usize..at as usize + buf.len()]);
                pieces += 1;
                Ok(())
            };
            let got = ahead.get(from, 300, || log.len() as u64 - from, read).unwrap();
            assert_eq!(got, &log[from as usize..from as usize + 300]);
        }
        assert!(pieces < 20, "{pieces} pieces");
    }

    #[test]
    fn no_more_is_read_than_can_be_and_nothing_is_kept_after_an_error() {
        let mut ahead = Ahead::default();
        let got = ahead.get(
            100,
            10,
            || 20,
            |_, buf| {
                assert_eq!(buf.len(), 20);
                buf.fill(1);
                Ok(())
            },
        );
        assert_eq!(got.unwrap(), [1; 10]);
        ahead.get(200, 10, || 0, |_, _| Err(LogError::Unexpected("a read"))).unwrap_err();
        let got = ahead.get(
            200,
            10,
            || 0,
            |_, buf| {
                assert_eq!(buf.len(), 10);
                buf.fill(2);
                Ok(())
            },
        );
        assert_eq!(got.unwrap(), [2; 10]);
    }
}
