//! What the processes of a race have seen: each statement's answer and each transaction's end, in one order of all
//! processes. It is in memory that they share with the leader, so it outlives a process that is killed.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::board::PROCESSES;
use crate::shared::{Zeroable, map};

/// Bytes of text of a process.
const TEXT: usize = 1 << 16;

/// The process is in no commit: what it does to the log, as in a checkpoint, is no transaction.
const NONE: u64 = u64::MAX;

/// The shared memory.
#[repr(C)]
pub struct Ledger {
    /// The last moment. Everything that is noted has a moment of its own.
    now: AtomicU64,
    pages: [Page; PROCESSES],
}

#[repr(C)]
struct Page {
    bytes: AtomicU32,
    /// When the process last changed the log since the commit began that it is in; 0 for not yet, and [`NONE`] where it is in no
    /// commit. It has WRITE then, and a commit is published after its last change. So these moments have the order in which
    /// commits are published.
    sealed: AtomicU64,
    text: [AtomicU8; TEXT],
}

impl Zeroable for Ledger {}

/// A transaction as its process has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub process: usize,
    /// Its number among those of its process.
    pub number: usize,
    pub begun: u64,
    /// The answers of its statements, and when each was there.
    pub answers: Vec<(u64, String)>,
    pub end: End,
}

/// How a transaction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// COMMIT has succeeded at this moment. `sealed` is 0 where it had nothing to commit.
    Committed { at: u64, sealed: u64 },
    /// It was refused.
    Refused,
    /// Its process died. `sealed` is 0 if nothing of the transaction can be in the log.
    Died { sealed: u64 },
}

/// The ledger of this process and of those that it forks.
pub fn ledger() -> &'static Ledger {
    static LEDGER: OnceLock<&'static Ledger> = OnceLock::new();
    LEDGER.get_or_init(map)
}

impl Ledger {
    /// Clears the ledger for the next schedule.
    pub fn clear(&self) {
        self.now.store(0, SeqCst);
        for page in &self.pages {
            page.bytes.store(0, SeqCst);
            page.sealed.store(0, SeqCst);
        }
    }

    fn moment(&self) -> u64 {
        self.now.fetch_add(1, SeqCst) + 1
    }

    fn write(&self, process: usize, line: fmt::Arguments<'_>) {
        let page = &self.pages[process];
        for byte in format!("{line}\n").bytes() {
            let at = page.bytes.fetch_add(1, SeqCst) as usize;
            page.text[at].store(byte, SeqCst);
        }
    }

    /// A transaction begins.
    pub fn begins(&self, process: usize, number: usize) {
        self.pages[process].sealed.store(NONE, SeqCst);
        self.write(process, format_args!("begins {number} {}", self.moment()));
    }

    /// A statement has answered.
    pub fn answered(&self, process: usize, answer: &str) {
        self.write(process, format_args!("answer {} {answer}", self.moment()));
    }

    /// The process is about to commit. Changes of the log count from here on.
    pub fn commits(&self, process: usize) {
        self.pages[process].sealed.store(0, SeqCst);
        self.write(process, format_args!("commits {}", self.moment()));
    }

    /// The process is about to change the log or the header of the wal-index, or has made its changes durable.
    pub fn changes_log(&self, process: usize) {
        let sealed = &self.pages[process].sealed;
        if sealed.load(SeqCst) != NONE {
            sealed.store(self.moment(), SeqCst);
        }
    }

    fn sealed(&self, process: usize) -> u64 {
        let sealed = self.pages[process].sealed.load(SeqCst);
        if sealed == NONE { 0 } else { sealed }
    }

    /// The transaction has committed.
    pub fn committed(&self, process: usize) {
        let sealed = self.sealed(process);
        self.write(process, format_args!("committed {} {sealed}", self.moment()));
    }

    /// The transaction was refused, and is rolled back.
    pub fn refused(&self, process: usize, code: i32) {
        self.write(process, format_args!("refused {} {code}", self.moment()));
    }

    /// What a process finds in the database in the end.
    pub fn finds(&self, process: usize, rows: &str) {
        self.write(process, format_args!("finds {} {rows}", self.moment()));
    }

    fn lines(&self, process: usize) -> Vec<String> {
        let page = &self.pages[process];
        let bytes = page.text.iter().take(page.bytes.load(SeqCst) as usize);
        let text: Vec<u8> = bytes.map(|byte| byte.load(SeqCst)).collect();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// All transactions that have begun, and what each process has found in the end, one after the other. `sees_log` says
    /// whether each change of the log is noted; a transaction may be sealed without one otherwise.
    pub fn read(&self, sees_log: bool) -> (Vec<Seen>, Vec<(usize, String)>) {
        let (mut all, mut found): (Vec<Seen>, Vec<(u64, usize, String)>) = (Vec::new(), Vec::new());
        for process in 0..PROCESSES {
            for line in self.lines(process) {
                let mut words = line.splitn(3, ' ');
                let mut word = || words.next().unwrap_or_default();
                let (what, first, rest) = (word(), word(), word());
                if what == "begins" {
                    let end = End::Died { sealed: 0 };
                    let (number, begun) = (first.parse().unwrap(), rest.parse().unwrap());
                    all.push(Seen { process, number, begun, answers: Vec::new(), end });
                    continue;
                }
                let at = first.parse().unwrap();
                if what == "finds" {
                    found.push((at, process, rest.to_owned()));
                    continue;
                }
                let last = all.last_mut().unwrap();
                match what {
                    "answer" => last.answers.push((at, rest.to_owned())),
                    "commits" if sees_log => {}
                    "commits" => last.end = End::Died { sealed: at },
                    "committed" => last.end = End::Committed { at, sealed: rest.parse().unwrap() },
                    _ => last.end = End::Refused,
                }
            }
            if let Some(Seen { end: End::Died { sealed }, .. }) =
                all.last_mut().filter(|last| last.process == process)
            {
                *sealed = self.sealed(process).max(*sealed);
            }
        }
        found.sort();
        (all, found.into_iter().map(|(_, process, rows)| (process, rows)).collect())
    }
}
