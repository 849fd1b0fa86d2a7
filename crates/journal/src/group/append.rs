//! Appending, under SQLite's WRITE lock.

use duralite_medium::MediumError;

use super::words::{
    DIRECT_END, DURABLE, ENDS, FRONTIER, GENERATION, GROUP_NUMBERS, INTENT, LENGTH, Mark, RING_BYTES, TAIL,
};
use super::{AREA_BYTES, Geometry, Group};
use crate::JournalError;
use crate::engine::Ticket;

/// The bytes of a transaction.
pub(crate) enum Content<'a> {
    /// The same wherever it goes.
    Anywhere(&'a [u8]),
    /// Of a fixed length, and made for a place.
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

/// Where a transaction is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placing {
    /// Position of its first byte.
    pub(crate) at: u64,
    /// Whether it begins a group.
    pub(crate) starts_group: bool,
}

impl Group {
    /// Seals a transaction that the ring has room for. Returns where it is and what to wait for.
    /// `time_ms` is that of a group that it begins.
    pub(crate) fn append(
        &self,
        mut content: Content<'_>,
        time_ms: u64,
    ) -> Result<(Placing, Ticket), JournalError> {
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
                // Left by a process that died before it published what it had written.
                self.set(DIRECT_END, tail.position);
            }
            self.set(FRONTIER, end.max(self.get(FRONTIER)));
            // Whoever reads what is written from here on reads this too when it looks again.
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

    fn refuse_during_switch(&self) -> Result<(), JournalError> {
        if self.get(INTENT) == self.get(GENERATION) {
            return Ok(());
        }
        Err(JournalError::Unexpected("a transaction of a generation that is over"))
    }

    /// Whether the ring has room up to a position: its oldest bytes go only once they are durable.
    fn is_free(&self, end: u64) -> bool {
        end.next_multiple_of(self.block_bytes()) <= self.durable().position + RING_BYTES
    }

    /// Whether a group may be opened behind the last, which is closed: a third that is not durable
    /// would take the place of the first's end.
    fn may_open_behind(&self, tail: Mark) -> bool {
        tail.group.wrapping_sub(self.durable().group) % GROUP_NUMBERS <= 1
    }

    /// Whether a transaction of so many bytes can be appended without waiting.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let tail = self.tail();
        let at = self.group_start(tail.position) + self.group_header_bytes();
        self.is_free(at + bytes) && (!tail.closed || self.may_open_behind(tail))
    }

    /// Makes sure that the file reaches to a position, and that it would after a power loss.
    pub(crate) fn reserve(&self, end: u64) -> Result<(), JournalError> {
        let offset = self.offset_of(self.generation(), end).next_multiple_of(self.block_bytes());
        if offset > self.get(LENGTH) {
            self.extend(offset)?;
        }
        self.learn_len(offset)
    }

    /// Makes the first blocks for groups, and durable with them all that is in the file before them.
    pub(crate) fn make_first_blocks(&self) -> Result<(), JournalError> {
        let first = self.first_bytes();
        self.reach(first, first)
    }

    /// Whether the file has room for any group. As long as it has none, nothing that it says needs to be durable.
    pub(crate) fn has_blocks(&self) -> bool {
        self.get(LENGTH) > self.geometry.data_offset
    }

    /// Bytes of the file with its first blocks, for which there has to be room.
    pub(crate) fn first_bytes(&self) -> u64 {
        let Geometry { data_offset, block_bytes, limit_bytes, .. } = self.geometry;
        (data_offset + first_step(block_bytes)).min(limit_bytes) / AREA_BYTES * AREA_BYTES
    }

    /// Makes the file durably reach to an offset. That it seems to already is not enough: a commit
    /// would then leave it to its own write to make the size and the blocks of another process
    /// durable, which is the file system's journal's work at every commit and no promise of the
    /// medium's.
    pub(super) fn extend(&self, offset: u64) -> Result<(), JournalError> {
        self.block.refresh_len().map_err(|source| self.failed(source))?;
        let length = self.block.len();
        let (wanted, least) = if offset <= length {
            (length, length)
        } else {
            let limit = self.geometry.limit_bytes;
            if offset > limit {
                return Err(JournalError::LimitReached { limit_bytes: limit });
            }
            let step = first_step(self.geometry.block_bytes).max(length.min(LARGEST_STEP));
            // As much is left to the database as is taken: what is in the log has to go there some time.
            let step = step.min(self.block.free_bytes() / 2);
            let wanted = (length + step).max(offset).min(limit) / AREA_BYTES * AREA_BYTES;
            let least = offset.next_multiple_of(AREA_BYTES);
            (wanted.max(least), least)
        };
        self.reach(wanted, least)
    }

    /// Makes the file durably as long as is wanted, or where there is not so much room at least as long as that.
    fn reach(&self, wanted: u64, least: u64) -> Result<(), JournalError> {
        let reached = match self.block.preallocate(wanted) {
            // A smaller step may still fit.
            Err(MediumError::NoSpace) if wanted > least => self.block.preallocate(least).map(|()| least),
            done => done.map(|()| wanted),
        };
        let reached = reached.map_err(|source| match source {
            MediumError::NoSpace => JournalError::NoSpace { dir: self.geometry.path.clone() },
            source => self.failed(source),
        })?;
        self.set(LENGTH, reached);
        Ok(())
    }

    /// Where a transaction goes that is written past the ring: everything before it is durable, and
    /// the last group closed with it.
    pub(crate) fn begin_direct(&self) -> Result<u64, JournalError> {
        self.drain()?;
        self.refuse_during_switch()?;
        Ok(self.group_start(self.tail().position))
    }

    /// Seals a group that was written past the ring from [`Group::begin_direct`]'s place on and is
    /// as durable as groups are. Nobody else appends meanwhile, so there is nothing for a leader.
    pub(crate) fn publish_direct(&self, end: u64) -> Result<Ticket, JournalError> {
        self.check()?;
        let (word, durable) = (self.get(TAIL), self.get(DURABLE));
        let (tail, last) = (Mark::unpack(word), Mark::unpack(durable));
        if !tail.closed || tail.position != last.position {
            return Err(JournalError::Unexpected("a large transaction behind one that is not durable"));
        }
        let new = Mark { position: end, group: tail.group + 1, closed: true };
        // Says to whoever takes over that there is nothing to write.
        self.set(DIRECT_END, end);
        let sealed = self.exchange(TAIL, word, new.pack());
        sealed.map_err(|_| JournalError::Unexpected("two writers at once"))?;
        self.made_durable(durable, Mark { closed: false, ..new });
        Ok(Ticket::new(new.pack()))
    }
}

/// Bytes that a log grows by at first: zeroing them takes part of the time of a program that
/// opens a database, commits once and closes it. Later it grows by as much as it has.
fn first_step(block_bytes: u32) -> u64 {
    u64::from(block_bytes) * 16
}

const LARGEST_STEP: u64 = 16 << 20;
