//! Compares the stations with formulas of queueing theory, and the schemes with bounds that they must not exceed.

use duralite_store::Scheme;

use super::schemes::{LogCosts, Model, Op, Outcome, Script, run};
use super::stations::{Act, Answer, Machine, Program, Time, World, ns, simulate};

/// Returns a machine with cores on which neither switching nor sharing costs anything.
fn plain(cores: usize) -> Machine {
    Machine { cores, slice: ns(1e6), switch: 0, idle_wake: 0, spin: 0, beside: 1.0, sharing: 0.0 }
}

/// A program in which each thread repeats two steps: it sleeps, and then it holds a mutex or works on a core. Both
/// times are exponentially distributed.
struct Cycle {
    away: f64,
    there: f64,
    mutex: bool,
    rng: fastrand::Rng,
    rounds: u64,
    most: u64,
}

impl Cycle {
    fn new(away: f64, there: f64, mutex: bool) -> Self {
        Self { away, there, mutex, rng: fastrand::Rng::with_seed(3), rounds: 0, most: 200_000 }
    }

    fn chance(&mut self, mean: f64) -> Time {
        ns(-mean * (1.0 - self.rng.f64()).ln())
    }

    /// Simulates the cycle. Returns how many rounds all threads make per millisecond.
    fn rate(mut self, cores: usize, threads: usize) -> f64 {
        let mut world = World::new(plain(cores), threads, 0, 1, 1);
        simulate(&mut world, &mut self);
        self.rounds as f64 / world.now() as f64 * 1e9
    }
}

impl Program for Cycle {
    fn next(&mut self, thread: usize, world: &mut World) {
        if self.rounds >= self.most {
            return world.stop();
        }
        if self.away > 0.0 {
            let time = self.chance(self.away);
            world.then(thread, Act::Sleep(time));
        }
        let time = self.chance(self.there);
        if self.mutex {
            [Act::Take(0), Act::Sleep(time), Act::Give(0)]
                .into_iter()
                .for_each(|act| world.then(thread, act));
        } else {
            world.then(thread, Act::Work(time));
        }
        world.then(thread, Act::Ask(0));
    }

    fn ask(&mut self, _thread: usize, _what: u32, _world: &mut World) -> Answer {
        self.rounds += 1;
        Answer::Go
    }
}

/// Returns how many rounds the threads make per millisecond. In a round, a thread is away for some time, and then needs
/// one of the servers for some time. Both times are exponentially distributed. This is the machine repairman model
/// (M/M/c//N).
fn repairman(away: f64, there: f64, servers: usize, threads: usize) -> f64 {
    let mut shares = vec![1.0];
    for n in 1..=threads {
        let arrives = (threads - n + 1) as f64 / away;
        let leaves = n.min(servers) as f64 / there;
        shares.push(shares[n - 1] * arrives / leaves);
    }
    let all: f64 = shares.iter().sum();
    let busy: f64 = shares.iter().enumerate().map(|(n, share)| n.min(servers) as f64 * share / all).sum();
    busy / there * 1e6
}

#[track_caller]
fn close(is: f64, should: f64, within: f64) {
    assert!((is / should - 1.0).abs() < within, "{is} is not about {should}");
}

#[test]
fn one_station_serves_as_fast_as_it_can() {
    for (cores, threads, cores_used) in [(1, 1, 1.0), (1, 5, 1.0), (4, 3, 3.0), (4, 16, 4.0)] {
        close(Cycle::new(0.0, 1000.0, false).rate(cores, threads), cores_used * 1000.0, 0.01);
    }
}

#[test]
fn cores_are_the_machine_repairmans() {
    for (cores, threads) in [(1, 1), (1, 4), (2, 4), (3, 10), (8, 8)] {
        let should = repairman(5000.0, 1000.0, cores, threads);
        close(Cycle::new(5000.0, 1000.0, false).rate(cores, threads), should, 0.01);
    }
}

#[test]
fn a_mutex_is_the_machine_repairmans_with_one_server() {
    for threads in [1, 2, 6, 20] {
        let should = repairman(5000.0, 1000.0, 1, threads);
        close(Cycle::new(5000.0, 1000.0, true).rate(64, threads), should, 0.01);
    }
}

/// A program in which each thread works without a mutex, and then works while it holds the mutex. Both times are
/// constant.
struct Bounded {
    work: Time,
    held: Time,
    line: Time,
    rounds: u64,
}

impl Program for Bounded {
    fn next(&mut self, thread: usize, world: &mut World) {
        if self.rounds >= 20_000 {
            return world.stop();
        }
        let acts = [Act::Work(self.work), Act::Line(0, self.line), Act::Take(0), Act::Work(self.held)];
        acts.into_iter().chain([Act::Give(0), Act::Ask(0)]).for_each(|act| world.then(thread, act));
    }

    fn ask(&mut self, _thread: usize, _what: u32, _world: &mut World) -> Answer {
        self.rounds += 1;
        Answer::Go
    }
}

fn bounded(machine: Machine, threads: usize, work: f64, held: f64, line: f64) -> f64 {
    let mut program = Bounded { work: ns(work), held: ns(held), line: ns(line), rounds: 0 };
    let mut world = World::new(machine, threads, 0, 1, 1);
    simulate(&mut world, &mut program);
    program.rounds as f64 / world.now() as f64 * 1e9
}

#[test]
fn asymptotic_bounds_are_kept_and_reached() {
    let (work, held) = (9000.0, 1000.0);
    for cores in [1, 2, 4, 8, 16, 32] {
        for threads in [1, 3, 16, 64] {
            let rate = bounded(plain(cores), threads, work, held, 0.0);
            let by_cores = cores.min(threads) as f64 / (work + held) * 1e6;
            let bound = by_cores.min(1e6 / held);
            assert!(rate <= bound * 1.001, "{rate} is more than {bound}");
            // With one thread or one core, the rate must come close to the bound.
            if threads == 1 || cores == 1 {
                close(rate, bound, 0.02);
            }
        }
    }
    close(bounded(plain(64), 64, work, held, 0.0), 1e6 / held, 0.02);
}

#[test]
fn whoever_loses_its_core_keeps_the_mutex() {
    // There is one core, and each time slice ends while the mutex is held. The other threads wait until the holder gets
    // the core again, but the core is never idle.
    let machine = Machine { slice: ns(700.0), ..plain(1) };
    close(bounded(machine, 4, 100.0, 1000.0, 0.0), 1e6 / 1100.0, 0.01);
    // If switching between threads costs something, the rate must be lower.
    let machine = Machine { switch: ns(500.0), ..machine };
    assert!(bounded(machine, 4, 100.0, 1000.0, 0.0) < 1e6 / 1100.0);
}

#[test]
fn a_line_is_fetched_by_one_core_after_the_other() {
    let alone = bounded(plain(1), 4, 1000.0, 0.0, 100.0);
    close(alone, 1000.0, 0.01);
    // With two cores, half of the accesses find the cache line at the other core, on average.
    close(bounded(plain(2), 2, 1000.0, 0.0, 100.0), 2.0e6 / 1050.0, 0.02);
    let many = bounded(plain(64), 64, 1000.0, 0.0, 100.0);
    close(many, 1e6 / (100.0 * 63.0 / 64.0), 0.02);
}

#[test]
fn work_is_stretched_by_what_others_do() {
    let machine = Machine { beside: 1.25, sharing: 0.5, ..plain(2) };
    close(bounded(machine, 1, 1000.0, 0.0, 0.0), 1000.0, 0.01);
    close(bounded(machine, 2, 1000.0, 0.0, 0.0), 2.0e6 / 1750.0, 0.02);
}

/// Returns a model whose transactions have ten operations of a microsecond each. The last operation changes a page.
/// There are as many pages and rows as threads.
fn model(scheme: Scheme) -> Model {
    let script = |thread: usize| {
        let mut ops = vec![Op { work: ns(1000.0), ..Op::default() }; 9];
        let (row, change) = (Some((thread, true)), Some((thread, ns(500.0))));
        ops.push(Op { row, work: ns(500.0), change });
        vec![Script { ops, end: ns(500.0) }]
    };
    let costs = LogCosts {
        central: ns(100.0),
        force: ns(100.0),
        force_object: ns(200.0),
        write: ns(1000.0),
        block_bytes: 512.0,
        object_bytes: 200.0,
        ..LogCosts::default()
    };
    Model { scheme, scripts: (0..16).map(script).collect(), rows: 16, pages: 16, costs }
}

fn of(model: &Model, cores: usize, threads: usize) -> Outcome {
    run(model, plain(cores), threads, 3000)
}

const SCHEMES: [Scheme; 5] = [
    Scheme::NvDisk,
    Scheme::NvDiskDecentralized,
    Scheme::FlushOnInsert,
    Scheme::FlushOnCommit,
    Scheme::Distributed,
];

#[test]
fn a_thread_alone_takes_what_its_parts_take() {
    // With a single thread, a transaction takes the sum of three times: its work, its end, and making it durable.
    for (scheme, force) in SCHEMES.into_iter().zip([1000.0, 1000.0, 0.0, 500.0, 500.0]) {
        let rate = of(&model(scheme), 2, 1).per_second;
        // The daemon may already have made some objects durable, so the rate is not exact.
        close(rate, 1e9 / (10_500.0 + force), 0.03);
    }
}

#[test]
fn the_same_seed_gives_the_same() {
    for scheme in SCHEMES {
        assert_eq!(of(&model(scheme), 4, 16), of(&model(scheme), 4, 16));
    }
}

#[test]
fn more_cores_are_never_worth_more_than_they_are() {
    for scheme in SCHEMES {
        let model = model(scheme);
        let one = of(&model, 1, 16).per_second;
        let mut before = one;
        for cores in [2, 4, 8, 16] {
            let rate = of(&model, cores, 16).per_second;
            assert!(rate <= one * cores as f64 * 1.05, "{scheme:?}: {cores} cores do {rate}, one {one}");
            assert!(rate >= before * 0.95, "{scheme:?}: {cores} cores do {rate}, fewer {before}");
            before = rate;
        }
    }
}

#[test]
fn one_writer_is_the_bound_of_a_group_commit() {
    let mut model = model(Scheme::NvDisk);
    model.costs.write = ns(50_000.0);
    // A thread that begins to wait while a group is being written belongs to the next group. With sixteen threads,
    // about half of them are in each group.
    let outcome = of(&model, 16, 16);
    assert!(outcome.group > 5.0 && outcome.group <= 16.0, "groups of {}", outcome.group);
    close(outcome.per_second, outcome.group * 1e9 / 50_000.0, 0.1);
    assert_eq!(outcome.busy[0].0, "writer of the log");
}

#[test]
fn the_central_buffer_is_a_bound() {
    let mut model = model(Scheme::NvDisk);
    model.costs.central = ns(3000.0);
    for script in model.scripts.iter_mut().flatten() {
        script.end = ns(3000.0);
        script.ops[9].change.iter_mut().for_each(|change| change.1 = ns(3000.0));
    }
    // Each transaction puts two objects into the log.
    let outcome = of(&model, 16, 16);
    close(outcome.per_second, 1e9 / 6000.0, 0.02);
    assert_eq!(outcome.busy[0].0, "central buffer");
}

#[test]
fn one_row_that_all_want_is_a_bound() {
    for scheme in SCHEMES {
        let mut model = model(scheme);
        for script in model.scripts.iter_mut().flatten() {
            script.ops[9].row = Some((0, true));
        }
        // A transaction has the row locked during its last operation and its end.
        let outcome = of(&model, 16, 16);
        assert!(outcome.per_second <= 1e9 / 1500.0 * 1.01, "{scheme:?}: {}", outcome.per_second);
        assert!(outcome.lock_waits > 0.5, "{scheme:?}: {}", outcome.lock_waits);
    }
}

#[test]
fn circles_of_locks_are_broken() {
    let mut model = model(Scheme::FlushOnCommit);
    for (thread, script) in model.scripts.iter_mut().flatten().enumerate() {
        script.ops[0].row = Some((thread % 2, true));
        script.ops[9].row = Some((1 - thread % 2, true));
    }
    assert!(of(&model, 4, 16).per_second > 0.0);
}
