//! Values that a program reads piece by piece.

use std::fmt;
use std::io::{self, Read};

/// A value that a program reads piece by piece, so that at most one page of a long value is in memory. See
/// [`Reader::get_stream`](crate::Reader::get_stream). If a read fails, the store's error is the source of the
/// [`io::Error`].
pub struct ValueReader<'r> {
    len: u64,
    from: Box<dyn Read + 'r>,
}

impl<'r> ValueReader<'r> {
    pub(crate) fn new(len: u64, from: impl Read + 'r) -> Self {
        Self { len, from: Box::new(from) }
    }

    /// Returns the length of the whole value in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for ValueReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueReader").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Read for ValueReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.from.read(buffer)
    }
}
