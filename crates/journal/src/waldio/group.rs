//! Group commit: sealed transactions wait in shared memory, one committer writes them for all.
//!
//! **Places.** A transaction's place is a position that only grows while processes share the
//! segment; a generation maps its positions to the file from [`DATA_OFFSET`] on. The ring of the
//! segment holds the bytes of the newest positions, as they are to stand on the device.
//!
//! **Words.** `TAIL` is the end of the last sealed transaction, `DURABLE` the end of the last
//! durable group; both carry the group's number, and `TAIL` whether its group is closed. Who holds
//! SQLite's WRITE lock appends: it writes the ring behind `TAIL` and moves `TAIL` by one
//! compare-and-exchange. Who holds the leader lock closes the open group by another, writes it
//! with one write, and moves `DURABLE`. Either may die at any instruction: before its exchange
//! nothing has happened, and after it the words say what is left to do, so that the next leader
//! does it again from the ring (invariants 4, 7, 9). A group that is closed and not durable may
//! have the next one behind it already; `ENDS` says where it ends.
//!
//! **Sleeping.** A committer sleeps on one of two words, by its group's parity: at any time only
//! a closed and an open group are not durable. The leader wakes its whole group, and one member of
//! the next to lead it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duralite_logfmt::sqlite_wal::WAL_HEADER_BYTES;
use duralite_logfmt::waldio::{
    AREA_BYTES, DATA_OFFSET, GROUP_HEADER_BYTES, GroupHeader, Layout, Slot, Superblock, TX_HEADER_BYTES,
    TxHeader, body_hash, group_placeholder, slot_offset,
};
use duralite_medium::block::{AlignedBuf, Block, Durability};
use duralite_medium::{MediumError, Segment};

use super::options::WaldioOptions;
use crate::JournalError;
use crate::engine::{Committer, Ticket};

/// Words, each on lines of its own, relative to where the group's part of the segment begins.
const GENERATION: u64 = 0;
const TAIL: u64 = 128;
const DURABLE: u64 = 256;
const FRONTIER: u64 = 384;
const LEADER: u64 = 512;
const POISON: u64 = 640;
const HARDENED: u64 = 768;
const DIRECT_END: u64 = 896;
const SLEEPERS: [u64; 2] = [1024, 1152];
/// How many sleep, or are about to, beside their word; more than there are when some have died.
const SLEEPING: u64 = 8;
const STARTS: [u64; 2] = [1280, 1288];
/// Where a closed group ends, by its parity, once the next is open.
const ENDS: [u64; 2] = [1296, 1304];
/// A switch of generation that has begun: the number, and what its slot is to hold.
const INTENT: u64 = 1408;
const INTENT_STATE: u64 = 1416;
const INTENT_HEADER: u64 = 1424;
const SETTINGS: u64 = 1536;
/// Bytes that the file has durably, as far as is known: whoever sees a longer one may see what a
/// process left that died while it preallocated. 0 where nobody has said yet.
const LENGTH: u64 = 1544;
/// Bytes of the segment that have to be zeros at first. The ring behind them need not be: only what has
/// been written to it is read.
pub(crate) const STATE_BYTES: u64 = RING;
const RING: u64 = 4096;

/// Bytes of sealed transactions that may wait for a leader; a power of two.
pub(crate) const RING_BYTES: u64 = 1 << 20;
/// Bytes that the group's part takes in the segment.
pub(crate) const SHARED_BYTES: u64 = RING + RING_BYTES;
/// A transaction above this is written past the ring.
pub(crate) const RING_SHARE: u64 = RING_BYTES / 4;

/// How long a sleeper sleeps before it looks whether the leader is still alive.
const SLICE: Duration = Duration::from_millis(20);

const STATE_EMPTY: u64 = 1;
const STATE_RETIRED: u64 = 2;

/// A position with the number of its group, as `TAIL` and `DURABLE` hold it: bits 7.. position in
/// units of 8 bytes, bits 1..7 group number, bit 0 whether the group is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    position: u64,
    group: u64,
    closed: bool,
}

/// Group numbers wrap: only two groups are ever not durable.
const GROUP_NUMBERS: u64 = 1 << 6;

impl Mark {
    fn pack(self) -> u64 {
        (self.position / 8) << 7 | (self.group % GROUP_NUMBERS) << 1 | u64::from(self.closed)
    }

    fn unpack(word: u64) -> Self {
        Self { position: (word >> 7) * 8, group: word >> 1 & (GROUP_NUMBERS - 1), closed: word & 1 != 0 }
    }
}

/// What group commit has done in this process.
#[derive(Debug, Default)]
pub(crate) struct GroupActivity {
    pub(crate) groups: AtomicU64,
    pub(crate) led_transactions: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

/// The bytes of a transaction.
pub(crate) enum Content<'a> {
    /// The same wherever it goes.
    Anywhere(&'a [u8]),
    /// Of a fixed length, and made for a place.
    At(u64, &'a mut dyn FnMut(Placing) -> Vec<u8>),
}

impl Content<'_> {
    fn len(&self) -> u64 {
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

/// The part of a log that processes share.
pub(crate) struct Group {
    segment: Arc<dyn Segment>,
    base: u64,
    block: Arc<dyn Block>,
    superblock: Superblock,
    options: WaldioOptions,
    /// What the leader writes from.
    buffer: Mutex<AlignedBuf>,
    /// Why this process poisoned the log.
    reason: Mutex<Option<JournalError>>,
    /// Whether this process panicked while it waited or led: it stops, and the others go on as after
    /// its death, which may come at any instruction too.
    panicked: AtomicBool,
    pub(crate) activity: GroupActivity,
}

/// The leader lock, held.
struct Leader<'a>(&'a Group);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.set(LEADER, 0);
        self.0.wake_next_leader();
    }
}

/// Where a log stands when the first process attaches it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovered {
    pub(crate) generation: u64,
    /// Offset in the file behind the last committed transaction.
    pub(crate) end: u64,
}

impl Group {
    /// Joins the processes that share the log, or begins the sharing with what recovery found.
    pub(crate) fn join(
        segment: Arc<dyn Segment>,
        base: u64,
        block: Arc<dyn Block>,
        superblock: Superblock,
        options: WaldioOptions,
        recovered: Option<Recovered>,
    ) -> Result<Self, JournalError> {
        let group = Self {
            segment,
            base,
            block,
            superblock,
            options,
            buffer: Mutex::default(),
            reason: Mutex::default(),
            panicked: AtomicBool::new(false),
            activity: GroupActivity::default(),
        };
        if let Some(Recovered { generation, end }) = recovered {
            let end = end.next_multiple_of(8);
            let closed = Mark { position: end, group: 0, closed: true };
            group.set(STARTS[(generation % 2) as usize], DATA_OFFSET);
            group.set(GENERATION, generation);
            group.set(INTENT, generation);
            group.set(TAIL, closed.pack());
            group.set(DURABLE, Mark { closed: false, ..closed }.pack());
            group.set(FRONTIER, end);
            group.set(HARDENED, end);
            // The ring is empty.
            group.set(DIRECT_END, end);
            group.set(SETTINGS, group.options.fingerprint());
            // The flush that ends recovery has made the size durable too.
            group.set(LENGTH, group.block.len());
        } else {
            // A process that had this member slot before may have died as the leader.
            let own = group.own();
            let _ = group.exchange(LEADER, own, 0);
            if group.get(SETTINGS) != group.options.fingerprint() {
                return Err(JournalError::Settings);
            }
        }
        Ok(group)
    }

    fn get(&self, word: u64) -> u64 {
        self.segment.load(self.base + word)
    }

    fn set(&self, word: u64, value: u64) {
        self.segment.store(self.base + word, value);
    }

    fn exchange(&self, word: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.segment.compare_exchange(self.base + word, current, new)
    }

    fn own(&self) -> u64 {
        self.segment.member() as u64 + 1
    }

    fn tail(&self) -> Mark {
        Mark::unpack(self.get(TAIL))
    }

    fn durable(&self) -> Mark {
        Mark::unpack(self.get(DURABLE))
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.superblock.block_bytes)
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn block(&self) -> &dyn Block {
        self.block.as_ref()
    }

    pub(crate) fn options(&self) -> &WaldioOptions {
        &self.options
    }

    /// The generation in force.
    pub(crate) fn generation(&self) -> u64 {
        self.get(GENERATION)
    }

    /// End of the last sealed transaction.
    pub(crate) fn sealed(&self) -> u64 {
        self.tail().position
    }

    /// Where a generation's positions begin.
    pub(crate) fn start_of(&self, generation: u64) -> u64 {
        self.get(STARTS[(generation % 2) as usize])
    }

    /// The place in the file of a position of a generation.
    pub(crate) fn offset_of(&self, generation: u64, position: u64) -> u64 {
        position.wrapping_sub(self.start_of(generation)).wrapping_add(DATA_OFFSET)
    }

    /// Where the group begins that is appended behind `end`.
    fn group_start(&self, end: u64) -> u64 {
        end.next_multiple_of(self.block_bytes()).max(self.start_of(self.generation()))
    }

    /// Bytes between the beginning of a group and its first transaction.
    pub(crate) fn group_header_bytes(&self) -> u64 {
        match self.superblock.layout {
            Layout::Delta => GROUP_HEADER_BYTES,
            Layout::Embedded => 0,
        }
    }

    /// Whether everything before a group that is written now is durable.
    pub(crate) fn is_ordered(&self) -> bool {
        self.options.durability != Durability::Normal
    }

    pub(crate) fn failed(&self, source: MediumError) -> JournalError {
        JournalError::Medium { path: self.superblock_path(), source }
    }

    fn superblock_path(&self) -> std::path::PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        std::ffi::OsStr::from_bytes(&self.superblock.path).into()
    }

    /// Refuses to go on after a failure in any process (invariant 9).
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        if self.panicked.load(Ordering::Relaxed) {
            return Err(JournalError::Poisoned("a panic; its message says why".to_owned()));
        }
        if self.get(POISON) == 0 {
            return Ok(());
        }
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        Err(reason.clone().unwrap_or_else(|| {
            JournalError::Poisoned("another process could not write the log; its message says why".to_owned())
        }))
    }

    /// Stops everybody: what the device holds is in doubt (invariant 9). Returns the error.
    pub(crate) fn poison(&self, error: JournalError) -> JournalError {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let message = JournalError::Poisoned(error.to_string());
        reason.get_or_insert(message);
        self.set(POISON, 1);
        for word in SLEEPERS {
            self.segment.fetch_add(self.base + word, 1);
            self.segment.wake(self.base + word, u32::MAX >> 1);
        }
        error
    }

    // Reading.

    /// Copies bytes of the present generation from the ring, or from the device if they have left
    /// it. Bytes beyond [`Group::sealed`] must not be asked for.
    pub(crate) fn read(&self, generation: u64, position: u64, buf: &mut [u8]) -> Result<(), JournalError> {
        let in_ring = |frontier: u64| frontier.wrapping_sub(position) <= RING_BYTES && position < frontier;
        if in_ring(self.get(FRONTIER)) && position >= self.get(DIRECT_END) {
            self.read_ring(position, buf);
            if in_ring(self.get(FRONTIER)) {
                return Ok(());
            }
        }
        let offset = self.offset_of(generation, position);
        self.learn_len(offset + buf.len() as u64)?;
        self.block.read(offset, buf).map_err(|source| self.failed(source))
    }

    /// Another process may have made the file longer.
    fn learn_len(&self, end: u64) -> Result<(), JournalError> {
        if end <= self.block.len() {
            return Ok(());
        }
        self.block.refresh_len().map_err(|source| self.failed(source))
    }

    fn read_ring(&self, position: u64, buf: &mut [u8]) {
        let at = position % RING_BYTES;
        let first = buf.len().min((RING_BYTES - at) as usize);
        let (head, rest) = buf.split_at_mut(first);
        self.segment.read(self.base + RING + at, head);
        self.segment.read(self.base + RING, rest);
    }

    fn write_ring(&self, position: u64, bytes: &[u8]) {
        let at = position % RING_BYTES;
        let first = bytes.len().min((RING_BYTES - at) as usize);
        let (head, rest) = bytes.split_at(first);
        self.segment.write(self.base + RING + at, head);
        self.segment.write(self.base + RING, rest);
    }

    // Appending, under SQLite's WRITE lock.

    /// Seals a transaction that the ring has room for. Returns where it is and what to wait for.
    pub(crate) fn append(&self, mut content: Content<'_>) -> Result<(Placing, Ticket), JournalError> {
        loop {
            self.check()?;
            if self.get(INTENT) != self.get(GENERATION) {
                return Err(JournalError::Unexpected("a transaction of a generation that is over"));
            }
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            let group_start = self.group_start(tail.position);
            let at = if tail.closed { group_start + self.group_header_bytes() } else { tail.position };
            let end = at + content.len();
            // The ring's oldest bytes go only once they are durable.
            if end.next_multiple_of(self.block_bytes()) > self.durable().position + RING_BYTES {
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
            if tail.closed {
                if group_start - tail.position < self.block_bytes() {
                    self.write_ring(tail.position, &vec![0; (group_start - tail.position) as usize]);
                }
                if self.group_header_bytes() > 0 {
                    self.write_ring(group_start, &group_placeholder(self.generation()));
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

    /// Makes sure that the file reaches to a position, and that it would after a power loss.
    pub(crate) fn reserve(&self, end: u64) -> Result<(), JournalError> {
        let offset = self.offset_of(self.generation(), end).next_multiple_of(self.block_bytes());
        if offset > self.get(LENGTH) {
            self.extend(offset)?;
        }
        self.learn_len(offset)
    }

    /// Makes the file durably reach to an offset. That it seems to already is not enough: a commit
    /// would then leave it to its own write to make the size and the blocks of another process
    /// durable, which is the file system's journal's work at every commit and no promise of the
    /// medium's.
    fn extend(&self, offset: u64) -> Result<(), JournalError> {
        self.block.refresh_len().map_err(|source| self.failed(source))?;
        let length = self.block.len();
        let (wanted, least) = if offset <= length {
            (length, length)
        } else {
            let limit = self.superblock.limit_bytes;
            if offset > limit {
                return Err(JournalError::LimitReached { limit_bytes: limit });
            }
            let step = initial_bytes(self.superblock.block_bytes).max((length / 2).min(LARGEST_STEP));
            let wanted = (length + step).max(offset).min(limit) / AREA_BYTES * AREA_BYTES;
            let least = offset.next_multiple_of(AREA_BYTES);
            (wanted.max(least), least)
        };
        let reached = match self.block.preallocate(wanted) {
            // A smaller step may still fit.
            Err(MediumError::NoSpace) if wanted > least => self.block.preallocate(least).map(|()| least),
            done => done.map(|()| wanted),
        };
        let reached = reached.map_err(|source| match source {
            MediumError::NoSpace => JournalError::NoSpace { dir: self.superblock_path() },
            source => self.failed(source),
        })?;
        self.set(LENGTH, reached);
        Ok(())
    }

    /// Where a transaction goes that is written past the ring: everything before it is durable.
    pub(crate) fn begin_direct(&self) -> Result<u64, JournalError> {
        self.drain()?;
        let _leader = self.lead()?;
        Ok(self.group_start(self.close().position))
    }

    /// Seals a group that was written past the ring from [`Group::begin_direct`]'s place on and is
    /// durable.
    pub(crate) fn publish_direct(&self, end: u64) -> Result<Ticket, JournalError> {
        let leader = self.lead()?;
        let tail = self.close();
        let new = Mark { position: end, group: tail.group + 1, closed: true };
        // Says to whoever takes over that there is nothing to write.
        self.set(DIRECT_END, end);
        self.set(TAIL, new.pack());
        self.flush(&leader)?;
        Ok(Ticket::new(new.pack()))
    }

    // Leading.

    fn try_lead(&self) -> Option<Leader<'_>> {
        self.exchange(LEADER, 0, self.own()).ok().map(|_| Leader(self))
    }

    /// Waits for the leader lock.
    fn lead(&self) -> Result<Leader<'_>, JournalError> {
        loop {
            if let Some(leader) = self.try_lead() {
                return Ok(leader);
            }
            self.depose_dead_leader()?;
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Frees the leader lock if its holder is dead.
    fn depose_dead_leader(&self) -> Result<(), JournalError> {
        let holder = self.get(LEADER);
        if holder == 0 || holder == self.own() {
            return Ok(());
        }
        let alive = self.segment.is_alive(holder as usize - 1).map_err(|source| self.failed(source))?;
        if !alive {
            let _ = self.exchange(LEADER, holder, 0);
        }
        Ok(())
    }

    /// Closes the open group: what is sealed from now on belongs to the next.
    fn close(&self) -> Mark {
        loop {
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            let closed = Mark { closed: true, ..tail };
            if tail.closed || self.exchange(TAIL, word, closed.pack()).is_ok() {
                return closed;
            }
        }
    }

    /// Makes everything durable that is sealed now.
    fn flush(&self, leader: &Leader<'_>) -> Result<(), JournalError> {
        self.check()?;
        self.finish_switch(leader)?;
        let goal = self.tail().position;
        while self.durable().position < goal {
            self.flush_group(leader)?;
        }
        Ok(())
    }

    /// Makes the oldest group durable that is not.
    fn flush_group(&self, _leader: &Leader<'_>) -> Result<(), JournalError> {
        let durable = self.durable();
        let group = (durable.group + 1) % GROUP_NUMBERS;
        let tail = self.tail();
        // A leader that died may have closed a group behind which the next is already open.
        let tail = if tail.group == group { self.close() } else { tail };
        let end = if tail.group == group { tail.position } else { self.get(ENDS[(group % 2) as usize]) };
        if self.get(DIRECT_END) != end {
            // Not written past the ring.
            self.write_group(self.group_start(durable.position), end).map_err(|error| self.poison(error))?;
        }
        if self.is_ordered() {
            self.set(HARDENED, end);
        }
        self.set(DURABLE, Mark { position: end, group, closed: false }.pack());
        self.wake(group, u32::MAX >> 1);
        Ok(())
    }

    /// Wakes those that wait for a group, without a system call when nobody does.
    fn wake(&self, group: u64, count: u32) {
        let word = self.base + SLEEPERS[(group % 2) as usize];
        self.segment.fetch_add(word, 1);
        if self.segment.load(word + SLEEPING) != 0 {
            self.segment.wake(word, count);
        }
    }

    /// Writes the closed group from the ring with one write.
    fn write_group(&self, start: u64, end: u64) -> Result<(), JournalError> {
        let generation = self.generation();
        let bytes = end.checked_sub(start).filter(|bytes| *bytes <= 2 * RING_BYTES);
        let bytes = bytes.ok_or(JournalError::Unexpected("a group that ends before it begins"))? as usize;
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.resize(bytes.next_multiple_of(self.block_bytes() as usize));
        let whole = buffer.as_mut_slice();
        let (content, padding) = whole.split_at_mut(bytes);
        padding.fill(0);
        self.read_ring(start, content);
        let offset = self.offset_of(generation, start);
        let transactions = match self.superblock.layout {
            Layout::Delta => self.complete_header(content, generation, offset)?,
            Layout::Embedded => 1,
        };
        // Whoever sealed the last of it may have made the file longer, durably.
        self.learn_len(offset + whole.len() as u64)?;
        self.block.commit(offset, whole, self.options.durability).map_err(|source| self.failed(source))?;
        self.activity.groups.fetch_add(1, Ordering::Relaxed);
        self.activity.led_transactions.fetch_add(transactions, Ordering::Relaxed);
        Ok(())
    }

    /// Fills in the header of a group of the `delta` layout.
    fn complete_header(&self, group: &mut [u8], generation: u64, offset: u64) -> Result<u64, JournalError> {
        let corrupt = |what| JournalError::Corrupt { offset, what };
        let id = self.superblock.log_id;
        let (head, body) = group.split_at_mut(GROUP_HEADER_BYTES as usize);
        let (mut at, mut transactions, mut first_sequence) = (0, 0, 0);
        while at < body.len() {
            let tx = TxHeader::decode(&body[at..]).map_err(corrupt)?;
            if transactions == 0 {
                first_sequence = tx.sequence;
            }
            transactions += 1;
            at += tx.tx_bytes as usize;
        }
        let header = GroupHeader {
            first_sequence,
            transactions,
            bytes: GROUP_HEADER_BYTES + body.len() as u64,
            ordered: self.is_ordered(),
            body_hash: body_hash(id, generation, offset, body),
        };
        head.copy_from_slice(&header.encode(id, generation, offset));
        Ok(u64::from(transactions))
    }

    /// Wakes one committer of the group that is open or waiting, to lead it.
    fn wake_next_leader(&self) {
        let tail = self.tail();
        if tail.position != self.durable().position {
            self.wake(tail.group, 1);
        }
    }

    /// Makes everything that is sealed now durable.
    pub(crate) fn drain(&self) -> Result<(), JournalError> {
        self.wait_for(self.tail())
    }

    /// Makes everything that is sealed now durable, even where commits are acknowledged before
    /// they are (invariant 5).
    pub(crate) fn harden(&self) -> Result<(), JournalError> {
        self.drain()?;
        if self.get(HARDENED) >= self.durable().position {
            return Ok(());
        }
        let _leader = self.lead()?;
        let durable = self.durable().position;
        self.block.flush().map_err(|source| self.poison(self.failed(source)))?;
        self.set(HARDENED, durable);
        Ok(())
    }

    fn wait_for(&self, mark: Mark) -> Result<(), JournalError> {
        let sleepers = SLEEPERS[(mark.group % 2) as usize];
        loop {
            let seen = self.get(sleepers);
            if self.durable().position >= mark.position {
                return Ok(());
            }
            self.check()?;
            if let Some(leader) = self.try_lead() {
                self.flush(&leader)?;
                continue;
            }
            self.activity.sleeps.fetch_add(1, Ordering::Relaxed);
            self.segment.fetch_add(self.base + sleepers + SLEEPING, 1);
            self.segment.wait(self.base + sleepers, (seen & 0xffff_ffff) as u32, SLICE);
            self.segment.fetch_add(self.base + sleepers + SLEEPING, u64::MAX);
            if self.get(sleepers) == seen {
                self.depose_dead_leader()?;
            }
        }
    }

    // Generations.

    /// What the file keeps when it is to have so many bytes: as much as a new one at least.
    pub(crate) fn kept_bytes(&self, keep_bytes: u64) -> u64 {
        let keep = keep_bytes.max(initial_bytes(self.superblock.block_bytes));
        keep.checked_next_multiple_of(AREA_BYTES).unwrap_or(u64::MAX)
    }

    /// Starts the log over, under SQLite's WRITE lock. Durable on return. With `keep_bytes` the file
    /// then gives back what it has beyond that.
    ///
    /// The slot that says how long the file is at least comes first, and is durable before the file is
    /// cut; `LENGTH` comes before the slot. So neither promises bytes that are gone, wherever this
    /// process dies or the power fails. Who holds WRITE is the only one who appends, nothing of the
    /// new generation is there yet, and who still reads the old one finds that it is over.
    pub(crate) fn switch(
        &self,
        wal_header: Option<[u8; WAL_HEADER_BYTES]>,
        retired: bool,
        keep_bytes: Option<u64>,
    ) -> Result<(), JournalError> {
        self.harden()?;
        let leader = self.lead()?;
        self.check()?;
        self.finish_switch(&leader)?;
        let generation = self.generation() + 1;
        let empty = if wal_header.is_none() { STATE_EMPTY } else { 0 };
        let retired = if retired { STATE_RETIRED } else { 0 };
        self.segment.write(self.base + INTENT_HEADER, &wal_header.unwrap_or_default());
        self.set(INTENT_STATE, empty | retired);
        let keep = keep_bytes.map(|bytes| self.kept_bytes(bytes));
        if let Some(keep) = keep {
            self.set(LENGTH, keep.min(self.get(LENGTH)));
        }
        self.set(INTENT, generation);
        self.finish_switch(&leader)?;
        if let Some(keep) = keep {
            // What cannot be given back stays.
            let _ = self.block.shrink(keep);
        }
        Ok(())
    }

    /// Completes a switch whose process died: what it announced is decided, and nobody may take in
    /// the generation before. One that is under way is left to its process.
    pub(crate) fn adopt_switch(&self) -> Result<(), JournalError> {
        while self.get(INTENT) != self.get(GENERATION) {
            if let Some(leader) = self.try_lead() {
                return self.finish_switch(&leader);
            }
            let holder = self.get(LEADER);
            self.depose_dead_leader()?;
            if self.get(LEADER) == holder {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Carries out a switch that has begun: this process's own, or one whose process died.
    fn finish_switch(&self, _leader: &Leader<'_>) -> Result<(), JournalError> {
        let intent = self.get(INTENT);
        if intent == self.get(GENERATION) {
            return Ok(());
        }
        let generation = intent;
        let state = self.get(INTENT_STATE);
        let mut wal_header = [0; WAL_HEADER_BYTES];
        self.segment.read(self.base + INTENT_HEADER, &mut wal_header);
        let slot = Slot {
            generation,
            wal_header: (state & STATE_EMPTY == 0).then_some(wal_header),
            retired: state & STATE_RETIRED != 0,
            // Not a length that is only seen: the slot may become durable before that does, and the
            // log would then be taken for one that was cut short.
            file_bytes: self.get(LENGTH),
        };
        write_slot(self.block.as_ref(), &slot, self.superblock.log_id)
            .map_err(|source| self.poison(self.failed(source)))?;
        let start = self.tail().position.next_multiple_of(AREA_BYTES);
        self.set(STARTS[(generation % 2) as usize], start);
        self.set(GENERATION, intent);
        Ok(())
    }
}

/// Bytes that a new log has where there is room for them, and the least by which it grows.
pub(crate) fn initial_bytes(block_bytes: u32) -> u64 {
    u64::from(block_bytes) * 1024
}

const LARGEST_STEP: u64 = 16 << 20;

/// Writes a generation's slot, durable on return.
pub(crate) fn write_slot(
    block: &dyn Block,
    slot: &Slot,
    id: duralite_logfmt::LogId,
) -> Result<(), MediumError> {
    block.commit(slot_offset(slot.generation), &slot.encode(id), Durability::Full)
}

/// What is called without the log's lock, and left by a panic if it is dropped (invariant 9).
struct Unfinished<'a>(&'a Group);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.panicked.store(true, Ordering::Relaxed);
    }
}

impl Group {
    fn unless_it_panics<T>(&self, work: impl FnOnce() -> T) -> T {
        let unfinished = Unfinished(self);
        let result = work();
        std::mem::forget(unfinished);
        result
    }
}

impl Committer for Group {
    fn wait(&self, ticket: Ticket) -> Result<(), JournalError> {
        self.unless_it_panics(|| self.wait_for(Mark::unpack(ticket.get())))
    }

    fn wait_all(&self) -> Result<(), JournalError> {
        self.unless_it_panics(|| self.drain())
    }
}

const _: () = assert!(RING_BYTES.is_power_of_two() && RING.is_multiple_of(AREA_BYTES));
const _: () = assert!(INTENT_HEADER + WAL_HEADER_BYTES as u64 <= SETTINGS);
const _: () = assert!(TX_HEADER_BYTES.is_multiple_of(8) && GROUP_HEADER_BYTES.is_multiple_of(8));
