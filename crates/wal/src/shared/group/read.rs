//! Reading sealed bytes: from the ring, or from the device once they have left the ring.

use super::Group;
use super::words::{DIRECT_END, FRONTIER, RING, RING_BYTES};
use crate::LogError;

impl Group {
    /// Copies bytes of the current generation from the ring, or from the device if they have left the ring. The caller
    /// must not ask for bytes beyond [`Group::sealed`].
    pub(crate) fn read(&self, generation: u64, position: u64, buf: &mut [u8]) -> Result<(), LogError> {
        if self.read_sealed(position, buf) {
            return Ok(());
        }
        let offset = self.offset_of(generation, position);
        self.learn_len(offset + buf.len() as u64)?;
        self.block.read(offset, buf).map_err(|source| self.failed(source))
    }

    /// Copies sealed bytes from the ring. Returns `false` if they have left the ring; the contents of `buf` are then
    /// undefined.
    pub(crate) fn read_sealed(&self, position: u64, buf: &mut [u8]) -> bool {
        let in_ring = |frontier: u64| frontier.wrapping_sub(position) <= RING_BYTES && position < frontier;
        if !in_ring(self.get(FRONTIER)) || position < self.get(DIRECT_END) {
            return false;
        }
        self.read_ring(position, buf);
        // If a writer has overwritten any of these bytes, then the load of `FRONTIER` after this fence shows it.
        self.segment.fence();
        in_ring(self.get(FRONTIER))
    }

    /// The byte position before which all bytes have left the ring: they are on the device.
    pub(crate) fn past_ring(&self) -> u64 {
        self.get(DIRECT_END).max(self.get(FRONTIER).saturating_sub(RING_BYTES))
    }

    /// Looks up the length of the file anew: another process may have extended it.
    pub(super) fn learn_len(&self, end: u64) -> Result<(), LogError> {
        if end <= self.block.len() {
            return Ok(());
        }
        self.block.refresh_len().map_err(|source| self.failed(source))
    }

    pub(super) fn read_ring(&self, position: u64, buf: &mut [u8]) {
        let at = position % RING_BYTES;
        let first = buf.len().min((RING_BYTES - at) as usize);
        let (head, rest) = buf.split_at_mut(first);
        self.segment.read(self.base + RING + at, head);
        self.segment.read(self.base + RING, rest);
    }

    pub(super) fn write_ring(&self, position: u64, bytes: &[u8]) {
        let at = position % RING_BYTES;
        let first = bytes.len().min((RING_BYTES - at) as usize);
        let (head, rest) = bytes.split_at(first);
        self.segment.write(self.base + RING + at, head);
        self.segment.write(self.base + RING, rest);
    }
}
