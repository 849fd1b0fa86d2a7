//! Models the transactions of a workload, and the logs of the schemes, in terms of stations.
//!
//! Each simulated thread runs recorded transactions one after another. The record says which row each operation used,
//! and how long it took. A thread holds its row locks until its commit has a number. A change latches its page while
//! the thread puts the object of the change into the log. At the end, the thread waits until its commit is durable, as
//! its scheme demands.

use std::collections::VecDeque;

use duralite_store::Scheme;

use super::rows::{Asked, Rows};
use super::stations::{Act, Answer, Machine, Program, Time, World, ns, simulate};

/// An operation, which may lock a row, takes time, and may change a page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Op {
    /// The row, and whether the operation changes it. `None` if no more than one thread uses the row.
    pub(crate) row: Option<(usize, bool)>,
    pub(crate) work: Time,
    /// The page that the operation changes, and the time for which the page is latched.
    pub(crate) change: Option<(usize, Time)>,
}

/// A recorded transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) ops: Vec<Op>,
    /// The time to build the commit's object and to release the locks.
    pub(crate) end: Time,
}

/// The costs of a scheme's log. All of them are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogCosts {
    /// The time for which a thread holds the mutex of the central buffer to add an object.
    pub(crate) central: Time,
    /// The time to fetch the cache line of the next object number from another core.
    pub(crate) number: Time,
    /// The cost of making objects durable: a fixed cost per call (`force`), and a cost per object (`force_object`).
    pub(crate) force: Time,
    pub(crate) force_object: Time,
    /// The cost of checking an object that another thread has made durable or is making durable.
    pub(crate) look: Time,
    /// The cost of writing a file, per call (`write`) and per byte (`write_byte`), and the delays that the benchmark
    /// adds per byte (`added_byte`) and per call (`added_call`). Writes consist of whole blocks, and all bytes of these
    /// blocks count.
    pub(crate) write: Time,
    pub(crate) write_byte: f64,
    pub(crate) added_byte: f64,
    pub(crate) added_call: Time,
    pub(crate) block_bytes: f64,
    pub(crate) header_bytes: f64,
    /// The size of an object in bytes.
    pub(crate) object_bytes: f64,
    /// The processor time of background threads per transaction.
    pub(crate) background: Time,
}

/// A workload under a scheme.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) scheme: Scheme,
    /// The recorded transactions of each thread. If there are more simulated threads than lists, the further threads
    /// use the lists again, beginning with the first.
    pub(crate) scripts: Vec<Vec<Script>>,
    pub(crate) rows: usize,
    pub(crate) pages: usize,
    pub(crate) costs: LogCosts,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) per_second: f64,
    /// The processor time of a transaction, including background work, in nanoseconds.
    pub(crate) cpu_ns: f64,
    /// The number of transactions that one write of the log makes durable.
    pub(crate) group: f64,
    /// The number of times that a transaction waits for a row lock.
    pub(crate) lock_waits: f64,
    /// The share of the time for which each station was busy, from 0 to 1, beginning with the busiest station.
    pub(crate) busy: Vec<(&'static str, f64)>,
    /// The number of cores that were busy cleaning pages.
    pub(crate) cleaning: f64,
}

/// Returns whether the scheme keeps its log in a file.
pub(crate) fn is_file(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::NvDisk | Scheme::NvDiskDecentralized)
}

/// The indexes of the mutexes. The mutexes of the pages follow.
const CENTRAL: usize = 0;
const FILE: usize = 1;
const FIRST_PAGE: usize = 2;
/// The indexes of the cache lines.
const NUMBER_LINE: usize = 0;
const LINES: usize = 1;
/// The number of logs of `distributed`.
const RINGS: usize = 16;
/// The largest number of objects that a thread makes durable at a time. Meanwhile other threads can do the same for the
/// following objects.
const CHUNK: usize = 8;
/// The intervals at which the log's daemon and the page cleaners run, in nanoseconds, and the number of cleaners.
const DAEMON_EVERY: f64 = 500e3;
const CLEAN_EVERY: f64 = 5e6;
const CLEANERS: usize = 4;
/// The time for which a thread waits after giving way in a deadlock, in nanoseconds.
const GIVE_WAY: f64 = 20e3;

/// The requests that a thread can make to the program with [`Act::Ask`].
const NUMBER: u32 = 0;
const DONE: u32 = 1;
const RELEASE: u32 = 2;
const FORCE: u32 = 3;
const WRITTEN: u32 = 4;
const COMMITTED: u32 = 5;
const DAEMON: u32 = 6;
const CLEAN: u32 = 7;
/// The request for a row lock: `LOCK`, plus twice the number of the row, plus one if the thread changes the row.
const LOCK: u32 = 16;

/// A simulated thread.
#[derive(Debug, Default)]
struct Thread {
    /// The objects that this thread is making durable. With flush-on-insert: the objects that have a number, but are
    /// not durable yet.
    doing: Vec<u64>,
    last: u64,
    depends_on: u64,
    has_changed: bool,
}

/// The log, with the state of each object from `durable` on.
#[derive(Debug, Default)]
struct Log {
    next: u64,
    durable: u64,
    stands: VecDeque<Stands>,
    /// All objects below this number are written, or are being written.
    written: u64,
    is_writing: bool,
    waiting: Vec<usize>,
    /// The threads that still have to be woken. Each woken thread wakes the next one.
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

/// The ratio of counted transactions to uncounted ones. The uncounted transactions run first, to warm the model up.
const WARM: u64 = 10;

/// Simulates `threads` threads until they have committed `commits` transactions.
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

    /// Makes a thread put an object into the log, as part of work that takes `time` in total. Returns how long the rest
    /// of that work takes.
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
        // If there are fewer threads than lists, a thread takes one of several lists at random. So the simulation uses
        // all recorded transactions.
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

    /// Marks the objects that the thread was making durable as durable.
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
                // Rolls the transaction back. The thread begins another one after a while.
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

    /// Writes all unwritten objects, as the leader of a group commit. If another thread is the leader, waits for it.
    /// With `nv-disk-decentralized` there is no leader: each thread writes its own objects, and waits only if another
    /// thread already writes them.
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

    /// Takes some objects that no other thread has taken, and makes them durable. If there are none, waits for the
    /// threads that have taken them.
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

    /// Makes durable all objects that no thread is making durable.
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
                // Each cleaner does its share of the work that has accumulated since it last ran.
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
