//! What the processes of a schedule and the one that leads them share: whose turn it is, what each process has open
//! and holds, what it has done, and what was acknowledged.
//!
//! Only one process runs at a time. It hands its turn over at a stop and waits for the next one, so everything here is
//! stored by one at a time; the words are atomic because several processes map them.
#![allow(unsafe_code)] // memory that processes share

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::futex;

use crate::call::{Call, Kind};

/// Processes of a schedule at most, the auditors among them.
pub const PROCESSES: usize = 6;
/// Files that a process has open during its life at most.
pub const FILES: usize = 64;
/// Steps and notes of a schedule at most.
const ENTRIES: usize = 1 << 17;
const TEXT: usize = 1 << 14;

/// Why a process has handed its turn over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stop {
    /// It is about to take the step that the leader wanted to decide about.
    Limit,
    /// It sleeps.
    Yield,
    /// It does nothing until another process has come further.
    Nap,
    /// An operation of its program has ended, and the leader wanted to know.
    Operation,
    /// Its program has ended.
    Done,
}

impl Stop {
    fn of(word: u32) -> Self {
        match word {
            0 => Self::Limit,
            1 => Self::Yield,
            2 => Self::Nap,
            3 => Self::Operation,
            _ => Self::Done,
        }
    }
}

/// A file that a process has opened with the base VFS.
#[repr(C)]
pub struct OpenFile {
    /// A [`Kind`], 0 when it is closed.
    pub kind: AtomicU8,
    /// The inode that it had when it was opened.
    pub inode: AtomicU64,
    /// The inode of the `-shm` that is mapped for it; 0 for none.
    pub shm: AtomicU64,
    /// The lock of the database file that the base VFS has.
    pub held: AtomicI32,
}

/// A process.
#[repr(C)]
pub struct Process {
    pub alive: AtomicBool,
    stop: AtomicU32,
    pub files: [OpenFile; FILES],
    /// How many files it has opened.
    pub opened: AtomicU32,
    /// Time that has passed for it.
    pub clock_ns: AtomicU64,
    /// The same when its operation began.
    pub began_ns: AtomicU64,
}

/// A step, or a note between steps.
#[repr(C)]
pub struct Entry {
    /// Its number; `u32::MAX` for a note.
    pub step: AtomicU32,
    pub process: AtomicU8,
    pub call: AtomicU8,
    pub kind: AtomicU8,
    /// The processes that could have taken it, a bit for each.
    pub ready: AtomicU8,
    pub argument: AtomicI32,
    pub code: AtomicI32,
}

/// What is shared. It begins as zeros.
#[repr(C)]
pub struct Board {
    /// Whose turn it is: 0 for the leader, else a process and 1.
    turn: AtomicU32,
    /// The step before which the leader wants its turn.
    limit: AtomicU32,
    step: AtomicU32,
    ready: AtomicU8,
    wants_operations: AtomicBool,
    entries: AtomicU32,
    text_bytes: AtomicU32,
    findings: AtomicU32,
    /// The rows whose insertion was acknowledged, a bit for each.
    pub acknowledged: AtomicU64,
    pub processes: [Process; PROCESSES],
    trace: [Entry; ENTRIES],
    text: [AtomicU8; TEXT],
}

/// The board of this process and of those that it forks.
pub fn board() -> &'static Board {
    static BOARD: OnceLock<&'static Board> = OnceLock::new();
    BOARD.get_or_init(|| {
        let (bytes, access) = (size_of::<Board>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: new memory at a place of the kernel's choice, which is never unmapped.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED) };
        let memory = memory.unwrap().cast::<Board>();
        // SAFETY: mapped with this size and at a page's boundary; zeros are a value of every field, and nobody has
        // another reference that is not shared.
        unsafe { &*memory }
    })
}

impl Process {
    /// Forgets what it has open: it is gone.
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
    /// Clears it for the next schedule. No process but the leader's is there.
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

    /// Gives a process its turn, up to this step, and waits until it hands it back; `None` when it does not within
    /// `patience`.
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

    /// A process is about to take a step: it waits until it may. The entry of the step, for its result.
    pub fn step(&self, process: usize, call: Call, kind: Kind, argument: i32) -> &Entry {
        if self.step.load(SeqCst) == self.limit.load(SeqCst) {
            self.hand_over(process, Stop::Limit);
        }
        let step = self.step.fetch_add(1, SeqCst);
        self.enter(step, process, call, kind, argument)
    }

    /// A process sleeps, or naps: a step, behind which others run.
    pub fn pause(&self, process: usize, call: Call, argument: i32) {
        self.step(process, call, Kind::None, argument);
        if call == Call::Sleep && self.ready.load(SeqCst) == 1 << process {
            // Nobody else can run.
            return;
        }
        self.hand_over(process, if call == Call::Nap { Stop::Nap } else { Stop::Yield });
    }

    /// An operation of a process's program has ended.
    pub fn operation_ended(&self, process: usize) {
        if self.wants_operations.load(SeqCst) {
            self.hand_over(process, Stop::Operation);
        }
    }

    /// A process's program has ended.
    pub fn done(&self, process: usize) {
        self.hand_over(process, Stop::Done);
    }

    /// Notes something that is no step.
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

    /// What a schedule must not do has been done.
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

    /// Whether so many steps have been taken that a schedule is given up.
    pub fn is_full(&self) -> bool {
        self.entries.load(SeqCst) as usize >= ENTRIES - 1
    }

    /// Which processes could run, and whether the leader wants to know when an operation has ended.
    pub fn set_ready(&self, ready: u8, wants_operations: bool) {
        self.ready.store(ready, SeqCst);
        self.wants_operations.store(wants_operations, SeqCst);
    }

    /// How many steps have been taken.
    pub fn steps(&self) -> u32 {
        self.step.load(SeqCst)
    }

    /// The steps and notes so far.
    pub fn trace(&self) -> &[Entry] {
        &self.trace[..(self.entries.load(SeqCst) as usize).min(ENTRIES)]
    }

    /// The findings so far, a line for each.
    pub fn findings(&self) -> Vec<String> {
        let bytes = self.text[..self.text_bytes.load(SeqCst) as usize].iter();
        let text: Vec<u8> = bytes.map(|byte| byte.load(SeqCst)).collect();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}
