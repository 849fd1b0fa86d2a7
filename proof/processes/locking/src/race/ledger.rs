//! Records what the processes of a race have seen: each statement's answer and each transaction's end, in one
//! order for all processes. The processes share the memory of the ledger with the leader, so its contents
//! survive when a process is killed.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::board::PROCESSES;
use crate::shared::{Zeroable, map};

/// The largest number of bytes of text that a process writes.
const TEXT: usize = 1 << 16;

/// The value of `sealed` while the process is not in a commit. A change of the log at such a time, for
/// example in a checkpoint, belongs to no transaction.
const NONE: u64 = u64::MAX;

/// The shared memory.
#[repr(C)]
pub struct Ledger {
    /// A counter that grows with each entry of the ledger. The number that an entry gets is its *moment*.
    now: AtomicU64,
    pages: [Page; PROCESSES],
}

#[repr(C)]
struct Page {
    bytes: AtomicU32,
    /// The moment at which the process last changed the log in its present commit. It is 0 before the first
    /// such change, and [`NONE`] while the process is not in a commit. A process that changes the log in a
    /// commit holds WRITE, and publishes the commit after its last change. So these moments are in the order
    /// in which the commits are published.
    sealed: AtomicU64,
    text: [AtomicU8; TEXT],
}

impl Zeroable for Ledger {}

/// A transaction, as its own process has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub process: usize,
    /// The number of the transaction, counted among the transactions of its process.
    pub number: usize,
    pub begun: u64,
    /// The answers of the transaction's statements, each with the moment of the answer.
    pub answers: Vec<(u64, String)>,
    pub end: End,
}

/// The way in which a transaction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// COMMIT succeeded at the moment `at`. `sealed` is the moment of the commit's last change of the log; 0
    /// if there was nothing to commit.
    Committed { at: u64, sealed: u64 },
    /// The transaction was refused.
    Refused,
    /// The process of the transaction died. `sealed` is 0 if no part of the transaction can be in the log.
    Died { sealed: u64 },
}

/// Returns the ledger that this process shares with the processes that it forks.
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

    /// Notes that a transaction begins.
    pub fn begins(&self, process: usize, number: usize) {
        self.pages[process].sealed.store(NONE, SeqCst);
        self.write(process, format_args!("begins {number} {}", self.moment()));
    }

    /// Notes the answer of a statement.
    pub fn answered(&self, process: usize, answer: &str) {
        self.write(process, format_args!("answer {} {answer}", self.moment()));
    }

    /// Records that the process is about to commit. From now on, its changes of the log belong to this
    /// commit.
    pub fn commits(&self, process: usize) {
        self.pages[process].sealed.store(0, SeqCst);
        self.write(process, format_args!("commits {}", self.moment()));
    }

    /// If the process is in a commit, records the present moment. The caller is about to change the log or
    /// the header of the wal-index, or has just made its changes durable.
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

    /// Notes that the transaction has committed.
    pub fn committed(&self, process: usize) {
        let sealed = self.sealed(process);
        self.write(process, format_args!("committed {} {sealed}", self.moment()));
    }

    /// Records that the transaction was refused and will be rolled back.
    pub fn refused(&self, process: usize, code: i32) {
        self.write(process, format_args!("refused {} {code}", self.moment()));
    }

    /// Records the rows that a process finds in the database at the end.
    pub fn finds(&self, process: usize, rows: &str) {
        self.write(process, format_args!("finds {} {rows}", self.moment()));
    }

    fn lines(&self, process: usize) -> Vec<String> {
        let page = &self.pages[process];
        let bytes = page.text.iter().take(page.bytes.load(SeqCst) as usize);
        let text: Vec<u8> = bytes.map(|byte| byte.load(SeqCst)).collect();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Returns all transactions that have begun. Also returns the rows that each process has found at the
    /// end, in the order in which the processes found them. `sees_log` says whether the ledger records each
    /// change of the log. If it does not, a transaction that was about to commit may be in the log, even if
    /// the ledger shows no change.
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
