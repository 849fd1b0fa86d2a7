//! Reads a log from front to back. In a long log a thread reads the next piece while the caller works on the last one.

use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};

use duralite_medium::MediumError;
use duralite_medium::block::Block;

/// Smallest and largest size of a piece, in bytes. The sizes double. The thread starts once a piece has the largest size.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 1 << 20;

/// Pieces that the thread reads ahead: one while the caller works on the last piece, and one more so that the device is never
/// idle.
const AHEAD: usize = 2;

/// A reader of a log that no process writes. Starts a second thread once the log turns out to be long.
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

    /// Appends the next piece to `bytes`. `room` is a buffer to be used again.
    fn append(&mut self, len: usize, mut room: Vec<u8>) -> Result<(), MediumError> {
        let next = self.at + self.bytes.len() as u64;
        let missing = (len - self.bytes.len()) as u64;
        self.size = missing.max(self.size * 2).clamp(LEAST, MOST);
        let piece = match self.reader.as_mut().and_then(|reader| reader.take(next)) {
            Some(piece) => piece?,
            None => {
                // If the caller asks for more than the log has, so does this read, and the device reports it as out of bounds.
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

    /// Starts the thread. If the system refuses, the calling thread reads the log alone.
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

/// The caller's side of the thread. The thread ends when the `Reader` is dropped.
struct Reader {
    wanted: SyncSender<Piece>,
    read: Receiver<(Piece, Result<(), MediumError>)>,
    /// Number of pieces that were requested and not taken yet. In the log they follow one another.
    asked: usize,
    /// Position where the last requested piece ends.
    until: u64,
}

impl Reader {
    /// Requests pieces of a log of `len` bytes until `AHEAD` are outstanding. Begins at `after` if none is.
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

    /// Returns the requested piece that begins at `at`. Drops the requested pieces before it, or all of them if none begins
    /// there.
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
                    // Read the same bytes again, as a caller does that reads a header and then all that the header announces.
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
            // At most `AHEAD` pieces have been requested by now. The read after those fails.
            let held = pieces.at + pieces.bytes.len() as u64;
            block.fail(BlockOp::Read, AHEAD as u64, MediumError::NoSpace);
            let failed_at = (at..log.len() as u64).step_by(4096).find(|at| pieces.get(*at, 4096).is_err());
            assert!(failed_at.unwrap() >= held, "{failed_at:?}");
            // Only one read fails, so the same bytes can be read again.
            let at = failed_at.unwrap() as usize;
            assert_eq!(pieces.get(at as u64, 4096).unwrap(), &log[at..at + 4096]);
        });
    }
}
