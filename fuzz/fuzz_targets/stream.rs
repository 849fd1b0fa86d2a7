//! Everything that SQLite does to its log, in any order, on `nvwal` and `waldio`: commits, spills,
//! savepoints, rollbacks, restarts and reads. Two processes do it, on media that fill up, fail, and lose
//! power. The stream must always read back what a plain file would hold. After a power loss it must hold at
//! least what was acknowledged.
#![no_main]

#[path = "stream/model.rs"]
mod model;
#[path = "stream/rig.rs"]
mod rig;

use std::sync::LazyLock;

use duralite_crashmodel::BlockOp;
use duralite_medium::MediumError;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::{ErrorKind, LogError};
use libfuzzer_sys::arbitrary::{self, Unstructured};
use libfuzzer_sys::fuzz_target;

use model::{Model, Step, Transaction, Write};
use rig::{Rig, Stream};

/// After this many frames a log starts over, and after this many steps a history ends.
const MOST_FRAMES: usize = 100;
const MOST_STEPS: usize = 50;

/// Whether to print what an input does, which helps to understand a failure: if `FUZZ_TRACE` is set.
static TRACE: LazyLock<bool> = LazyLock::new(|| std::env::var_os("FUZZ_TRACE").is_some());

macro_rules! trace {
    ($($words:tt)*) => { if *TRACE { eprintln!($($words)*) } };
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    // An input that is too short ends early.
    if let Ok(mut history) = History::begin(&mut input) {
        let _ = history.run(&mut input);
        history.end(&mut input);
    }
});

struct History {
    rig: Rig,
    processes: [Stream; 2],
    model: Model,
    /// The log before the last transaction. A writer that has not seen this transaction may replace it.
    before: Option<Model>,
    /// The logs that a power loss may leave: from the last acknowledged log to the last sealed one.
    possible: Vec<Model>,
    /// Whether the log that a provisional guard names has been made durable. This happens with the first
    /// header.
    hardened: bool,
    /// Whether the medium was told to fail.
    faulty: bool,
}

/// Why a history cannot continue as it is.
enum Stop {
    /// The power is off, or the medium failed and the log refuses to continue.
    Crash,
    Input,
}

impl From<libfuzzer_sys::arbitrary::Error> for Stop {
    fn from(_: libfuzzer_sys::arbitrary::Error) -> Self {
        Self::Input
    }
}

impl History {
    fn begin(input: &mut Unstructured) -> arbitrary::Result<Self> {
        let rig = Rig::arbitrary(input)?;
        let model = Model::new(rig.page_bytes());
        let processes = rig.processes().expect("an empty log");
        let possible = vec![model.clone()];
        trace!("{rig:?}");
        Ok(Self { rig, processes, model, before: None, possible, hardened: false, faulty: false })
    }

    fn run(&mut self, input: &mut Unstructured) -> arbitrary::Result<()> {
        for _ in 0..MOST_STEPS {
            if input.is_empty() {
                break;
            }
            match self.step(input) {
                Ok(()) if !self.rig.has_crashed() => {}
                Ok(()) | Err(Stop::Crash) => self.recover(input)?,
                Err(Stop::Input) => break,
            }
        }
        Ok(())
    }

    /// Ends with a last power loss, after which the log must be usable.
    fn end(&mut self, input: &mut Unstructured) {
        // Repeats until the last recovery has followed a power loss, on a new medium.
        loop {
            if self.recover(input).is_err() {
                return;
            }
            if !self.faulty {
                break;
            }
        }
        if (self.model.is_empty() || self.model.frames() >= MOST_FRAMES) && self.restart(0, 1).is_err() {
            unreachable!("nothing was told to fail");
        }
        if !self.model.is_empty() && matches!(self.harden(0), Ok(true)) {
            let steps = [Step::Append { page_number: 1, content: self.model.page(1), db_pages: 3 }];
            let (transaction, after) = self.model.write(&steps);
            match self.write(0, &transaction.writes) {
                Ok(()) => self.model = after,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
            }
        }
        self.check_all();
    }

    /// If no power loss has happened yet, a later one must leave the whole log.
    fn settle(&mut self) {
        if !self.rig.has_crashed() {
            self.possible = vec![self.model.clone()];
        }
    }

    /// An error that the medium was not told to cause is a bug. A lack of space is handled elsewhere.
    fn fails<T>(&self, error: &LogError) -> Result<T, Stop> {
        trace!("{error}");
        assert!(self.faulty, "failed without a fault: {error}");
        Err(Stop::Crash)
    }

    fn step(&mut self, input: &mut Unstructured) -> Result<(), Stop> {
        let which = usize::from(input.arbitrary::<bool>()?);
        let kind = input.int_in_range(0..=15)?;
        trace!("process {which}, step {kind}, {} frames before", self.model.frames());
        match kind {
            0 => self.truncate(which)?,
            1 => self.restart(which, input.arbitrary()?)?,
            2 => self.roll_back(which, input)?,
            3 => self.join(which)?,
            4 => self.revive()?,
            5 => {
                let engine = self.processes[which].engine_mut();
                if let Err(error) = engine.refresh().and_then(|()| engine.force()) {
                    return self.fails(&error);
                }
                self.settle();
            }
            6 => self.read(which, input)?,
            7 => self.tell_medium(input)?,
            8 => self.nonsense(which, input)?,
            _ => self.commit(which, input)?,
        }
        if self.rig.has_crashed() || self.faulty {
            return Ok(());
        }
        if input.ratio(1, 3)? {
            self.check_all()
        } else {
            self.check(which)
        }
        Ok(())
    }

    /// A process dies, and another takes its place.
    fn join(&mut self, which: usize) -> Result<(), Stop> {
        match self.rig.join() {
            Ok(stream) => self.processes[which] = stream,
            Err(error) => return self.fails(&error),
        }
        Ok(())
    }

    /// Every process dies, but the machine continues to run. Sealed transactions for which no process has
    /// waited may be lost.
    fn revive(&mut self) -> Result<(), Stop> {
        if !self.hardened {
            self.forget();
            return Ok(());
        }
        match self.rig.revive() {
            Ok(processes) => self.processes = processes,
            Err(error) => return self.fails(&error),
        }
        let found = contents(&mut self.processes[0]);
        self.model = self.find(&found);
        self.before = None;
        if self.rig.recovery_is_durable() {
            self.settle();
        }
        Ok(())
    }

    /// A process finds a log with a provisional guard that no process uses. It replaces the log, whatever is
    /// left of it.
    fn forget(&mut self) {
        assert!(self.possible.iter().all(|model| model.frames() == 0), "a commit that was not durable");
        self.rig = self.rig.anew();
        self.processes = self.rig.processes().expect("an empty log");
        self.model = Model::new(self.rig.page_bytes());
        (self.before, self.faulty) = (None, false);
        self.possible = vec![self.model.clone()];
    }

    /// The possible log that has this content.
    fn find(&self, found: &[u8]) -> Model {
        let index = self.possible.iter().rposition(|model| model.to_bytes() == found);
        let Some(index) = index else {
            let lengths: Vec<_> = self.possible.iter().map(Model::len).collect();
            panic!("recovered {} bytes, possible are {lengths:?}", found.len());
        };
        self.possible[index].clone()
    }

    fn truncate(&mut self, which: usize) -> Result<(), Stop> {
        // A cut past the end changes nothing.
        if let Err(error) = self.processes[which].truncate(&NoDatabase, self.model.len()) {
            return self.fails(&error);
        }
        let retire = self.model.frames() % 2 == 1;
        let mut after = self.model.clone();
        after.truncate();
        self.possible.push(after.clone());
        let stream = &mut self.processes[which];
        let done = if retire { stream.engine_mut().retire() } else { stream.truncate(&NoDatabase, 0) };
        self.before = None;
        match done {
            Ok(()) => self.model = after,
            Err(error) if error.kind() == ErrorKind::Full => {
                self.possible.pop();
                return Ok(());
            }
            Err(error) => return self.fails(&error),
        }
        self.settle();
        Ok(())
    }

    fn restart(&mut self, which: usize, salt: u32) -> Result<(), Stop> {
        let mut after = self.model.clone();
        let bytes = after.restart(salt);
        let known = self.possible.len();
        if self.rig.may_be_emptied_first() {
            let mut emptied = self.model.clone();
            emptied.truncate();
            self.possible.push(emptied);
        }
        self.possible.push(after.clone());
        match self.processes[which].write(&NoDatabase, 0, &bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Full => {
                self.possible.truncate(known);
                return Ok(());
            }
            Err(error) => return self.fails(&error),
        }
        (self.model, self.before) = (after, None);
        if self.harden(which)? {
            self.settle();
        }
        Ok(())
    }

    /// Makes the log durable before the first frame. Returns `false` if there is no space; the next
    /// transaction tries again.
    fn harden(&mut self, which: usize) -> Result<bool, Stop> {
        if !self.hardened {
            match self.processes[which].engine_mut().harden() {
                // This counts only if it was complete before a power loss: the guard stays provisional until
                // the log has been made durable.
                Ok(_) => self.hardened = !self.rig.has_crashed(),
                Err(error) if error.kind() == ErrorKind::Full => {}
                Err(error) => return self.fails(&error),
            }
        }
        Ok(self.hardened)
    }

    /// Writes a part of a transaction, and rolls it back.
    fn roll_back(&mut self, which: usize, input: &mut Unstructured) -> Result<(), Stop> {
        if self.model.is_empty() || !self.harden(which)? {
            return Ok(());
        }
        let steps = self.model.steps(input, self.rig.most_frames())?;
        let (transaction, _) = self.model.write(&steps);
        let keep = input.int_in_range(0..=transaction.commit_page)?;
        match self.write(which, &transaction.writes[..keep]) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Full => Ok(()),
            Err(error) => self.fails(&error),
        }
    }

    fn commit(&mut self, which: usize, input: &mut Unstructured) -> Result<(), Stop> {
        if self.model.is_empty() || self.model.frames() > MOST_FRAMES {
            self.restart(which, input.arbitrary()?)?;
        }
        if self.model.is_empty() || self.rig.has_crashed() || !self.harden(which)? {
            return Ok(());
        }
        let replaces = input.ratio(1, 10)?;
        let base = self.before.clone().filter(|_| replaces).unwrap_or_else(|| self.model.clone());
        let steps = base.steps(input, self.rig.most_frames())?;
        let (mut transaction, after) = base.write(&steps);
        let in_pieces = input.ratio(1, 4)?;
        if in_pieces {
            cut(&mut transaction, input)?;
        }
        trace!("{steps:?}, replaces {}", base.frames() < self.model.frames());
        // One of these writes seals the transaction, so both outcomes are possible from the first write on.
        self.possible.push(after.clone());
        let look = !in_pieces && input.ratio(1, 4)?;
        let mut ticket = None;
        for (i, write) in transaction.writes.iter().enumerate() {
            match self.processes[which].write(&NoDatabase, write.at, &write.bytes) {
                Ok(Some(sealed)) => ticket = sealed.ticket,
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Full => {
                    self.possible.pop();
                    if base.frames() < self.model.frames() {
                        // The frames that this process staged over a transaction that it did not see are
                        // still in its way. So another process takes its place.
                        self.join(which)?;
                    }
                    return Ok(());
                }
                Err(error) => return self.fails(&error),
            }
            if look && write.is_page() && i < transaction.commit_page {
                // SQLite reads back what it spilled.
                let mut back = vec![0; write.bytes.len()];
                match self.processes[which].read(&NoDatabase, write.at, &mut back) {
                    Ok(count) => assert!(count == back.len() && back == write.bytes, "a spilled page"),
                    Err(error) => return self.fails(&error),
                }
            }
        }
        self.before = Some(base);
        self.model = after;
        if input.ratio(3, 4)? {
            if let Some(ticket) = ticket {
                let waiter = self.processes[which].engine().durability_waiter().expect("a waiter");
                if let Err(error) = waiter.wait(ticket) {
                    return self.fails(&error);
                }
            }
            if self.rig.acknowledged_is_durable() {
                self.settle();
            }
        } else if self.rig.sealed_is_durable() {
            self.settle();
        }
        Ok(())
    }

    fn write(&mut self, which: usize, writes: &[Write]) -> Result<(), LogError> {
        writes.iter().try_for_each(|write| {
            self.processes[which].write(&NoDatabase, write.at, &write.bytes).map(|_| ())
        })
    }

    fn read(&mut self, which: usize, input: &mut Unstructured) -> Result<(), Stop> {
        let expected = self.model.to_bytes();
        let from = input.int_in_range(0..=expected.len())?;
        let to = input.int_in_range(from..=expected.len())?;
        let mut piece = vec![0; to - from];
        match self.processes[which].read(&NoDatabase, from as u64, &mut piece) {
            Ok(count) => assert!(count == piece.len() && piece == expected[from..to], "{from}..{to}"),
            Err(error) => return self.fails(&error),
        }
        // Behind the end a process reads what it has spilled, or nothing.
        let far = input.int_in_range(expected.len() as u64..=u64::MAX)?;
        if let Err(error) = self.processes[which].read(&NoDatabase, far, &mut [0; 9]) {
            return self.fails(&error);
        }
        Ok(())
    }

    /// Limits the space or lifts the limit, makes power fail later, or makes a device operation fail.
    fn tell_medium(&mut self, input: &mut Unstructured) -> Result<(), Stop> {
        match input.int_in_range(0..=3)? {
            0 => self.rig.limit(Some(input.int_in_range(0..=1 << 17)?)),
            1 => self.rig.limit(None),
            2 => self.rig.crash_after(input.int_in_range(0..=60)?, input.arbitrary()?),
            _ => {
                let operation = *input.choose(&[BlockOp::Write, BlockOp::Flush, BlockOp::Read])?;
                let error = MediumError::Unsupported { what: "a fault that was asked for" };
                self.faulty |= self.rig.fail(operation, input.int_in_range(0..=12)?, error);
            }
        }
        Ok(())
    }

    /// Makes a write that SQLite never makes. Another process then takes the place of this one, as after any
    /// failure. Committed content must not change.
    fn nonsense(&mut self, which: usize, input: &mut Unstructured) -> Result<(), Stop> {
        // A new process has no open transaction, so the write cannot complete one.
        self.join(which)?;
        let at = match input.int_in_range(0..=3)? {
            0 => input.int_in_range(1..=self.model.len() + 5000)?,
            1 => input.int_in_range(1..=31)?,
            2 => self.model.len() + input.int_in_range(0..=24)?,
            _ => input.int_in_range(1..=u64::MAX)?,
        };
        let byte = input.arbitrary()?;
        // Writes less than a frame, because a frame could be a transaction.
        let length = input.int_in_range(0..=self.rig.page_bytes() + 23)?;
        let _ = self.processes[which].write(&NoDatabase, at, &vec![byte; length]);
        if let Some(size) =
            self.model.len().checked_sub(input.int_in_range(1..=600)?).filter(|size| *size > 0)
        {
            let cut = self.processes[which].truncate(&NoDatabase, size);
            assert!(cut.is_err(), "a cut into committed frames");
        }
        self.join(which)?;
        Ok(())
    }

    fn check(&mut self, which: usize) {
        let stream = &mut self.processes[which];
        assert_eq!(stream.size().expect("size"), self.model.len());
        let mut found = vec![0; self.model.len() as usize];
        assert_eq!(stream.read(&NoDatabase, 0, &mut found).expect("read"), found.len());
        let expected = self.model.to_bytes();
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "what process {which} reads differs there");
        self.model.check_pages(stream);
    }

    fn check_all(&mut self) {
        (0..self.processes.len()).for_each(|which| self.check(which));
    }

    /// Continues after a power loss. If none has happened yet, one happens now.
    fn recover(&mut self, input: &mut Unstructured) -> arbitrary::Result<()> {
        if self.faulty && !self.rig.has_crashed() && input.arbitrary()? {
            // Only the processes end. The medium may not hold what it still shows.
            if self.revive().is_ok() {
                return Ok(());
            }
        }
        trace!("power loss, one of {} states", self.possible.len());
        let image = self.rig.image(input)?;
        if !self.hardened {
            self.forget();
            return Ok(());
        }
        let next = self.rig.over(image.clone());
        let mut processes = next.processes().expect("recovery");
        let found = contents(&mut processes[0]);
        self.model = self.find(&found);
        assert!(contents(&mut processes[1]) == found, "processes differ");
        // A second recovery must give the same result, whether or not the writes of the first recovery have
        // reached the medium.
        for image in [image, next.image(input)?] {
            let again = next.over(image).processes().map(|mut processes| contents(&mut processes[0]));
            assert!(again.expect("second recovery") == found, "recovering twice differs");
        }
        (self.rig, self.processes) = (next, processes);
        (self.before, self.faulty) = (None, false);
        self.possible = vec![self.model.clone()];
        Ok(())
    }
}

fn contents(stream: &mut Stream) -> Vec<u8> {
    let mut bytes = vec![0; stream.size().expect("size") as usize];
    assert_eq!(stream.read(&NoDatabase, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

/// Cuts a write in two within a header or a page. SQLite does so when it syncs at a sector boundary.
fn cut(transaction: &mut Transaction, input: &mut Unstructured) -> arbitrary::Result<()> {
    let which = input.int_in_range(0..=transaction.writes.len() - 1)?;
    let Write { at, bytes } = transaction.writes[which].clone();
    let (head, tail) = bytes.split_at(input.int_in_range(1..=bytes.len() - 1)?);
    let tail = Write { at: at + head.len() as u64, bytes: tail.to_vec() };
    transaction.writes[which].bytes = head.to_vec();
    transaction.writes.insert(which + 1, tail);
    Ok(())
}
