//! An account that says, for each database that this process opened, which engine has served it and how many
//! commits the engine has served. The process reports the account at its end (`duralite run`).
//!
//! The account records nothing before [`begin`]. A child of the process begins with an empty account.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use duralite_format::LogId;
use duralite_medium::process::PerProcess;

/// The hint about a database that is still open at the end of the process.
const NOT_CLOSED: &str = "; not closed: its newest commits are in the log, where only programs with Duralite \
                          see them; `duralite checkpoint` makes the database one plain file";

static IS_ON: AtomicBool = AtomicBool::new(false);
static ACCOUNT: PerProcess<Mutex<Account>> = PerProcess::new();

/// A log's engine and guarantee, and how many transactions this process has committed to the log so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The engine's name.
    pub engine: &'static str,
    /// The events that a commit survives, in the words of `PRAGMA duralite`.
    pub guarantee: &'static str,
    /// The number of transactions that this process has committed.
    pub commits: u64,
}

/// A log in use.
pub trait Accounted: Send + Sync {
    /// Returns the log's summary, or `None` while another thread uses the log.
    fn summary(&self) -> Option<Summary>;
}

#[derive(Default)]
struct Account {
    databases: BTreeMap<PathBuf, Fate>,
    /// The logs in use, and the databases to which they belong.
    logs: BTreeMap<[u8; 16], (PathBuf, Weak<dyn Accounted>)>,
}

#[derive(Default)]
struct Fate {
    /// The commits to those logs of the database that this process no longer uses, with the engine and the
    /// guarantee of the last of these logs. `None` if there is no such log.
    served: Option<Summary>,
    /// The text to report about the database if no log has ever served it.
    plain: Option<String>,
}

impl Fate {
    fn add(&mut self, summary: Summary) {
        let before = self.served.map_or(0, |served| served.commits);
        self.served = Some(Summary { commits: before + summary.commits, ..summary });
    }

    fn text(&self) -> Option<String> {
        match (&self.served, &self.plain) {
            (Some(Summary { engine, guarantee, commits }), _) => {
                Some(format!("engine {engine}, guarantee {guarantee}, commits {commits}"))
            }
            (None, why) => why.clone(),
        }
    }
}

fn account() -> MutexGuard<'static, Account> {
    ACCOUNT.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to keep the account.
pub fn begin() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Returns whether this process keeps the account.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns a line for each database that was opened since [`begin`]. The line says what served the database,
/// or why no engine did. Returns an empty text when no database was opened.
#[must_use]
pub fn text() -> String {
    let mut text = String::new();
    // Declare `in_use` before `account`, so that `in_use` is dropped later, after the account is unlocked. A
    // reference in `in_use` may be the last one to an attachment. When the attachment is dropped, it locks
    // the account to add its commits.
    let mut in_use = Vec::new();
    let account = account();
    for (path, fate) in &account.databases {
        let mut fate = Fate { served: fate.served, plain: fate.plain.clone() };
        let of_this = account.logs.values().filter(|(of, _)| of == path);
        let before = in_use.len();
        in_use.extend(of_this.filter_map(|(_, log)| log.upgrade()));
        in_use[before..].iter().filter_map(|log| log.summary()).for_each(|summary| fate.add(summary));
        let open = if in_use.len() == before { "" } else { NOT_CLOSED };
        // Writing to a string cannot fail.
        let _ = fate.text().map(|fate| writeln!(text, "{}: {fate}{open}", path.display()));
    }
    text
}

/// Notes that a log begins to serve a database.
pub fn serves(path: &Path, id: LogId, log: Weak<dyn Accounted>) {
    if is_on() {
        let mut account = account();
        account.databases.entry(path.to_path_buf()).or_default();
        account.logs.insert(id.0, (path.to_path_buf(), log));
    }
}

/// Notes that the last connection of this process has detached a log.
pub fn ended(id: LogId, summary: Summary) {
    if is_on() {
        let mut account = account();
        if let Some((path, _)) = account.logs.remove(&id.0) {
            account.databases.entry(path).or_default().add(summary);
        }
    }
}

/// Notes why no log has served a database so far.
pub fn plain(path: &Path, why: &str) {
    if is_on() {
        let why = why.trim_start_matches("idle: ").trim_start_matches("off: ");
        account().databases.entry(path.to_path_buf()).or_default().plain =
            Some(format!("plain SQLite: {why}"));
    }
}

/// Notes why a database was refused when it was opened.
pub fn refused(path: &Path, why: &str) {
    if is_on() {
        account().databases.entry(path.to_path_buf()).or_default().plain = Some(format!("not opened: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Log(Summary);

    impl Accounted for Log {
        fn summary(&self) -> Option<Summary> {
            Some(self.0)
        }
    }

    /// This is one test, because the process has a single account.
    #[test]
    fn commits_of_ended_and_living_logs_are_added_up() {
        let summary = |commits| Summary { engine: "waldio", guarantee: "power-loss", commits };
        plain(Path::new("/early.db"), "idle: nothing");
        begin();
        assert_eq!(text(), "");
        plain(Path::new("/b.db"), "idle: journal_mode is not wal");
        plain(Path::new("/a.db"), "off: journal=off");
        let first: Arc<dyn Accounted> = Arc::new(Log(summary(2)));
        serves(Path::new("/a.db"), LogId([1; 16]), Arc::downgrade(&first));
        ended(LogId([1; 16]), summary(2));
        let second: Arc<dyn Accounted> = Arc::new(Log(summary(3)));
        serves(Path::new("/a.db"), LogId([2; 16]), Arc::downgrade(&second));
        let served = "/a.db: engine waldio, guarantee power-loss, commits 5";
        let plain = "/b.db: plain SQLite: journal_mode is not wal\n";
        assert_eq!(text(), format!("{served}{NOT_CLOSED}\n{plain}"));
        drop(second);
        ended(LogId([2; 16]), summary(3));
        ended(LogId([2; 16]), summary(3));
        assert_eq!(text(), format!("{served}\n{plain}"), "counted once");
    }
}
