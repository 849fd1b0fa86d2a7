//! Finds the end of a log, for the process that attaches the log first.
//!
//! The log ends before the first group whose checks fail. A valid group after that place may be *ordered*, which means that
//! it was written only after everything before it was durable. Such a group proves that the failed group is not a torn
//! write, but that the log is damaged. A valid group that is not ordered may be what a power loss left of writes without a
//! flush between them. Recovery overwrites such a group with zeros before anything is appended. Otherwise a later scan could
//! take that group for the successor of a new group.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;
use std::{mem, thread};

use duralite_format::FormatError;
use duralite_format::sqlite_wal::make_wal_header;
use duralite_format::waldio::{
    AREA_BYTES, BodyHash, DATA_OFFSET, GROUP_HEADER_BYTES, GroupHeader, Layout, MARK_BYTES, Mark, Slot,
    Superblock, TX_HEADER_BYTES, decode_frame, frame_bytes, slot_offset,
};
use duralite_medium::MediumError;
use duralite_medium::block::Block;

use crate::LogError;
use crate::engine::salvage::damage_of;
use crate::shared::group::Recovered;

/// How many bytes are read at once of a part of the log that may be long.
const CHUNK: u64 = 1 << 20;
/// Number of generations that salvage tries if no slot says which one is in force.
const GENERATIONS_TRIED: u64 = 1 << 16;

/// The result of a scan of a log.
pub(crate) struct Found {
    pub(crate) slot: Slot,
    pub(crate) recovered: Recovered,
    /// Offset of the last ordered group: everything before it is durable.
    rewrite_from: u64,
    /// Offsets of blocks behind the log's end that look like parts of it; `settle` zeroes them.
    stale: Vec<u64>,
    /// Whether the log is known to be durable up to its end, with nothing after it.
    is_settled: bool,
}

/// A scan of a log's newest generation, whose end is not known yet.
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

    /// The generation in force.
    pub(crate) fn generation(&self) -> u64 {
        self.slot.generation
    }

    /// The slot of the generation in force.
    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Like [`Scan::begin`], for a log that may be damaged. If the newest slot cannot be used, takes the generation of the
    /// log's first block, and also returns the error with which recovery refuses the log.
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
            // The slot may be right after all, and the file only shorter than the slot says.
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

    /// A scan of the given generation, without its slot.
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

    /// Like [`Scan::find_end`], for a log that may be damaged. Finds the end of the part before the damage, and the error with
    /// which recovery refuses the log.
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

    /// Finds the end of the log. Changes nothing. `left` is the end as the last processes left it, if they are known to have
    /// made the log durable up to there and written nothing behind. If the scan finds the end that `left` gives, it does not
    /// search the rest of the file.
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
    /// Makes durable what the scan has found, and overwrites stale blocks with zeros. Durable on return. The flush is needed
    /// because the newest groups may still be only in a cache: the process that wrote them may have died, or seen a write
    /// fail.
    pub(crate) fn settle(&self, block: &dyn Block, superblock: &Superblock) -> Result<(), MediumError> {
        if self.is_settled {
            return Ok(());
        }
        // If the generation has groups, its slot was durable before the first group was written. So the slot need not be
        // flushed before the groups, and one flush at the end is enough for both.
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

    /// Refuses a log whose newest slot cannot be read. Such a log is recognised by its first block: the older slot looks
    /// like the newest, but the first block belongs to the generation after that.
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

    /// Checks whether a group, or a frame of the `embedded` layout, begins at a place. Returns `None` if neither does, and
    /// otherwise whether an ordered group begins there. `page` is a buffer for a page.
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
            bytes.clear();
            bytes.extend_from_slice(head);
            if self.body_hash(log, at, group.bytes, &mut bytes)? != Some(group.body_hash) {
                return Ok((end, ordered_from));
            }
            if group.ordered {
                ordered_from = at;
            }
            // No real log reaches this number. If damage has caused it, applying the transactions will report the damage.
            sequence = sequence.saturating_add(group.transactions).min(u32::MAX - 1);
            end = at + group.bytes;
            let bytes = if bytes.len() as u64 == group.bytes { &bytes[..] } else { &[] };
            visit(&CheckedGroup { at, end, bytes })?;
        }
    }

    /// Computes the hash of a group's body piece by piece, because the length in the group's header cannot be trusted yet.
    /// `None` if the body has a longer hole than any valid body. Appends the body to `read`, or only the beginning of the
    /// body if the group is longer than `CHUNK`.
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
        // The longest run of zeros in a valid body is a record that fills a page with zeros.
        let longest_hole = 2 * u64::from(self.superblock.head.page_bytes);
        while from < end {
            let mut until = end;
            if end - from > longest_hole {
                let data = self.block.next_data(from).map_err(self.failed)?;
                if data.start - from > longest_hole {
                    return Ok(None);
                }
                until = end.min(data.end);
            }
            let piece = log.get(from, (until - from).min(CHUNK) as usize).map_err(self.failed)?;
            hash.update(piece);
            if bytes <= CHUNK {
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

    /// Returns the blocks behind the end at which a group or a frame of this generation begins. Fails with `Corrupt` if one of
    /// these groups is ordered.
    fn behind(&self, end: u64) -> Result<Vec<u64>, LogError> {
        let mut stale = Vec::new();
        // Start after the block at the end, because a group that begins in that block is torn, and the next group overwrites
        // it.
        let mut at = end.next_multiple_of(self.unit()) + self.unit();
        let overlap = self.longest_frame().max(GROUP_HEADER_BYTES);
        let mut bytes = Vec::new();
        let mut page = vec![0; self.superblock.head.page_bytes as usize];
        while at < self.block.len() {
            // Start a little before the data, because a frame may begin with zeros, in the hole before the data.
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

// Reads a log from front to back. In a long log a thread reads the next piece while the caller works on the last piece.

/// Smallest and largest size of a piece, in bytes. The sizes double. The thread starts when a piece has the largest size.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 1 << 20;

/// How many pieces the thread reads ahead: one that is ready while the caller works on the previous piece, and one more so
/// that the device is never idle.
const AHEAD: usize = 2;

/// A reader of a log that no process is writing. Starts a second thread if the log turns out to be long.
pub(super) struct Prefetch<'scope, 'env> {
    block: &'env dyn Block,
    scope: &'scope Scope<'scope, 'env>,
    bytes: Vec<u8>,
    /// Position of the first byte in `bytes`.
    at: u64,
    /// Intended size of the last piece, in bytes.
    size: u64,
    reader: Option<Reader>,
    /// Whether the system has refused to start the thread.
    is_single: bool,
}

impl<'scope, 'env> Prefetch<'scope, 'env> {
    pub(super) fn new(block: &'env dyn Block, scope: &'scope Scope<'scope, 'env>) -> Self {
        Self { block, scope, bytes: Vec::new(), at: 0, size: 0, reader: None, is_single: false }
    }

    /// Returns `len` bytes from a byte position on.
    ///
    /// # Errors
    /// Those of [`Block::read`]. An error of a piece that was read ahead is returned when the caller asks for that piece.
    pub(super) fn get(&mut self, from: u64, len: usize) -> Result<&[u8], MediumError> {
        let held = self.at..self.at + self.bytes.len() as u64;
        if !held.contains(&from) || held.end - from < len as u64 {
            let mut used = Vec::new();
            if held.contains(&from) {
                // Keep the rest of the last piece, and append to it.
                self.bytes.drain(..(from - held.start) as usize);
            } else {
                used = mem::take(&mut self.bytes);
            }
            self.at = from;
            while self.bytes.len() < len {
                self.append(len, mem::take(&mut used))?;
            }
        }
        let within = (from - self.at) as usize;
        Ok(&self.bytes[within..within + len])
    }

    /// Appends the next piece to `bytes`. `room` is a buffer to be reused.
    fn append(&mut self, len: usize, mut room: Vec<u8>) -> Result<(), MediumError> {
        let next = self.at + self.bytes.len() as u64;
        let missing = (len - self.bytes.len()) as u64;
        self.size = missing.max(self.size * 2).clamp(LEAST, MOST);
        let piece = match self.reader.as_mut().and_then(|reader| reader.take(next)) {
            Some(piece) => piece?,
            None => {
                // If the caller asks for more than the log has, read beyond the end as well, so that the device reports the
                // error.
                let size = self.size.min(self.block.len().saturating_sub(next)).max(missing.min(MOST));
                let mut piece = mem::take(&mut room);
                piece.resize(size as usize, 0);
                self.block.read(next, &mut piece)?;
                piece
            }
        };
        let after = next + piece.len() as u64;
        if self.bytes.is_empty() {
            self.bytes = piece;
        } else {
            self.bytes.extend_from_slice(&piece);
            room = piece;
        }
        if self.size == MOST && after < self.block.len() {
            self.start();
            if let Some(reader) = &mut self.reader {
                reader.ask(after, self.block.len(), room);
            }
        }
        Ok(())
    }

    /// Starts the thread. If the system refuses, the calling thread reads the log by itself.
    fn start(&mut self) {
        if self.reader.is_some() || self.is_single {
            return;
        }
        let (wanted, wants) = sync_channel::<Piece>(AHEAD);
        let (reads, read) = sync_channel(AHEAD);
        let block = self.block;
        let work = move || {
            for mut piece in wants {
                let result = block.read(piece.at, &mut piece.bytes);
                if reads.send((piece, result)).is_err() {
                    return;
                }
            }
        };
        match thread::Builder::new().spawn_scoped(self.scope, work) {
            Ok(_) => self.reader = Some(Reader { wanted, read, asked: 0, until: 0 }),
            Err(_) => self.is_single = true,
        }
    }
}

/// A piece of the log, or a buffer to read one into.
struct Piece {
    at: u64,
    bytes: Vec<u8>,
}

/// The caller's side of the thread. Dropping the `Reader` ends the thread.
struct Reader {
    wanted: SyncSender<Piece>,
    read: Receiver<(Piece, Result<(), MediumError>)>,
    /// Number of pieces that were requested and not taken yet. In the log they follow one another.
    asked: usize,
    /// Position where the last requested piece ends.
    until: u64,
}

impl Reader {
    /// Requests pieces of a log of `len` bytes until `AHEAD` pieces are outstanding. If none is outstanding, begins at `after`.
    fn ask(&mut self, after: u64, len: u64, mut room: Vec<u8>) {
        if self.asked == 0 {
            self.until = after;
        }
        while self.asked < AHEAD && self.until < len {
            let size = MOST.min(len - self.until);
            let mut bytes = mem::take(&mut room);
            bytes.resize(size as usize, 0);
            if self.wanted.send(Piece { at: self.until, bytes }).is_err() {
                return;
            }
            self.asked += 1;
            self.until += size;
        }
    }

    /// Returns the requested piece that begins at `at`. Drops the pieces requested before it; if none begins there, drops all.
    fn take(&mut self, at: u64) -> Option<Result<Vec<u8>, MediumError>> {
        while self.asked > 0 {
            self.asked -= 1;
            let (piece, result) = self.read.recv().ok()?;
            if piece.at == at {
                return Some(result.map(|()| piece.bytes));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use duralite_crashmodel::{BlockOp, RecordingBlock};
    use duralite_medium::MediumError;
    use duralite_medium::block::Block;

    use super::*;

    fn bytes_of(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 4096 + at % 251) as u8).collect()
    }

    /// Bytes that were read from the block.
    fn reads(block: &RecordingBlock) -> u64 {
        block.counters().read_bytes
    }

    #[test]
    fn a_log_of_many_pieces_is_read_as_it_is_and_only_once() {
        let log = bytes_of(5 << 20);
        for step in [100, 4096, 70_001, (1 << 20) + 5] {
            let block = RecordingBlock::from_bytes(log.clone(), 512);
            thread::scope(|scope| {
                let mut pieces = Prefetch::new(&block, scope);
                let mut at = 0;
                while at < log.len() {
                    let len = step.min(log.len() - at);
                    assert_eq!(pieces.get(at as u64, len).unwrap(), &log[at..at + len], "at {at}");
                    // Read bytes that were read before, like a caller that reads a header first and then the header again
                    // with everything that it announces.
                    assert_eq!(pieces.get(at as u64, len / 2).unwrap(), &log[at..at + len / 2]);
                    at += len;
                }
                assert!(pieces.reader.is_some(), "the log is long");
            });
            assert_eq!(reads(&block), log.len() as u64, "steps of {step}");
        }
    }

    #[test]
    fn what_is_left_out_is_skipped_and_what_was_given_up_is_read_again() {
        let log = bytes_of(6 << 20);
        let block = RecordingBlock::from_bytes(log.clone(), 512);
        thread::scope(|scope| {
            let mut pieces = Prefetch::new(&block, scope);
            for at in [0, 3 << 20, 10, (4 << 20) + 1, (4 << 20) + 40_000, 2 << 20, (6 << 20) - 300] {
                for at in [at, at + 100, at + 100] {
                    assert_eq!(pieces.get(at as u64, 200).unwrap(), &log[at..at + 200], "at {at}");
                }
            }
        });
    }

    #[test]
    fn a_short_log_is_read_by_whoever_asks() {
        let log = bytes_of(600 << 10);
        let block = RecordingBlock::from_bytes(log.clone(), 512);
        thread::scope(|scope| {
            let mut pieces = Prefetch::new(&block, scope);
            for at in (0..log.len() - 300).step_by(300) {
                assert_eq!(pieces.get(at as u64, 300).unwrap(), &log[at..at + 300]);
            }
            assert!(pieces.reader.is_none());
            let beyond = pieces.get(log.len() as u64 - 10, 20);
            assert!(matches!(beyond, Err(MediumError::OutOfBounds { .. })), "{beyond:?}");
        });
    }

    #[test]
    fn an_error_is_told_when_its_bytes_are_asked_for_and_not_before() {
        let log = bytes_of(8 << 20);
        let block = RecordingBlock::from_bytes(log.clone(), 512);
        thread::scope(|scope| {
            let mut pieces = Prefetch::new(&block, scope);
            let mut at = 0;
            while pieces.reader.is_none() {
                pieces.get(at, 4096).unwrap();
                at += 4096;
            }
            // By now at most `AHEAD` pieces have been requested. The read after these fails.
            let held = pieces.at + pieces.bytes.len() as u64;
            block.fail(BlockOp::Read, AHEAD as u64, MediumError::NoSpace);
            let failed_at = (at..log.len() as u64).step_by(4096).find(|at| pieces.get(*at, 4096).is_err());
            assert!(failed_at.unwrap() >= held, "{failed_at:?}");
            // Only one read fails, so reading the same bytes again succeeds.
            let at = failed_at.unwrap() as usize;
            assert_eq!(pieces.get(at as u64, 4096).unwrap(), &log[at..at + 4096]);
        });
    }
}
