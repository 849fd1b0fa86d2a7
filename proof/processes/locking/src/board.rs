//! Memory that the processes of a schedule share with their leader. It says which process has the turn, which
//! files each process has open and which locks it holds, which steps the processes have taken, and which rows
//! were acknowledged.
//!
//! Only one process runs at a time. At a stop, a process hands over its turn, and waits for its next turn. So
//! only one process at a time stores to this memory. The words are atomic because several processes map them.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::thread::futex;

use crate::call::{Call, Kind};
use crate::grain;
use crate::shared::{Zeroable, map};

/// The largest number of processes in a schedule, including the auditors.
pub const PROCESSES: usize = 6;
/// The largest number of files that a process opens during its life.
pub const FILES: usize = 64;
/// The largest number of steps and notes in a schedule.
const ENTRIES: usize = 1 << 17;
const TEXT: usize = 1 << 14;

/// The reason why a process has handed over its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stop {
    /// The process is about to take a step, and the leader wants to decide before that step.
    Limit,
    /// The process sleeps.
    Yield,
    /// The process waits until another process has ended one of its operations.
    Nap,
    /// The process has ended an operation of its program, and the leader has asked to be told about that.
    Operation,
    /// The process has reached a barrier, at which all processes wait for each other.
    Barrier,
    /// The program of the process has ended.
    Done,
}

impl Stop {
    fn of(word: u32) -> Self {
        match word {
            0 => Self::Limit,
            1 => Self::Yield,
            2 => Self::Nap,
            3 => Self::Operation,
            4 => Self::Barrier,
            _ => Self::Done,
        }
    }
}

/// A file that a process has opened through the base VFS.
#[repr(C)]
pub struct OpenFile {
    /// The number of the file's [`Kind`]; 0 when the file is closed.
    pub kind: AtomicU8,
    /// The inode that the file had when the process opened it.
    pub inode: AtomicU64,
    /// The inode of the `-shm` that the process has mapped for this file; 0 for none.
    pub shm: AtomicU64,
    /// The lock on the database file that the base VFS holds.
    pub held: AtomicI32,
}

/// A process of a schedule.
#[repr(C)]
pub struct Process {
    pub alive: AtomicBool,
    stop: AtomicU32,
    pub files: [OpenFile; FILES],
    /// The number of files that the process has opened.
    pub opened: AtomicU32,
    /// The time on the process's own clock, in nanoseconds.
    pub clock_ns: AtomicU64,
    /// The time at which the process's present operation began, in nanoseconds of its own clock.
    pub began_ns: AtomicU64,
}

/// A step, or a note between steps.
#[repr(C)]
pub struct Entry {
    /// The number of the step; `u32::MAX` for a note.
    pub step: AtomicU32,
    pub process: AtomicU8,
    pub call: AtomicU8,
    pub kind: AtomicU8,
    /// The processes that could have taken the step, as one bit for each process.
    pub ready: AtomicU8,
    pub argument: AtomicI32,
    pub code: AtomicI32,
}

/// The shared memory. It starts as zeros.
#[repr(C)]
pub struct Board {
    /// The process that has the turn, as its number plus 1; 0 if the leader has it.
    turn: AtomicU32,
    /// The leader gets its turn back before the step with this number.
    limit: AtomicU32,
    step: AtomicU32,
    ready: AtomicU8,
    wants_operations: AtomicBool,
    entries: AtomicU32,
    text_bytes: AtomicU32,
    findings: AtomicU32,
    /// The rows whose insertion was acknowledged, as one bit for each row.
    pub acknowledged: AtomicU64,
    pub processes: [Process; PROCESSES],
    trace: [Entry; ENTRIES],
    text: [AtomicU8; TEXT],
}

impl Zeroable for Board {}

/// Returns the board that this process shares with the processes that it forks.
pub fn board() -> &'static Board {
    static BOARD: OnceLock<&'static Board> = OnceLock::new();
    BOARD.get_or_init(map)
}

impl Process {
    /// After a process has ended, marks its files as closed.
    pub fn close_all(&self) {
        let opened = self.opened.swap(0, SeqCst) as usize;
        for file in self.files.iter().take(opened) {
            file.kind.store(0, SeqCst);
            file.inode.store(0, SeqCst);
            file.shm.store(0, SeqCst);
            file.held.store(0, SeqCst);
        }
    }
}

impl Board {
    /// Clears the board for the next schedule. No process but the leader may be running.
    pub fn clear(&self) {
        for process in &self.processes {
            process.alive.store(false, SeqCst);
            process.close_all();
            process.clock_ns.store(0, SeqCst);
            process.began_ns.store(0, SeqCst);
        }
        for word in [&self.step, &self.entries, &self.text_bytes, &self.findings] {
            word.store(0, SeqCst);
        }
        self.acknowledged.store(0, SeqCst);
    }

    /// Gives a process its turn until the step `limit`, and waits until the process hands the turn back.
    /// Returns `None` if that takes longer than `patience`.
    pub fn run(&self, process: usize, limit: u32, patience: Duration) -> Option<Stop> {
        self.limit.store(limit, SeqCst);
        self.hand(process as u32 + 1);
        let slice = futex::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let mut slices = patience.as_millis() / 50;
        while self.turn.load(SeqCst) != 0 {
            let turn = process as u32 + 1;
            let waited = futex::wait(&self.turn, futex::Flags::empty(), turn, Some(&slice));
            if waited == Err(rustix::io::Errno::TIMEDOUT) {
                slices = slices.saturating_sub(1);
                if slices == 0 {
                    return None;
                }
            }
        }
        Some(Stop::of(self.processes[process].stop.load(SeqCst)))
    }

    fn hand(&self, to: u32) {
        self.turn.store(to, SeqCst);
        let _ = futex::wake(&self.turn, futex::Flags::empty(), PROCESSES as u32 + 1);
    }

    /// Waits for the first turn of this process.
    pub fn begin(&self, process: usize) {
        self.await_turn(process as u32 + 1);
    }

    fn await_turn(&self, mine: u32) {
        loop {
            let turn = self.turn.load(SeqCst);
            if turn == mine {
                return;
            }
            let _ = futex::wait(&self.turn, futex::Flags::empty(), turn, None);
        }
    }

    fn hand_over(&self, process: usize, stop: Stop) {
        self.processes[process].stop.store(stop as u32, SeqCst);
        self.hand(0);
        if stop != Stop::Done {
            self.await_turn(process as u32 + 1);
        }
    }

    /// Waits until the process may take its next step. The process calls this just before the step. Returns
    /// the step's entry in the trace, into which the process writes the step's result.
    pub fn step(&self, process: usize, call: Call, kind: Kind, argument: i32) -> &Entry {
        if self.step.load(SeqCst) == self.limit.load(SeqCst) {
            self.hand_over(process, Stop::Limit);
        }
        let step = self.step.fetch_add(1, SeqCst);
        self.enter(step, process, call, kind, argument)
    }

    /// Hands over the turn of a process that sleeps or naps. In a race this is not a step, because a sleeping
    /// process can do nothing until another process has taken a step. Outside a race it is a step, after
    /// which other processes run.
    pub fn pause(&self, process: usize, call: Call, argument: i32) {
        if grain::is_race() {
            self.note(process, call, argument, 0);
        } else {
            self.step(process, call, Kind::None, argument);
        }
        if call == Call::Sleep && self.ready.load(SeqCst) == 1 << process {
            // No other process can run.
            return;
        }
        self.hand_over(process, if call == Call::Nap { Stop::Nap } else { Stop::Yield });
    }

    /// Hands over the turn of a process that has ended an operation of its program, if the leader wants to be
    /// told about that.
    pub fn operation_ended(&self, process: usize) {
        if self.wants_operations.load(SeqCst) {
            self.hand_over(process, Stop::Operation);
        }
    }

    /// Hands over the turn of a process that waits for all other processes.
    pub fn barrier(&self, process: usize) {
        self.hand_over(process, Stop::Barrier);
    }

    /// Hands over the turn of a process whose program has ended.
    pub fn done(&self, process: usize) {
        self.hand_over(process, Stop::Done);
    }

    /// Records an event that is not a step.
    pub fn note(&self, process: usize, call: Call, argument: i32, code: i32) {
        self.enter(u32::MAX, process, call, Kind::None, argument).code.store(code, SeqCst);
    }

    fn enter(&self, step: u32, process: usize, call: Call, kind: Kind, argument: i32) -> &Entry {
        let at = (self.entries.fetch_add(1, SeqCst) as usize).min(ENTRIES - 1);
        let entry = &self.trace[at];
        entry.step.store(step, SeqCst);
        entry.process.store(process as u8, SeqCst);
        entry.call.store(call as u8, SeqCst);
        entry.kind.store(kind as u8, SeqCst);
        entry.ready.store(self.ready.load(SeqCst), SeqCst);
        entry.argument.store(argument, SeqCst);
        entry.code.store(-1, SeqCst);
        entry
    }

    /// Records that a process has broken a rule.
    pub fn finding(&self, process: usize, what: fmt::Arguments<'_>) {
        self.note(process, Call::Finding, self.findings.fetch_add(1, SeqCst) as i32, 0);
        let line = format!("process {process}: {what}\n");
        for byte in line.bytes() {
            let at = self.text_bytes.load(SeqCst) as usize;
            if at < TEXT {
                self.text[at].store(byte, SeqCst);
                self.text_bytes.store(at as u32 + 1, SeqCst);
            }
        }
    }

    /// Returns whether the trace is full. In that case the leader abandons the schedule.
    pub fn is_full(&self) -> bool {
        self.entries.load(SeqCst) as usize >= ENTRIES - 1
    }

    /// Sets which processes can run now, and whether the leader gets its turn back each time an operation has
    /// ended.
    pub fn set_ready(&self, ready: u8, wants_operations: bool) {
        self.ready.store(ready, SeqCst);
        self.wants_operations.store(wants_operations, SeqCst);
    }

    /// Returns the number of steps taken.
    pub fn steps(&self) -> u32 {
        self.step.load(SeqCst)
    }

    /// Returns the steps and notes so far.
    pub fn trace(&self) -> &[Entry] {
        &self.trace[..(self.entries.load(SeqCst) as usize).min(ENTRIES)]
    }

    /// Returns the findings so far, one line for each.
    pub fn findings(&self) -> Vec<String> {
        let bytes = self.text[..self.text_bytes.load(SeqCst) as usize].iter();
        let text: Vec<u8> = bytes.map(|byte| byte.load(SeqCst)).collect();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}
