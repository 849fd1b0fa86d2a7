//! Reads a log from front to back, in pieces. If the log is long, two other threads read the next pieces while the
//! caller works on a piece, so that the device is never idle. Each piece is in memory into which direct I/O reads
//! without a copy.

use std::collections::VecDeque;
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

use duralite_medium::MediumError;
use duralite_medium::block::{AlignedBuf, Block};

/// The smallest and the largest size of a piece, in bytes. Each piece is twice as large as the one before it. When a
/// piece has the largest size, the threads start.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 1 << 20;

/// The number of threads that read ahead. With two, the device already has the next request when it has finished one.
const READERS: usize = 2;
/// The number of pieces that the threads read ahead: one for each thread, and one that is ready while the caller works
/// on the piece before it.
const AHEAD: usize = READERS + 1;

/// A reader of a log that no process is writing. Starts threads if the log turns out to be long.
pub(super) struct Prefetch<'scope, 'env> {
    block: &'env dyn Block,
    scope: &'scope Scope<'scope, 'env>,
    piece: Piece,
    /// Bytes that the caller asked for, joined from several pieces.
    joined: Vec<u8>,
    /// Position of the first byte in `joined`.
    joined_at: u64,
    /// Intended size of the last piece, in bytes.
    size: u64,
    ahead: Requested,
    /// Whether the threads have been started, or the system has refused to start one.
    is_started: bool,
}

impl<'scope, 'env> Prefetch<'scope, 'env> {
    pub(super) fn new(block: &'env dyn Block, scope: &'scope Scope<'scope, 'env>) -> Self {
        Self {
            block,
            scope,
            piece: Piece::default(),
            joined: Vec::new(),
            joined_at: 0,
            size: 0,
            ahead: Requested::default(),
            is_started: false,
        }
    }

    /// Returns `len` bytes from a byte position on.
    ///
    /// # Errors
    /// Those of [`Block::read`]. If reading a piece ahead fails, returns the error when the caller asks for that piece.
    pub(super) fn get(&mut self, from: u64, len: usize) -> Result<&[u8], MediumError> {
        if !self.piece.holds(from, len) && !self.is_joined(from, len) {
            self.fetch(from, len)?;
        }
        Ok(if self.piece.holds(from, len) {
            &self.piece.from(from)[..len]
        } else {
            &self.joined[(from - self.joined_at) as usize..][..len]
        })
    }

    /// Returns between 1 and `len` bytes from a byte position on: those that are in memory, or at most `LEAST` if none
    /// are.
    ///
    /// # Errors
    /// As [`Prefetch::get`].
    pub(super) fn some(&mut self, from: u64, len: usize) -> Result<&[u8], MediumError> {
        let at_hand = self.piece.from(from).len();
        self.get(from, len.min(if at_hand == 0 { LEAST as usize } else { at_hand }))
    }

    fn is_joined(&self, from: u64, len: usize) -> bool {
        let end = self.joined_at + self.joined.len() as u64;
        (self.joined_at..=end).contains(&from) && end - from >= len as u64
    }

    /// Reads the requested bytes into `piece` or into `joined`.
    fn fetch(&mut self, from: u64, len: usize) -> Result<(), MediumError> {
        self.joined.clear();
        self.joined.extend_from_slice(self.piece.from(from));
        self.joined_at = from;
        while self.joined.len() < len {
            let next = from + self.joined.len() as u64;
            let missing = len - self.joined.len();
            self.load(next, missing as u64)?;
            if self.joined.is_empty() && self.piece.holds(from, len) {
                return Ok(());
            }
            let bytes = self.piece.from(next);
            self.joined.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        }
        Ok(())
    }

    /// Replaces `piece` by a piece that contains the position `next`. The caller needs `missing` bytes from there on.
    fn load(&mut self, next: u64, missing: u64) -> Result<(), MediumError> {
        self.size = missing.max(self.size * 2).next_multiple_of(LEAST).clamp(LEAST, MOST);
        let used = mem::take(&mut self.piece);
        self.ahead.spare.push(used.bytes);
        self.piece = match self.ahead.take(next) {
            Some(piece) => piece?,
            None => {
                // Begin where the device can read without a copy.
                let at = next - next % LEAST;
                let least = missing.min(MOST) + (next - at);
                // If the caller asks for more than the log has, read beyond the end as well, so that the device reports
                // the error.
                let size = self.size.min(self.block.len().saturating_sub(at)).max(least);
                let mut piece = Piece { at, bytes: self.ahead.buffer(size) };
                self.block.read(at, piece.bytes.as_mut_slice())?;
                piece
            }
        };
        let (after, len) = (self.piece.end(), self.block.len());
        if self.size == MOST && after < len {
            self.start();
            self.ahead.ask(after, len);
        }
        Ok(())
    }

    /// Starts the threads. If the system refuses to start any, the calling thread reads the log by itself.
    fn start(&mut self) {
        if mem::replace(&mut self.is_started, true) {
            return;
        }
        for _ in 0..READERS {
            let (wanted, wants) = channel::<Piece>();
            let (reads, read) = channel();
            let block = self.block;
            let work = move || {
                for mut piece in wants {
                    let result = block.read(piece.at, piece.bytes.as_mut_slice()).map(|()| piece);
                    if reads.send(result).is_err() {
                        return;
                    }
                }
            };
            match thread::Builder::new().spawn_scoped(self.scope, work) {
                Ok(_) => self.ahead.readers.push(Reader { wanted, read }),
                Err(_) => return,
            }
        }
    }
}

/// A piece of the log, or a buffer into which a piece is to be read.
#[derive(Default)]
struct Piece {
    at: u64,
    bytes: AlignedBuf,
}

impl Piece {
    /// Returns the position after the last byte.
    fn end(&self) -> u64 {
        self.at + self.bytes.as_slice().len() as u64
    }

    /// Returns the bytes from this position on; none if the position is not in the piece.
    fn from(&self, position: u64) -> &[u8] {
        let within = position.checked_sub(self.at).and_then(|within| usize::try_from(within).ok());
        within.and_then(|within| self.bytes.as_slice().get(within..)).unwrap_or_default()
    }

    fn holds(&self, from: u64, len: usize) -> bool {
        from >= self.at && self.from(from).len() >= len
    }
}

/// The caller's end of the channels to a thread that reads ahead. Dropping the `Reader` ends the thread.
struct Reader {
    wanted: Sender<Piece>,
    read: Receiver<Result<Piece, MediumError>>,
}

/// The pieces that threads read ahead.
#[derive(Default)]
struct Requested {
    readers: Vec<Reader>,
    /// The pieces that were requested and not taken yet, in the order of the log: where each piece begins, and which
    /// thread reads it. The pieces follow each other without a gap.
    asked: VecDeque<(u64, usize)>,
    /// Number of the thread that is to read the next piece.
    next: usize,
    /// Position where the last requested piece ends.
    until: u64,
    /// Buffers to be reused.
    spare: Vec<AlignedBuf>,
}

impl Requested {
    fn buffer(&mut self, len: u64) -> AlignedBuf {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len as usize);
        buffer
    }

    /// Requests pieces of a log of `len` bytes until `AHEAD` pieces are outstanding. If none is outstanding, begins at
    /// `after`.
    fn ask(&mut self, after: u64, len: u64) {
        if self.asked.is_empty() {
            self.until = after;
        }
        while !self.readers.is_empty() && self.asked.len() < AHEAD && self.until < len {
            let (at, size) = (self.until, MOST.min(len - self.until));
            let bytes = self.buffer(size);
            let number = self.next % self.readers.len();
            if self.readers[number].wanted.send(Piece { at, bytes }).is_err() {
                return;
            }
            self.asked.push_back((at, number));
            self.next += 1;
            self.until += size;
        }
    }

    /// Returns the requested piece that begins at `at`, and drops the pieces requested before it. If no requested piece
    /// begins at `at`, drops all of them.
    fn take(&mut self, at: u64) -> Option<Result<Piece, MediumError>> {
        while let Some((begins, reader)) = self.asked.pop_front() {
            let piece = self.readers.get(reader)?.read.recv().ok()?;
            if begins == at {
                return Some(piece);
            }
            self.spare.extend(piece.map(|piece| piece.bytes));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use duralite_crashmodel::{BlockOp, RecordingBlock};

    use super::*;

    fn bytes_of(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 4096 + at % 251) as u8).collect()
    }

    /// Returns how many bytes were read from the block.
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
                    // Read the same bytes twice, like a caller that first reads a header, and then the header together
                    // with what follows it.
                    assert_eq!(pieces.get(at as u64, len / 2).unwrap(), &log[at..at + len / 2]);
                    at += len;
                }
                assert_eq!(pieces.ahead.readers.len(), READERS, "the log is long");
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
            assert!(!pieces.is_started);
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
            while !pieces.is_started {
                pieces.get(at, 4096).unwrap();
                at += 4096;
            }
            // By now at most `AHEAD` pieces have been requested. After these, the next read of the device fails.
            let held = pieces.piece.end();
            block.fail(BlockOp::Read, AHEAD as u64, MediumError::NoSpace);
            let failed_at = (at..log.len() as u64).step_by(4096).find(|at| pieces.get(*at, 4096).is_err());
            assert!(failed_at.unwrap() >= held, "{failed_at:?}");
            // Only one read fails, so reading the same bytes again succeeds.
            let at = failed_at.unwrap() as usize;
            assert_eq!(pieces.get(at as u64, 4096).unwrap(), &log[at..at + 4096]);
        });
    }
}
