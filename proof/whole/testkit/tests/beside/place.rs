//! Stops a process of Duralite before each of its locks in turn, lets a process of stock SQLite work in the
//! meantime, and checks the final content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use duralite_testkit::{Actor, Fixture, VERSIONS};

const NAME: &str = "t.db";
/// The number of locks at which the test stops a process, each in a run of its own. This is a few times the
/// number of locks that an open takes if it has to wait and try again.
const LOCKS: u64 = 48;
/// The number of these runs that the test makes at the same time.
const AT_ONCE: usize = 8;

/// A database, its acknowledged rows, and the errors that the test found.
pub struct Place {
    fixture: Fixture,
    acknowledged: BTreeSet<i64>,
    next: i64,
    pub wrong: Vec<String>,
}

impl Place {
    /// Makes a database in WAL mode that no process has open. The table begins with `rows` rows.
    pub fn new(rows: i64) -> Self {
        let place =
            Self { fixture: Fixture::new(), acknowledged: BTreeSet::new(), next: 1, wrong: Vec::new() };
        let mut stock = place.stock();
        stock.run("PRAGMA journal_mode=WAL");
        stock.run("CREATE TABLE t(n INTEGER PRIMARY KEY, filler)");
        stock.run("CREATE TABLE pair(id INTEGER PRIMARY KEY, a, filler)");
        stock.run(&format!(
            "WITH RECURSIVE c(id) AS (VALUES(1) UNION ALL SELECT id + 1 FROM c WHERE id < {rows})
             INSERT INTO pair SELECT id, 0, zeroblob(900) FROM c"
        ));
        stock.finish();
        place
    }

    /// Returns the bytes of the database file that give the journal mode. The value 2 means WAL.
    pub fn versions(&self) -> Vec<u8> {
        std::fs::read(self.fixture.path(NAME)).unwrap()[VERSIONS].to_vec()
    }

    fn stock_uri(&self) -> String {
        format!("file:{}?vfs=unix", self.fixture.path(NAME).display())
    }

    /// Starts a process of stock SQLite.
    pub fn stock(&self) -> Actor {
        Actor::sql(&self.stock_uri())
    }

    /// Starts a process of Duralite that may only read.
    pub fn reader(&self) -> Actor {
        Actor::sql(&self.fixture.uri(NAME, "mode=ro"))
    }

    /// Starts a process of stock SQLite that dies at the step that the test chooses.
    pub fn mortal(&self) -> Actor {
        Actor::start(&["stepping", &self.stock_uri()])
    }

    /// Inserts a row, which counts as acknowledged if there is no error. Returns the process's answer.
    pub fn insert(&mut self, who: &mut Actor, stock: bool) -> String {
        let n = self.next();
        let answer = who.run(&insert(n));
        self.answered(n, &answer, stock);
        answer
    }

    /// Inserts a row in the process of Duralite, which the test may have stopped once.
    pub fn insert_by(&mut self, ours: &mut Halting) {
        let n = self.next();
        let answer = ours.run(&insert(n), || {});
        self.answered(n, &answer, false);
    }

    /// Checks a reader's answer: the number of different values in column `a` of `pair`. Each transaction
    /// leaves the same value in all rows, so the number must be 1.
    pub fn sees_one_state(&mut self, answer: &str) {
        self.may_say(answer, false);
        if !answer.starts_with("error: ") && answer != "1" {
            self.wrong.push(format!("a reader sees half a transaction: {answer} values of a"));
        }
    }

    pub fn next(&mut self) -> i64 {
        self.next += 1;
        self.next
    }

    /// Records the answer to the insertion of row `n`.
    pub fn answered(&mut self, n: i64, answer: &str, stock: bool) {
        if answer.is_empty() {
            self.acknowledged.insert(n);
        } else {
            self.may_say(answer, stock);
        }
    }

    /// Checks that `answer` is not an error, unless a lock of another process can cause that error. From
    /// stock SQLite, the errors that the guard causes are allowed too.
    pub fn may_say(&mut self, answer: &str, stock: bool) {
        let guard = ["file is not a database", "attempt to write a readonly database"];
        let excused = !answer.starts_with("error: ")
            || answer.contains("is locked")
            // A stopped process may hold the lock under which SQLite recovers the wal-index.
            || answer.contains("locking protocol")
            || (stock && guard.iter().any(|text| answer.contains(text)));
        if !excused {
            let whose = if stock { "stock SQLite" } else { "Duralite" };
            self.wrong.push(format!("{whose} says {answer}"));
        }
    }

    /// Checks that a reader's answer to `SELECT n FROM t` has every acknowledged row.
    pub fn has_all(&mut self, answer: &str, who: &str) {
        let found: BTreeSet<i64> = answer.split_whitespace().filter_map(|row| row.parse().ok()).collect();
        let lost: Vec<_> = self.acknowledged.difference(&found).collect();
        if !lost.is_empty() {
            self.wrong.push(format!("{who} does not find {lost:?}, which were acknowledged, but {answer}"));
        }
    }

    /// Checks the rows after all processes have closed the database: with Duralite, and after that with
    /// stock SQLite.
    fn audit(&mut self) {
        for (who, uri) in [
            ("Duralite, in the end,", self.fixture.uri(NAME, "")),
            ("stock SQLite, in the end,", self.stock_uri()),
        ] {
            let mut reader = Actor::sql(&uri);
            let rows = reader.run("SELECT n FROM t");
            self.has_all(&rows, who);
            let sound = reader.run("PRAGMA integrity_check");
            if sound != "ok" {
                self.wrong.push(format!("{who} finds it unsound: {sound}"));
            }
            let pairs = reader.run("SELECT count(DISTINCT a) FROM pair");
            if pairs != "1" {
                self.wrong.push(format!("{who} finds half a transaction: {pairs} values of a"));
            }
            reader.finish();
        }
    }
}

pub fn insert(n: i64) -> String {
    format!("INSERT INTO t VALUES({n}, randomblob(100))")
}

/// A process of Duralite that stops itself once, before a chosen lock.
pub struct Halting {
    actor: Actor,
    halted: bool,
}

impl Halting {
    /// Runs a statement. If the process stops before the answer, calls `meanwhile` and lets the process
    /// continue.
    pub fn run(&mut self, statement: &str, meanwhile: impl FnOnce()) -> String {
        self.actor.tell(statement);
        let line = self.actor.line();
        if line != "halted" {
            return line;
        }
        self.halted = true;
        self.actor.until_stopped();
        meanwhile();
        self.actor.go_on();
        self.actor.line()
    }
}

/// Runs `case` once for each lock, with a process of Duralite that is stopped before that lock. The case must
/// close everything that it opens. A control, in which stock SQLite plays Duralite's part, runs first.
///
/// # Panics
/// Panics with all errors if anything was wrong.
pub fn at_every_lock(parameters: &str, rows: i64, case: impl Fn(&mut Place, &mut Halting) + Sync) {
    for control in [true, false] {
        let what = if control { "the control, " } else { "" };
        let (tried, wrong) = at_each_lock(parameters, rows, control, &case);
        assert!(tried > 4, "{what}there are only {tried} locks: nobody was stopped where it matters");
        assert!(wrong.is_empty(), "{what}wrong at {} of {tried} locks:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Returns the number of locks, and all errors. Makes several runs at the same time, because a run spends
/// most of its time waiting for a lock that another process holds.
fn at_each_lock(
    parameters: &str,
    rows: i64,
    control: bool,
    case: &(impl Fn(&mut Place, &mut Halting) + Sync),
) -> (u64, Vec<String>) {
    let (next, last) = (AtomicU64::new(1), AtomicU64::new(LOCKS));
    let wrong = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let lock = next.fetch_add(1, SeqCst);
                    if lock > last.load(SeqCst) {
                        return;
                    }
                    let (halted, found) = at_lock(parameters, rows, control, lock, case);
                    if !halted {
                        last.fetch_min(lock, SeqCst);
                    }
                    if !found.is_empty() {
                        let told = format!("before lock {lock}: {}", found.join("; "));
                        wrong.lock().unwrap().insert(lock, told);
                    }
                }
            });
        }
    });
    (last.into_inner(), wrong.into_inner().unwrap().into_values().collect())
}

/// Makes the run in which the process stops before one lock. Returns whether the process came to that lock,
/// and all errors.
fn at_lock(
    parameters: &str,
    rows: i64,
    control: bool,
    lock: u64,
    case: &impl Fn(&mut Place, &mut Halting),
) -> (bool, Vec<String>) {
    let mut place = Place::new(rows);
    let uri = if control {
        format!("{}&{parameters}", place.stock_uri())
    } else {
        place.fixture.uri(NAME, parameters)
    };
    let actor = Actor::start(&["halting", &uri, &lock.to_string()]);
    let mut halting = Halting { actor, halted: false };
    case(&mut place, &mut halting);
    let halted = halting.halted;
    halting.actor.finish();
    place.audit();
    (halted, place.wrong)
}
