//! Finds the end of a log, for the process that attaches the log first.
//!
//! The log ends before the first group whose checks fail. A valid group after that place may be *ordered*: it was
//! written only after everything before it was durable. An ordered group there proves that the failed group is damage,
//! and not a torn write. A valid group that is not ordered may be there without any damage: if no flush separates
//! several writes, a power loss may leave a later one and tear an earlier one. Recovery overwrites such a group with
//! zeros before anything is appended. Otherwise a later scan could take the old group for the successor of a new one.

use std::thread;

use duralite_format::FormatError;
use duralite_format::sqlite_wal::make_wal_header;
use duralite_format::waldio::{
    AREA_BYTES, BodyHash, DATA_OFFSET, GROUP_HEADER_BYTES, GroupHeader, Layout, MARK_BYTES, Mark, Slot,
    Superblock, TX_HEADER_BYTES, body_hash, decode_frame, frame_bytes, slot_offset,
};
use duralite_medium::MediumError;
use duralite_medium::block::Block;

use super::prefetch::Prefetch;
use crate::LogError;
use crate::engine::salvage::damage_of;
use crate::shared::group::Recovered;

/// The number of bytes that recovery reads at once from a part of the log that may be long.
const CHUNK: u64 = 1 << 20;
/// The most bytes of a group that recovery keeps in memory. It reads longer groups a second time when it applies them.
const KEPT: u64 = 16 << 20;
/// The number of generations that salvage tries if no slot says which generation is in force.
const GENERATIONS_TRIED: u64 = 1 << 16;

/// The result of a scan of a log.
pub(crate) struct Found {
    pub(crate) slot: Slot,
    pub(crate) recovered: Recovered,
    /// Offset of the last ordered group. Everything before that group is durable.
    rewrite_from: u64,
    /// Offsets of blocks after the log's end that look like parts of the log. `settle` overwrites them with zeros.
    stale: Vec<u64>,
    /// Whether the log is known to be durable up to its end, with nothing after it.
    is_settled: bool,
}

/// A scan of a log's newest generation, before it has found the log's end.
pub(crate) struct Scan<'a> {
    pub(super) block: &'a dyn Block,
    pub(super) superblock: &'a Superblock,
    slot: Slot,
    pub(super) failed: &'a dyn Fn(MediumError) -> LogError,
}

/// The callback for each valid group of a `delta` log, in log order.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&CheckedGroup<'_>) -> Result<(), LogError>;

/// A group that is part of the log.
pub(crate) struct CheckedGroup<'a> {
    /// Offset of the group in the file.
    pub(crate) at: u64,
    /// Offset of the first byte after the group.
    pub(crate) end: u64,
    /// All bytes of the group; empty if the group is too long to be kept in memory.
    pub(crate) bytes: &'a [u8],
}

/// Reads the slot of the generation that is in force for the processes that share the log.
pub(crate) fn load_slot(
    block: &dyn Block,
    superblock: &Superblock,
    generation: u64,
    failed: &dyn Fn(MediumError) -> LogError,
) -> Result<Slot, LogError> {
    let offset = slot_offset(generation);
    let slot = read_slot(block, superblock, generation % 2, failed)?;
    let what = FormatError::Damaged { what: "the log's generation slot" };
    slot.filter(|slot| slot.generation == generation).ok_or(LogError::Corrupt { offset, what })
}

fn read_slot(
    block: &dyn Block,
    superblock: &Superblock,
    parity: u64,
    failed: &dyn Fn(MediumError) -> LogError,
) -> Result<Option<Slot>, LogError> {
    let mut area = [0; AREA_BYTES as usize];
    if block.len() < slot_offset(parity) + AREA_BYTES {
        return Ok(None);
    }
    block.read(slot_offset(parity), &mut area).map_err(failed)?;
    Ok(Slot::decode(&area, superblock.head.log_id).filter(|slot| slot.generation % 2 == parity))
}

/// Reads the newest slot on the device.
fn newest_slot(
    block: &dyn Block,
    superblock: &Superblock,
    failed: &dyn Fn(MediumError) -> LogError,
) -> Result<Slot, LogError> {
    let offset = slot_offset(0);
    let corrupt = |what| LogError::Corrupt { offset, what };
    let even = read_slot(block, superblock, 0, failed)?;
    let odd = read_slot(block, superblock, 1, failed)?;
    let newest = even.into_iter().chain(odd).max_by_key(|slot| slot.generation);
    let slot = newest.ok_or(corrupt(FormatError::Damaged { what: "the log's generation slots" }))?;
    if slot.file_bytes > block.len() {
        return Err(corrupt(FormatError::Short { what: "the log file" }));
    }
    Ok(slot)
}

impl<'a> Scan<'a> {
    /// Finds the generation in force.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`.
    pub(crate) fn begin(
        block: &'a dyn Block,
        superblock: &'a Superblock,
        failed: &'a dyn Fn(MediumError) -> LogError,
    ) -> Result<Self, LogError> {
        let slot = newest_slot(block, superblock, failed)?;
        let scan = Self { block, superblock, slot, failed };
        scan.refuse_newer_generation()?;
        Ok(scan)
    }

    /// Returns the generation in force.
    pub(crate) fn generation(&self) -> u64 {
        self.slot.generation
    }

    /// Returns the slot of the generation in force.
    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Does what [`Scan::begin`] does, for a log that may be damaged. If the newest slot cannot be used, takes the
    /// generation to which the log's first block belongs, and also returns the error with which recovery refuses the
    /// log.
    ///
    /// # Errors
    /// `Corrupt` if the first block belongs to no generation, `Medium`.
    pub(super) fn begin_damaged(
        block: &'a dyn Block,
        superblock: &'a Superblock,
        failed: &'a dyn Fn(MediumError) -> LogError,
    ) -> Result<(Self, Option<LogError>), LogError> {
        let (slot, error) = match newest_slot(block, superblock, failed) {
            Ok(slot) => {
                let scan = Self { block, superblock, slot, failed };
                match scan.refuse_newer_generation() {
                    Ok(()) => return Ok((scan, None)),
                    Err(error) => (Some(slot), damage_of(error)?),
                }
            }
            Err(error) => {
                let slots = [0, 1].map(|parity| read_slot(block, superblock, parity, failed));
                let [even, odd] = slots;
                let newest = even?.into_iter().chain(odd?).max_by_key(|slot| slot.generation);
                (newest, damage_of(error)?)
            }
        };
        let unknown = |generation| Slot {
            generation,
            wal_header: Some(make_wal_header(superblock.head.page_bytes, 0, [0; 2])),
            retired: false,
            file_bytes: DATA_OFFSET,
            position: 0,
            time_ms: 0,
        };
        let candidates: Box<dyn Iterator<Item = Slot>> = match slot {
            // Also try this slot, because it may be right. Perhaps the file is only shorter than the slot says.
            Some(slot) => Box::new([unknown(slot.generation + 1), slot].into_iter()),
            None => Box::new((1..=GENERATIONS_TRIED).map(unknown)),
        };
        let mut scan = Self { block, superblock, slot: unknown(0), failed };
        let (bytes, mut page) = scan.first_frame()?;
        for slot in candidates {
            if scan.starts_at(&bytes, &mut page, slot.generation, DATA_OFFSET).is_some() {
                scan.slot = slot;
                return Ok((scan, Some(error)));
            }
        }
        Err(error)
    }

    /// Returns a scan of the given generation, without its slot.
    pub(super) fn of_generation(
        block: &'a dyn Block,
        superblock: &'a Superblock,
        generation: u64,
        failed: &'a dyn Fn(MediumError) -> LogError,
    ) -> Self {
        let slot = Slot {
            generation,
            wal_header: None,
            retired: false,
            file_bytes: DATA_OFFSET,
            position: 0,
            time_ms: 0,
        };
        Self { block, superblock, slot, failed }
    }

    /// Does what [`Scan::find_end`] does, for a log that may be damaged. Finds the end of the part before the damage, and the
    /// error with which recovery refuses the log.
    ///
    /// # Errors
    /// `Corrupt` if the end cannot be found, `Medium`.
    pub(super) fn find_damage(self) -> Result<(Found, Option<LogError>), LogError> {
        if self.slot.wal_header.is_none() {
            return Ok((self.found(DATA_OFFSET, DATA_OFFSET), None));
        }
        let (end, rewrite_from) = self.end(&mut |_| Ok(()))?;
        let found = self.found(end, rewrite_from);
        match self.behind(end) {
            Ok(_) => Ok((found, None)),
            Err(error) => Ok((found, Some(damage_of(error)?))),
        }
    }

    fn end(&self, visit: Visit<'_>) -> Result<(u64, u64), LogError> {
        match self.superblock.layout {
            Layout::Delta => thread::scope(|scope| self.groups(&mut Prefetch::new(self.block, scope), visit)),
            Layout::Embedded => self.frames(),
        }
    }

    /// Finds the end of the log. Changes nothing. `left` is the log's end according to the last processes. A caller
    /// passes it only if they made everything before it durable and wrote nothing after it. If the scan finds the same
    /// end, it does not search the rest of the file.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`, and the errors of `visit`.
    pub(crate) fn find_end(self, left: Option<Recovered>, visit: Visit<'_>) -> Result<Found, LogError> {
        if self.slot.wal_header.is_none() {
            return Ok(self.found(DATA_OFFSET, DATA_OFFSET));
        }
        let (end, rewrite_from) = self.end(visit)?;
        let found = self.found(end, rewrite_from);
        let aligned = Recovered { end: end.next_multiple_of(8), ..found.recovered };
        if left == Some(aligned) {
            return Ok(Found { is_settled: true, ..found });
        }
        Ok(Found { stale: self.behind(end)?, ..found })
    }

    fn found(&self, end: u64, rewrite_from: u64) -> Found {
        let recovered = Recovered { generation: self.slot.generation, end };
        Found { slot: self.slot, recovered, rewrite_from, stale: Vec::new(), is_settled: false }
    }
}

impl Found {
    /// Makes durable what the scan has found, and overwrites stale blocks with zeros. All of this is durable on return.
    /// The newest groups need a flush: the process that wrote them may have died, or one of its writes may have failed,
    /// while they were only in a cache.
    pub(crate) fn settle(&self, block: &dyn Block, superblock: &Superblock) -> Result<(), MediumError> {
        if self.is_settled {
            return Ok(());
        }
        // If the generation has groups, its slot was durable before the first group was written. So the slot and the
        // groups need no flush between them, and one flush at the end is enough for both.
        block.write(slot_offset(self.slot.generation), &self.slot.encode(superblock.head.log_id))?;
        let unit = u64::from(superblock.block_bytes);
        let end = self.recovered.end.next_multiple_of(unit);
        let mut at = self.rewrite_from;
        let mut bytes = Vec::new();
        while at < end {
            bytes.resize((end - at).min(CHUNK) as usize, 0);
            block.read(at, &mut bytes)?;
            block.write(at, &bytes)?;
            at += bytes.len() as u64;
        }
        let zeros = vec![0; unit as usize];
        for at in &self.stale {
            block.write(*at, &zeros)?;
        }
        block.flush()
    }
}

impl Scan<'_> {
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), LogError> {
        self.block.read(at, buf).map_err(self.failed)
    }

    pub(super) fn unit(&self) -> u64 {
        u64::from(self.superblock.block_bytes)
    }

    /// Refuses a log whose newest slot cannot be read. Such a log seems to be in the generation of its older slot, but
    /// its first block belongs to the generation after that one.
    fn refuse_newer_generation(&self) -> Result<(), LogError> {
        let (bytes, mut page) = self.first_frame()?;
        if self.starts_at(&bytes, &mut page, self.slot.generation + 1, DATA_OFFSET).is_some() {
            let what = FormatError::Damaged { what: "the log's newest generation slot" };
            return Err(LogError::Corrupt { offset: slot_offset(self.slot.generation + 1), what });
        }
        Ok(())
    }

    /// Reads the first bytes of the log, enough for a frame. Also returns a buffer for a page.
    fn first_frame(&self) -> Result<(Vec<u8>, Vec<u8>), LogError> {
        let length = self.longest_frame().max(GROUP_HEADER_BYTES);
        let mut bytes = vec![0; length.min(self.block.len().saturating_sub(DATA_OFFSET)) as usize];
        self.read(DATA_OFFSET, &mut bytes)?;
        Ok((bytes, vec![0; self.superblock.head.page_bytes as usize]))
    }

    pub(super) fn longest_frame(&self) -> u64 {
        let (page, unit) = (self.superblock.head.page_bytes, self.superblock.block_bytes);
        u64::from(frame_bytes(page, unit, false))
    }

    /// Determines what begins at an offset. Returns `None` if neither a group nor a frame of the `embedded` layout
    /// begins there, `true` for an ordered group, and otherwise `false`. `page` is a buffer for a page.
    fn starts_at(&self, bytes: &[u8], page: &mut [u8], generation: u64, at: u64) -> Option<bool> {
        let Superblock { block_bytes, layout, .. } = *self.superblock;
        let log_id = self.superblock.head.log_id;
        match layout {
            Layout::Delta => GroupHeader::decode(bytes, log_id, generation, at).map(|group| group.ordered),
            Layout::Embedded => decode_frame(bytes, page, block_bytes, log_id, generation, at)
                .map(|(mark, _)| mark.starts_group && mark.ordered),
        }
    }

    /// Returns the end of the last valid group, and the beginning of the last ordered group.
    fn groups(&self, log: &mut Prefetch<'_, '_>, visit: Visit<'_>) -> Result<(u64, u64), LogError> {
        let mut bytes = Vec::new();
        let (mut end, mut ordered_from, mut sequence) = (DATA_OFFSET, DATA_OFFSET, 0);
        let (id, generation) = (self.superblock.head.log_id, self.slot.generation);
        loop {
            let at = end.next_multiple_of(self.unit());
            let room = self.block.len().saturating_sub(at);
            if room < GROUP_HEADER_BYTES {
                return Ok((end, ordered_from));
            }
            let head = log.get(at, GROUP_HEADER_BYTES as usize).map_err(self.failed)?;
            let Some(group) = GroupHeader::decode(head, id, generation, at) else {
                return Ok((end, ordered_from));
            };
            let least = GROUP_HEADER_BYTES + u64::from(TX_HEADER_BYTES);
            if group.bytes < least || group.bytes > room || group.first_sequence != sequence + 1 {
                return Ok((end, ordered_from));
            }
            let whole = if group.bytes <= self.longest_hole() {
                let whole = log.get(at, group.bytes as usize).map_err(self.failed)?;
                let body = &whole[GROUP_HEADER_BYTES as usize..];
                (body_hash(id, generation, at, body) == group.body_hash).then_some(whole)
            } else {
                bytes.clear();
                bytes.extend_from_slice(head);
                let hash = self.body_hash(log, at, group.bytes, &mut bytes)?;
                (hash == Some(group.body_hash)).then_some(&bytes[..])
            };
            let Some(whole) = whole else {
                return Ok((end, ordered_from));
            };
            if group.ordered {
                ordered_from = at;
            }
            // No real log has so many transactions. If the number comes from damage, the damage is reported when the
            // transactions are applied.
            sequence = sequence.saturating_add(group.transactions).min(u32::MAX - 1);
            end = at + group.bytes;
            visit(&CheckedGroup {
                at,
                end,
                bytes: if whole.len() as u64 == group.bytes { whole } else { &[] },
            })?;
        }
    }

    /// Returns the largest number of consecutive zeros, in bytes, that a valid body can have. A record that fills a
    /// page with zeros has so many.
    fn longest_hole(&self) -> u64 {
        2 * u64::from(self.superblock.head.page_bytes)
    }

    /// Computes the hash of a group's body piece by piece, because the length in the group's header cannot be trusted yet.
    /// Returns `None` if the body has a longer hole than any valid body. Appends the body to `read`, or only the beginning of
    /// the body if the group is longer than `KEPT`.
    pub(super) fn body_hash(
        &self,
        log: &mut Prefetch<'_, '_>,
        at: u64,
        bytes: u64,
        read: &mut Vec<u8>,
    ) -> Result<Option<u64>, LogError> {
        let (mut from, end) = (at + GROUP_HEADER_BYTES, at + bytes);
        let mut head = [0; TX_HEADER_BYTES as usize];
        head.copy_from_slice(log.get(from, TX_HEADER_BYTES as usize).map_err(self.failed)?);
        from += head.len() as u64;
        read.extend_from_slice(&head);
        let mut hash = BodyHash::new(self.superblock.head.log_id, self.slot.generation, at);
        while from < end {
            let mut until = end;
            if end - from > self.longest_hole() {
                let data = self.block.next_data(from).map_err(self.failed)?;
                if data.start - from > self.longest_hole() {
                    return Ok(None);
                }
                until = end.min(data.end);
            }
            let piece = log.some(from, (until - from).min(CHUNK) as usize).map_err(self.failed)?;
            hash.update(piece);
            if bytes <= KEPT {
                read.extend_from_slice(piece);
            }
            from += piece.len() as u64;
        }
        Ok(Some(hash.finish(&head)))
    }

    /// Returns the end of the last committed transaction of embedded frames, and the beginning of the last ordered group.
    fn frames(&self) -> Result<(u64, u64), LogError> {
        let (mut end, mut at, mut ordered_from) = (DATA_OFFSET, DATA_OFFSET, DATA_OFFSET);
        let mut transaction = None;
        let mut page = vec![0; self.superblock.head.page_bytes as usize];
        let mut bytes = Vec::new();
        loop {
            let room = self.block.len().saturating_sub(at);
            bytes.resize(room.min(self.longest_frame()) as usize, 0);
            self.read(at, &mut bytes)?;
            let Some((mark, taken)) = self.frame(&bytes, &mut page, at) else {
                return Ok((end, ordered_from));
            };
            if !mark.follows(transaction) {
                return Ok((end, ordered_from));
            }
            if mark.starts_group && mark.ordered {
                ordered_from = at;
            }
            at += u64::from(taken);
            transaction = Some(mark.transaction);
            if mark.db_pages != 0 {
                end = at;
                transaction = None;
            }
        }
    }

    pub(super) fn frame(&self, bytes: &[u8], page: &mut [u8], at: u64) -> Option<(Mark, u32)> {
        let (log_id, block_bytes) = (self.superblock.head.log_id, self.superblock.block_bytes);
        if bytes.len() < page.len().max(MARK_BYTES) {
            return None;
        }
        decode_frame(bytes, page, block_bytes, log_id, self.slot.generation, at)
    }

    /// Returns those blocks after the log's end that begin with a group or a frame of this generation. Fails with
    /// `Corrupt` if one of these groups is ordered.
    fn behind(&self, end: u64) -> Result<Vec<u64>, LogError> {
        let mut stale = Vec::new();
        // Skip the block in which the next group will begin. A group that begins there now is torn, and the next group
        // overwrites it.
        let mut at = end.next_multiple_of(self.unit()) + self.unit();
        let overlap = self.longest_frame().max(GROUP_HEADER_BYTES);
        let mut bytes = Vec::new();
        let mut page = vec![0; self.superblock.head.page_bytes as usize];
        while at < self.block.len() {
            // Start a little before the data that follows a hole. A frame that begins with zeros may begin in the hole.
            let data = self.block.next_data(at).map_err(self.failed)?;
            at = at.max(data.start.saturating_sub(overlap) / self.unit() * self.unit());
            let until = data.end.min(at + CHUNK);
            bytes.resize((until - at + overlap).min(self.block.len() - at) as usize, 0);
            self.read(at, &mut bytes)?;
            let first = at;
            while at < until {
                let here = &bytes[(at - first) as usize..];
                match self.starts_at(here, &mut page, self.slot.generation, at) {
                    Some(true) => {
                        let what = FormatError::Damaged { what: "a group of transactions" };
                        return Err(LogError::Corrupt { offset: end, what });
                    }
                    Some(false) => stale.push(at),
                    None => {}
                }
                at += self.unit();
            }
        }
        Ok(stale)
    }
}

/// The result of recovery for a log that has just been made.
pub(super) const NEW: Recovered = Recovered { generation: 1, end: DATA_OFFSET };

/// Writes an empty log into an empty file.
pub(crate) fn format(block: &dyn Block, superblock: &Superblock) -> Result<(), MediumError> {
    let slot = Slot {
        generation: 1,
        wal_header: None,
        retired: false,
        file_bytes: DATA_OFFSET,
        position: 0,
        // No transaction is ever committed in this first generation.
        time_ms: 0,
    };
    let mut head = superblock.encode().to_vec();
    head.resize(slot_offset(1) as usize, 0);
    head.extend_from_slice(&slot.encode(superblock.head.log_id));
    block.write_later(0, &head)
}
