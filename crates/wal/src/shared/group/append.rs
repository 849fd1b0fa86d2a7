//! Appending, under SQLite's WRITE lock.

use duralite_medium::MediumError;

use super::words::{
    DIRECT_END, DURABLE, ENDS, FRONTIER, GENERATION, GROUP_NUMBERS, INTENT, LENGTH, Mark, RING_BYTES, TAIL,
};
use super::{AREA_BYTES, Geometry, Group};
use crate::LogError;
use crate::engine::Ticket;

/// The bytes of a transaction.
pub(crate) enum Content<'a> {
    /// Bytes that do not depend on their place.
    Anywhere(&'a [u8]),
    /// A number of bytes that are made for their place.
    At(u64, &'a mut dyn FnMut(Placing) -> Vec<u8>),
}

impl Content<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Anywhere(bytes) => bytes.len() as u64,
            Self::At(bytes, _) => *bytes,
        }
    }
}

/// The place that a transaction gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placing {
    /// Byte position of the transaction's first byte.
    pub(crate) at: u64,
    /// Whether the transaction begins a group.
    pub(crate) starts_group: bool,
}

impl Group {
    /// Seals a transaction that fits into the ring. Returns its place, and the ticket to wait for. `time_ms` is the
    /// time of a group that the transaction begins.
    pub(crate) fn append(
        &self,
        mut content: Content<'_>,
        time_ms: u64,
    ) -> Result<(Placing, Ticket), LogError> {
        loop {
            self.check()?;
            self.refuse_during_switch()?;
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            let group_start = self.group_start(tail.position);
            let at = if tail.closed { group_start + self.group_header_bytes() } else { tail.position };
            let end = at + content.len();
            if !self.is_free(end) || tail.closed && !self.may_open_behind(tail) {
                self.drain()?;
                continue;
            }
            self.reserve(end)?;
            let placing = Placing { at, starts_group: tail.closed };
            if self.get(DIRECT_END) > tail.position {
                // A process that died before it published a direct write has left this.
                self.set(DIRECT_END, tail.position);
            }
            self.set(FRONTIER, end.max(self.get(FRONTIER)));
            // A reader that sees any bytes written from here on also sees the new `FRONTIER` when it checks again.
            self.segment.fence();
            if tail.closed {
                if group_start - tail.position < self.block_bytes() {
                    self.write_ring(tail.position, &vec![0; (group_start - tail.position) as usize]);
                }
                if self.group_header_bytes() > 0 {
                    self.write_ring(group_start, &self.framing.placeholder(self.generation(), time_ms));
                }
            }
            match &mut content {
                Content::Anywhere(bytes) => self.write_ring(at, bytes),
                Content::At(_, make) => self.write_ring(at, &make(placing)),
            }
            if tail.closed {
                self.set(ENDS[(tail.group % 2) as usize], tail.position);
            }
            let group = tail.group + u64::from(tail.closed);
            let new = Mark { position: end, group, closed: false }.pack();
            if self.exchange(TAIL, word, new).is_ok() {
                return Ok((placing, Ticket::new(new)));
            }
        }
    }

    fn refuse_during_switch(&self) -> Result<(), LogError> {
        if self.get(INTENT) == self.get(GENERATION) {
            return Ok(());
        }
        Err(LogError::Unexpected("a transaction of a generation that is over"))
    }

    /// Whether the ring has space up to a byte position: its oldest bytes may be overwritten only once they are durable.
    fn is_free(&self, end: u64) -> bool {
        end.next_multiple_of(self.block_bytes()) <= self.durable().position + RING_BYTES
    }

    /// Whether a group may be opened after the last one, which is closed. A third group that is not durable would
    /// overwrite the entry of the first group in `ENDS`.
    fn may_open_behind(&self, tail: Mark) -> bool {
        tail.group.wrapping_sub(self.durable().group) % GROUP_NUMBERS <= 1
    }

    /// Whether a transaction of this size can be appended without waiting.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let tail = self.tail();
        let at = self.group_start(tail.position) + self.group_header_bytes();
        self.is_free(at + bytes) && (!tail.closed || self.may_open_behind(tail))
    }

    /// Makes sure that the file reaches to a byte position, even after a power loss.
    pub(crate) fn reserve(&self, end: u64) -> Result<(), LogError> {
        let offset = self.offset_of(self.generation(), end).next_multiple_of(self.block_bytes());
        if offset > self.get(LENGTH) {
            self.extend(offset)?;
        }
        self.learn_len(offset)
    }

    /// Allocates the first blocks for groups, and with them makes durable everything before them in the file.
    pub(crate) fn make_first_blocks(&self) -> Result<(), LogError> {
        let first = self.first_bytes();
        self.reach(first, first)
    }

    /// Whether the file has space for any group. As long as it has none, nothing that the file says needs to be
    /// durable.
    pub(crate) fn has_blocks(&self) -> bool {
        self.get(LENGTH) > self.geometry.data_offset
    }

    /// The length of the file in bytes with its first blocks, for which there has to be space.
    pub(crate) fn first_bytes(&self) -> u64 {
        let Geometry { data_offset, block_bytes, limit_bytes, .. } = self.geometry;
        (data_offset + first_step(block_bytes)).min(limit_bytes) / AREA_BYTES * AREA_BYTES
    }

    /// Makes the file durably reach to an offset. It is not enough that it seems to reach that far already. A commit
    /// would then rely on its own write to make durable the size and the blocks that another process allocated. That
    /// would cost a transaction of the file system's journal at every commit, and the medium does not promise it.
    pub(super) fn extend(&self, offset: u64) -> Result<(), LogError> {
        self.block.refresh_len().map_err(|source| self.failed(source))?;
        let length = self.block.len();
        let (wanted, least) = if offset <= length {
            (length, length)
        } else {
            let limit = self.geometry.limit_bytes;
            if offset > limit {
                return Err(LogError::LimitReached { limit_bytes: limit });
            }
            let step = first_step(self.geometry.block_bytes).max(length.min(LARGEST_STEP));
            // Take at most half of the free space, so that the database finds as much: the contents of the log have to
            // go there some time.
            let step = step.min(self.block.free_bytes() / 2);
            let wanted = (length + step).max(offset).min(limit) / AREA_BYTES * AREA_BYTES;
            let least = offset.next_multiple_of(AREA_BYTES);
            (wanted.max(least), least)
        };
        self.reach(wanted, least)
    }

    /// Makes the file durably `wanted` bytes long, or at least `least` bytes where there is not enough space.
    fn reach(&self, wanted: u64, least: u64) -> Result<(), LogError> {
        let reached = match self.block.preallocate(wanted) {
            // A smaller step may still fit.
            Err(MediumError::NoSpace) if wanted > least => self.block.preallocate(least).map(|()| least),
            done => done.map(|()| wanted),
        };
        let reached = reached.map_err(|source| match source {
            MediumError::NoSpace => LogError::NoSpace { dir: self.geometry.path.clone() },
            source => self.failed(source),
        })?;
        self.set(LENGTH, reached);
        Ok(())
    }

    /// The byte position of a transaction that bypasses the ring. On return everything before it is durable, and the
    /// last group is closed.
    pub(crate) fn begin_direct(&self) -> Result<u64, LogError> {
        self.drain()?;
        self.refuse_during_switch()?;
        Ok(self.group_start(self.tail().position))
    }

    /// Seals a group that was written to the device, bypassing the ring, at the byte position that
    /// [`Group::begin_direct`] gave. The group is as durable as groups are. No other process appends meanwhile, so there
    /// is nothing for a leader to write.
    pub(crate) fn publish_direct(&self, end: u64) -> Result<Ticket, LogError> {
        self.check()?;
        let (word, durable) = (self.get(TAIL), self.get(DURABLE));
        let (tail, last) = (Mark::unpack(word), Mark::unpack(durable));
        if !tail.closed || tail.position != last.position {
            return Err(LogError::Unexpected("a large transaction behind one that is not durable"));
        }
        let new = Mark { position: end, group: tail.group + 1, closed: true };
        // Tells a process that takes over the lead that there is nothing to write.
        self.set(DIRECT_END, end);
        let sealed = self.exchange(TAIL, word, new.pack());
        sealed.map_err(|_| LogError::Unexpected("two writers at once"))?;
        self.made_durable(durable, Mark { closed: false, ..new });
        Ok(Ticket::new(new.pack()))
    }
}

/// Bytes by which a log grows at first. Zeroing them takes part of the time of a program that opens a database, commits
/// once and closes it. Later the log grows by its own length each time, up to [`LARGEST_STEP`].
fn first_step(block_bytes: u32) -> u64 {
    u64::from(block_bytes) * 16
}

const LARGEST_STEP: u64 = 16 << 20;
