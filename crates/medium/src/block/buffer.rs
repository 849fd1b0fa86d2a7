//! Buffers that direct I/O takes without a copy.

/// No device wants memory aligned more than this.
const ALIGNMENT: usize = 4096;

/// A growing buffer of bytes that begins at a multiple of 4096.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// Changes the length. What the buffer holds afterwards is unspecified.
    pub fn resize(&mut self, len: usize) {
        if self.bytes.len() < len + ALIGNMENT {
            self.bytes = vec![0; (len + ALIGNMENT).next_power_of_two()];
            self.start = self.bytes.as_ptr().align_offset(ALIGNMENT);
        }
        self.len = len;
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_at_every_length() {
        let mut buffer = AlignedBuf::default();
        for len in [0, 1, 512, 4096, 100_000, 3, 1 << 20] {
            buffer.resize(len);
            assert_eq!(buffer.as_slice().len(), len);
            buffer.as_mut_slice().fill(7);
            assert!(len == 0 || buffer.as_slice().as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
    }
}
