//! Transactions of a workload as the stations see them, and the logs of the schemes.
//!
//! Each simulated thread runs, one after the other, transactions that were recorded: their rows and how long each
//! operation took. Rows are locked until the commit has its number, the page of a row that is changed is latched
//! while the object gets into the log, and what a thread waits for at its commit is what its scheme waits for.

use std::collections::VecDeque;

use duralite_store::Scheme;

use super::rows::{Asked, Rows};
use super::stations::{Act, Answer, Machine, Program, Time, World, ns, simulate};

/// An operation: a lock, work, and a change of a page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Op {
    /// The row, if others want it too, and whether it is changed.
    pub(crate) row: Option<(usize, bool)>,
    pub(crate) work: Time,
    /// The page that is changed, and for how long it is latched.
    pub(crate) change: Option<(usize, Time)>,
}

/// A transaction that was recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) ops: Vec<Op>,
    /// Building the commit's object, and giving back locks.
    pub(crate) end: Time,
}

/// What things cost that a scheme does, all measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogCosts {
    /// The central buffer's mutex, for an object.
    pub(crate) central: Time,
    /// What fetching a line from another core takes that each object's number is taken from.
    pub(crate) number: Time,
    /// Making objects durable: once, and for each of them.
    pub(crate) force: Time,
    pub(crate) force_object: Time,
    /// Looking at an object that somebody else has made durable, or is about to.
    pub(crate) look: Time,
    /// Writing a file: once, for each byte, and what is added for each byte of whole blocks.
    pub(crate) write: Time,
    pub(crate) write_byte: f64,
    pub(crate) added_byte: f64,
    pub(crate) added_call: Time,
    pub(crate) block_bytes: f64,
    pub(crate) header_bytes: f64,
    /// Bytes of an object.
    pub(crate) object_bytes: f64,
    /// Processor time in the background, for each transaction.
    pub(crate) background: Time,
}

/// A workload with a scheme.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) scheme: Scheme,
    /// As recorded of each thread; a thread beyond them begins again with the first.
    pub(crate) scripts: Vec<Vec<Script>>,
    pub(crate) rows: usize,
    pub(crate) pages: usize,
    pub(crate) costs: LogCosts,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) per_second: f64,
    /// Processor time of a transaction, that in the background too, in nanoseconds.
    pub(crate) cpu_ns: f64,
    /// Transactions that one write of the log made durable.
    pub(crate) group: f64,
    /// Row locks waited for, per transaction.
    pub(crate) lock_waits: f64,
    /// How busy the stations were, of 1; busiest first.
    pub(crate) busy: Vec<(&'static str, f64)>,
    /// Cores that pages were cleaned on.
    pub(crate) cleaning: f64,
}

/// Whether the scheme keeps its log in a file.
pub(crate) fn is_file(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::NvDisk | Scheme::NvDiskDecentralized)
}

/// Mutexes; pages come after them.
const CENTRAL: usize = 0;
const FILE: usize = 1;
const FIRST_PAGE: usize = 2;
/// Lines.
const NUMBER_LINE: usize = 0;
const LINES: usize = 1;
/// Logs of `distributed`.
const RINGS: usize = 16;
/// Objects that one thread takes at a time to make them durable, while others take the next.
const CHUNK: usize = 8;
/// The daemon of the log, and the cleaners of pages: as many as have enough to do.
const DAEMON_EVERY: f64 = 500e3;
const CLEAN_EVERY: f64 = 5e6;
const CLEANERS: usize = 4;
/// How long a thread waits that would have waited for itself.
const GIVE_WAY: f64 = 20e3;

/// What the program is asked.
const NUMBER: u32 = 0;
const DONE: u32 = 1;
const RELEASE: u32 = 2;
const FORCE: u32 = 3;
const WRITTEN: u32 = 4;
const COMMITTED: u32 = 5;
const DAEMON: u32 = 6;
const CLEAN: u32 = 7;
/// And rows: twice the row's number, and one more if it is changed.
const LOCK: u32 = 16;

/// A simulated thread.
#[derive(Debug, Default)]
struct Thread {
    /// Objects that are numbered and not durable yet, in flush-on-insert, or being made so.
    doing: Vec<u64>,
    last: u64,
    depends_on: u64,
    has_changed: bool,
}

/// The log: of each object from `durable` on how it stands.
#[derive(Debug, Default)]
struct Log {
    next: u64,
    durable: u64,
    stands: VecDeque<Stands>,
    /// Objects below are written or being so.
    written: u64,
    is_writing: bool,
    waiting: Vec<usize>,
    /// Are woken one by the other.
    chain: VecDeque<usize>,
    writes: u64,
    writing_since: Time,
    writing: Time,
    rings: Vec<Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Pending,
    Taken,
    Done,
}

struct Store<'a> {
    model: &'a Model,
    threads: Vec<Thread>,
    workers: usize,
    rows: Rows,
    log: Log,
    rng: fastrand::Rng,
    commits: u64,
    changes: u64,
    wanted: u64,
    begun: (Time, Time),
    cleaning: Time,
}

/// So many transactions are left out at the beginning, of those that are counted.
const WARM: u64 = 10;

/// Lets so many threads commit so many transactions.
pub(crate) fn run(model: &Model, machine: Machine, threads: usize, commits: u64) -> Outcome {
    let mut world = World::new(machine, threads, 1 + CLEANERS, FIRST_PAGE + model.pages, LINES);
    let mut store = Store {
        model,
        threads: (0..threads + 1 + CLEANERS).map(|_| Thread::default()).collect(),
        workers: threads,
        rows: Rows::new(model.rows, threads),
        log: Log { next: 1, durable: 1, written: 1, rings: vec![Vec::new(); RINGS], ..Log::default() },
        rng: fastrand::Rng::with_seed(7),
        commits: 0,
        changes: 0,
        wanted: commits + commits / WARM,
        begun: (0, 0),
        cleaning: 0,
    };
    simulate(&mut world, &mut store);
    store.outcome(&world, &machine, commits)
}

impl Store<'_> {
    fn outcome(&self, world: &World, machine: &Machine, commits: u64) -> Outcome {
        let all = world.now().max(1) as f64;
        let since = world.now().saturating_sub(self.begun.0).max(1) as f64;
        let page = (0..self.model.pages).map(|page| world.mutex_busy(FIRST_PAGE + page)).max().unwrap_or(0);
        let mut busy = vec![
            ("cores", world.core_time() as f64 / all / machine.cores as f64),
            ("central buffer", world.mutex_busy(CENTRAL) as f64 / all),
            ("writer of the log", self.log.writing as f64 / all),
            ("file of the log", world.mutex_busy(FILE) as f64 / all),
            ("number of objects", world.line_busy(NUMBER_LINE) as f64 / all),
            ("busiest page", page as f64 / all),
            ("row locks", self.rows.waited as f64 / all / self.workers as f64),
        ];
        busy.sort_by(|a, b| b.1.total_cmp(&a.1));
        Outcome {
            per_second: commits as f64 / since * 1e12,
            cpu_ns: (world.core_time() - self.begun.1) as f64 / commits as f64 / 1000.0,
            group: self.changes as f64 / self.log.writes.max(1) as f64,
            lock_waits: self.rows.waits as f64 / self.commits.max(1) as f64,
            busy,
            cleaning: self.cleaning as f64 / all,
        }
    }

    fn is_file(&self) -> bool {
        is_file(self.model.scheme)
    }

    /// Puts an object into the log; what is left of the time that it takes.
    fn append(&self, thread: usize, world: &mut World, time: Time) -> Time {
        let costs = &self.model.costs;
        if self.model.scheme == Scheme::NvDisk {
            world.then(thread, Act::Take(CENTRAL));
            world.then(thread, Act::Work(costs.central.min(time)));
            world.then(thread, Act::Ask(NUMBER));
            world.then(thread, Act::Give(CENTRAL));
            return time.saturating_sub(costs.central);
        }
        world.then(thread, Act::Line(NUMBER_LINE, costs.number));
        world.then(thread, Act::Ask(NUMBER));
        time
    }

    fn transaction(&mut self, thread: usize, world: &mut World) {
        let model = self.model;
        let recorded = model.scripts.len();
        // Few threads run all transactions nevertheless, each its share of them.
        let turn = self.rng.usize(0..(recorded / self.workers).max(1));
        let scripts = &model.scripts[(thread + turn * self.workers) % recorded];
        let drawn = self.rng.usize(0..scripts.len());
        let mut has_changed = false;
        for op in &scripts[drawn].ops {
            if let Some((row, changes)) = op.row {
                world.then(thread, Act::Ask(LOCK + row as u32 * 2 + u32::from(changes)));
            }
            world.then(thread, Act::Work(op.work));
            let Some((page, latched)) = op.change else { continue };
            has_changed = true;
            world.then(thread, Act::Take(FIRST_PAGE + page));
            let left = self.append(thread, world, latched);
            world.then(thread, Act::Work(left));
            if model.scheme == Scheme::FlushOnInsert {
                world.then(thread, Act::Ask(DONE));
            }
            world.then(thread, Act::Give(FIRST_PAGE + page));
        }
        let mut end = scripts[drawn].end;
        if has_changed {
            end = self.append(thread, world, end);
        }
        world.then(thread, Act::Work(end));
        if has_changed && model.scheme == Scheme::FlushOnInsert {
            world.then(thread, Act::Ask(DONE));
        }
        self.threads[thread].has_changed = has_changed;
        for what in [RELEASE, FORCE, COMMITTED] {
            world.then(thread, Act::Ask(what));
        }
    }

    fn number(&mut self, thread: usize) {
        let lsn = self.log.next;
        self.log.next += 1;
        self.log.stands.push_back(Stands::Pending);
        self.threads[thread].last = lsn;
        match self.model.scheme {
            Scheme::FlushOnInsert => self.threads[thread].doing.push(lsn),
            Scheme::Distributed => self.log.rings[thread % RINGS].push(lsn),
            _ => {}
        }
    }

    /// What the thread was doing is durable.
    fn done(&mut self, thread: usize, world: &mut World) {
        for lsn in std::mem::take(&mut self.threads[thread].doing) {
            let at = (lsn - self.log.durable) as usize;
            self.log.stands[at] = Stands::Done;
        }
        self.advance(world);
    }

    fn advance(&mut self, world: &mut World) {
        let before = self.log.durable;
        while self.log.stands.front() == Some(&Stands::Done) {
            self.log.stands.pop_front();
            self.log.durable += 1;
        }
        if self.log.durable > before && !self.is_file() {
            std::mem::take(&mut self.log.waiting).into_iter().for_each(|waiting| world.wake(waiting, None));
        }
    }

    fn lock(&mut self, thread: usize, row: usize, changes: bool, world: &mut World) -> Answer {
        let (asked, next) = self.rows.ask(thread, row, changes, world.now());
        if let Some(next) = next {
            world.wake(next, Some(thread));
        }
        match asked {
            Asked::Granted(early) => {
                let depends_on = &mut self.threads[thread].depends_on;
                *depends_on = early.max(*depends_on);
                Answer::Go
            }
            Asked::Waits => Answer::Sleep,
            Asked::Circle => {
                // Takes back what it did, and begins again after a while.
                self.release(thread, 0, world);
                self.threads[thread].depends_on = 0;
                world.forget(thread);
                world.then(thread, Act::Sleep(ns(GIVE_WAY)));
                Answer::Go
            }
        }
    }

    fn release(&mut self, thread: usize, early: u64, world: &mut World) {
        for woken in self.rows.release(thread, early) {
            world.wake(woken, Some(thread));
        }
    }

    fn force(&mut self, thread: usize, world: &mut World) -> Answer {
        let upto = self.threads[thread].depends_on;
        if let Some(next) = self.log.chain.pop_front() {
            world.wake(next, Some(thread));
        }
        if self.log.durable > upto {
            self.log.waiting.retain(|waiting| *waiting != thread);
            return Answer::Go;
        }
        match self.model.scheme {
            Scheme::NvDisk | Scheme::NvDiskDecentralized => self.write(thread, upto, world),
            Scheme::FlushOnCommit => self.persist(thread, upto, world),
            Scheme::Distributed => self.persist_rings(thread, world),
            _ => self.spin(thread),
        }
    }

    fn spin(&mut self, thread: usize) -> Answer {
        if !self.log.waiting.contains(&thread) {
            self.log.waiting.push(thread);
        }
        Answer::Spin
    }

    /// Leads a group, or waits for the one who does.
    fn write(&mut self, thread: usize, upto: u64, world: &mut World) -> Answer {
        let is_apart = self.model.scheme == Scheme::NvDiskDecentralized;
        if self.log.written > upto || (self.log.is_writing && !is_apart) {
            self.log.waiting.push(thread);
            return Answer::Sleep;
        }
        let to = if is_apart { upto + 1 } else { self.log.next };
        let objects = to - self.log.written;
        let from = std::mem::replace(&mut self.log.written, to);
        self.threads[thread].doing = (from..to).collect();
        if !self.log.is_writing {
            (self.log.is_writing, self.log.writing_since) = (true, world.now());
        }
        self.log.writes += 1;
        let costs = &self.model.costs;
        let bytes = objects as f64 * costs.object_bytes + costs.header_bytes;
        let blocks = (bytes / costs.block_bytes).ceil() * costs.block_bytes;
        let added = ns(blocks * costs.added_byte) + costs.added_call;
        let write = costs.write + ns(blocks * costs.write_byte);
        let ends = [Act::Give(FILE), Act::Ask(WRITTEN), Act::Ask(FORCE)];
        world.first(thread, &ends);
        world.first(thread, &[Act::Rest(added), Act::Take(FILE), Act::Work(write)]);
        Answer::Go
    }

    fn written(&mut self, thread: usize, world: &mut World) {
        self.done(thread, world);
        if self.log.written == self.log.durable || self.model.scheme == Scheme::NvDisk {
            self.log.is_writing = false;
            self.log.writing += world.now() - self.log.writing_since;
        }
        let waiting = std::mem::take(&mut self.log.waiting);
        self.log.chain.extend(waiting);
        if let Some(next) = self.log.chain.pop_front() {
            world.wake(next, Some(thread));
        }
    }

    /// Makes durable what nobody else is at, or waits for those who are.
    fn persist(&mut self, thread: usize, upto: u64, world: &mut World) -> Answer {
        let upto = upto.min(self.log.next - 1);
        let looked = (upto + 1).saturating_sub(self.log.durable) as usize;
        let mut taken = Vec::new();
        for at in 0..looked {
            if taken.len() < CHUNK && self.log.stands[at] == Stands::Pending {
                self.log.stands[at] = Stands::Taken;
                taken.push(self.log.durable + at as u64);
            }
        }
        if taken.is_empty() {
            return self.spin(thread);
        }
        let costs = &self.model.costs;
        let others = costs.look * (looked - taken.len()) as u64;
        self.work_on(thread, taken, others, world)
    }

    fn persist_rings(&mut self, thread: usize, world: &mut World) -> Answer {
        for turn in 0..RINGS {
            let taken = std::mem::take(&mut self.log.rings[(thread + turn) % RINGS]);
            if !taken.is_empty() {
                return self.work_on(thread, taken, 0, world);
            }
        }
        self.spin(thread)
    }

    fn work_on(&mut self, thread: usize, taken: Vec<u64>, more: Time, world: &mut World) -> Answer {
        let costs = &self.model.costs;
        let work = costs.force + costs.force_object * taken.len() as u64 + more;
        self.threads[thread].doing = taken;
        let again = if thread < self.workers { FORCE } else { DAEMON };
        world.first(thread, &[Act::Work(work), Act::Ask(DONE), Act::Ask(again)]);
        Answer::Go
    }

    /// Makes durable what there is.
    fn daemon(&mut self, thread: usize, world: &mut World) -> Answer {
        if self.log.durable == self.log.next {
            return Answer::Go;
        }
        let upto = self.log.next - 1;
        match self.model.scheme {
            Scheme::FlushOnCommit if self.log.stands.contains(&Stands::Pending) => {
                self.persist(thread, upto, world)
            }
            Scheme::Distributed if self.log.rings.iter().any(|ring| !ring.is_empty()) => {
                self.persist_rings(thread, world)
            }
            _ => Answer::Go,
        }
    }

    fn committed(&mut self, thread: usize, world: &mut World) {
        self.threads[thread].depends_on = 0;
        self.commits += 1;
        self.changes += u64::from(self.threads[thread].has_changed);
        if self.commits == self.wanted / (WARM + 1) {
            self.begun = (world.now(), world.core_time());
        }
        if self.commits == self.wanted {
            world.stop();
        }
    }
}

impl Program for Store<'_> {
    fn next(&mut self, thread: usize, world: &mut World) {
        if thread < self.workers {
            self.transaction(thread, world);
        } else if thread == self.workers {
            world.then(thread, Act::Sleep(ns(DAEMON_EVERY)));
            world.then(thread, Act::Ask(DAEMON));
        } else {
            world.then(thread, Act::Sleep(ns(CLEAN_EVERY)));
            world.then(thread, Act::Ask(CLEAN));
        }
    }

    fn ask(&mut self, thread: usize, what: u32, world: &mut World) -> Answer {
        match what {
            NUMBER => self.number(thread),
            DONE => self.done(thread, world),
            RELEASE => {
                let last = if self.threads[thread].has_changed { self.threads[thread].last } else { 0 };
                self.release(thread, last, world);
                let depends_on = &mut self.threads[thread].depends_on;
                *depends_on = last.max(*depends_on);
            }
            FORCE => return self.force(thread, world),
            WRITTEN => self.written(thread, world),
            COMMITTED => self.committed(thread, world),
            DAEMON => return self.daemon(thread, world),
            CLEAN => {
                // Each its part of what has come up since it looked last.
                let since = self.commits - std::mem::replace(&mut self.threads[thread].last, self.commits);
                let work = self.model.costs.background * since / CLEANERS as u64;
                self.cleaning += work;
                world.then(thread, Act::Work(work));
            }
            row => return self.lock(thread, (row - LOCK) as usize / 2, row % 2 == 1, world),
        }
        Answer::Go
    }
}
