//! Cores, mutexes and lines of memory that threads queue for, in simulated time.
//!
//! - Cores are one station with as many servers. Whoever is ready waits in one line, and runs until it blocks or its slice
//!   is over and another is ready. A slice ends wherever it ends: a thread that holds a mutex then keeps it, and whoever
//!   wants it waits for that thread to get a core again.
//! - A mutex is taken by whoever comes when it is free, as those of `parking_lot` are. Who finds it taken spins, if no
//!   other thread is ready, and otherwise gives its core away; if that has not helped it sleeps until it is woken.
//! - A line of memory that others have changed has to be fetched, one core after the other, while the core waits.
//! - A sleep uses no core.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Simulated time, in picoseconds.
pub(crate) type Time = u64;

/// Nanoseconds as a time.
pub(crate) fn ns(ns: f64) -> Time {
    (ns.max(0.0) * 1000.0) as Time
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    /// So long on a core.
    Work(Time),
    /// So long without one.
    Sleep(Time),
    /// Takes a mutex.
    Take(usize),
    /// Gives one back.
    Give(usize),
    /// Uses a line that all cores change, which takes so long to fetch from another core.
    Line(usize, Time),
    /// Asks the [`Program`].
    Ask(u32),
    /// What is left of work whose slice was over.
    Rest(Time),
}

/// What a program says to [`Act::Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Go,
    /// Not yet: asked again when somebody has woken it.
    Sleep,
    /// Not yet: asked again when somebody has woken it, and it keeps its core meanwhile if nobody else is ready.
    Spin,
}

/// What threads do.
pub(crate) trait Program {
    /// A thread has nothing more to do; says what comes next, or nothing if it is over.
    fn next(&mut self, thread: usize, world: &mut World);
    /// May it go on? It may also be told what to do before.
    fn ask(&mut self, thread: usize, what: u32, world: &mut World) -> Answer;
}

/// A machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// How long a thread runs while others are ready.
    pub(crate) slice: Time,
    /// What waking a thread costs: half of it whoever wakes, half whoever is woken.
    pub(crate) switch: Time,
    /// How long a core that is idle takes until it runs a thread that was woken.
    pub(crate) idle_wake: Time,
    /// How long a mutex is spun for.
    pub(crate) spin: Time,
    /// How many times as long work takes while other cores work too, and how many times as long for lines that they
    /// share; both at two cores, of which one may have the line already.
    pub(crate) beside: f64,
    pub(crate) sharing: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Running,
    /// On a core, waiting for this mutex, or for the program.
    Spinning(Option<usize>),
    Parked,
}

#[derive(Debug)]
struct Thread {
    acts: VecDeque<Act>,
    state: State,
    /// Events of an earlier one are void.
    stamp: u64,
    slice_left: Time,
    /// How often it has given its core away for the mutex that it wants.
    yields: u32,
    /// Since when it spins.
    since: Time,
    is_background: bool,
}

#[derive(Debug, Default)]
struct Mutex {
    is_taken: bool,
    since: Time,
    busy: Time,
    parked: VecDeque<usize>,
}

#[derive(Debug, Default)]
struct Line {
    free_at: Time,
    busy: Time,
}

/// So often a thread gives its core away before it sleeps, as the mutex does.
const YIELDS: u32 = 7;

/// Everything that is simulated, but what the program knows.
#[derive(Debug)]
pub(crate) struct World {
    machine: Machine,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, usize, u64)>>,
    order: u64,
    threads: Vec<Thread>,
    ready: VecDeque<usize>,
    /// Have got a core, or may go on with it.
    running: VecDeque<usize>,
    spinning: VecDeque<usize>,
    idle: usize,
    core_time: Time,
    mutexes: Vec<Mutex>,
    lines: Vec<Line>,
    is_over: bool,
}

impl World {
    /// All threads are ready; those from `background` on go before others.
    pub(crate) fn new(
        machine: Machine,
        threads: usize,
        background: usize,
        mutexes: usize,
        lines: usize,
    ) -> Self {
        let thread = |number| Thread {
            acts: VecDeque::new(),
            state: State::Ready,
            stamp: 0,
            slice_left: machine.slice,
            yields: 0,
            since: 0,
            is_background: number >= threads,
        };
        Self {
            machine,
            now: 0,
            events: BinaryHeap::new(),
            order: 0,
            threads: (0..threads + background).map(thread).collect(),
            ready: (0..threads + background).collect(),
            running: VecDeque::new(),
            spinning: VecDeque::new(),
            idle: machine.cores,
            core_time: 0,
            mutexes: (0..mutexes).map(|_| Mutex::default()).collect(),
            lines: (0..lines).map(|_| Line::default()).collect(),
            is_over: false,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Ends the simulation after this.
    pub(crate) fn stop(&mut self) {
        self.is_over = true;
    }

    /// Processor time used so far, that of spinning too.
    pub(crate) fn core_time(&self) -> Time {
        self.core_time
    }

    /// How long a mutex has been held.
    pub(crate) fn mutex_busy(&self, mutex: usize) -> Time {
        self.mutexes[mutex].busy
    }

    /// How long a line has been on its way.
    pub(crate) fn line_busy(&self, line: usize) -> Time {
        self.lines[line].busy
    }

    /// Lets a thread do this after what it was told before.
    pub(crate) fn then(&mut self, thread: usize, act: Act) {
        self.threads[thread].acts.push_back(act);
    }

    /// Lets a thread do this next.
    pub(crate) fn first(&mut self, thread: usize, acts: &[Act]) {
        acts.iter().rev().for_each(|act| self.threads[thread].acts.push_front(*act));
    }

    /// Lets a thread do nothing of what it was told before.
    pub(crate) fn forget(&mut self, thread: usize) {
        self.threads[thread].acts.clear();
    }

    /// Wakes one that sleeps or spins for the program; `by` is who pays for it, if it sleeps.
    pub(crate) fn wake(&mut self, thread: usize, by: Option<usize>) {
        match self.threads[thread].state {
            State::Spinning(None) => self.go_on(thread),
            State::Parked => {
                let half = self.machine.switch / 2;
                if let Some(by) = by {
                    self.threads[by].acts.push_front(Act::Work(half));
                }
                self.threads[thread].acts.push_front(Act::Work(half));
                self.wake_up(thread);
            }
            _ => {}
        }
    }

    fn wake_up(&mut self, thread: usize) {
        if self.idle > self.ready.len() && self.machine.idle_wake > 0 {
            self.at(self.now + self.machine.idle_wake, thread);
        } else {
            self.make_ready(thread);
        }
    }

    /// It does not spin any more.
    fn end_spin(&mut self, thread: usize) {
        self.spinning.retain(|spinning| *spinning != thread);
        self.core_time += self.now - self.threads[thread].since;
        self.threads[thread].stamp += 1;
    }

    fn go_on(&mut self, thread: usize) {
        self.end_spin(thread);
        self.threads[thread].state = State::Running;
        self.running.push_back(thread);
    }

    fn at(&mut self, time: Time, thread: usize) {
        self.order += 1;
        let stamp = self.threads[thread].stamp;
        self.events.push(Reverse((time, self.order, thread, stamp)));
    }

    fn make_ready(&mut self, thread: usize) {
        self.threads[thread].state = State::Ready;
        self.threads[thread].stamp += 1;
        if self.threads[thread].is_background {
            self.ready.push_front(thread);
        } else {
            self.ready.push_back(thread);
        }
        // Who spins looks all the time whether somebody else wants the core.
        if self.idle == 0
            && let Some(spinner) = self.spinning.front().copied()
        {
            self.end_spin(spinner);
            self.leave_core(spinner, State::Ready);
        }
    }

    fn dispatch(&mut self) {
        while self.idle > 0
            && let Some(thread) = self.ready.pop_front()
        {
            self.idle -= 1;
            self.threads[thread].state = State::Running;
            self.threads[thread].slice_left = self.machine.slice;
            self.running.push_back(thread);
        }
    }

    /// Cores that do something useful.
    fn busy(&self) -> usize {
        self.machine.cores - self.idle - self.spinning.len()
    }

    fn leave_core(&mut self, thread: usize, state: State) {
        self.threads[thread].state = state;
        self.threads[thread].stamp += 1;
        self.idle += 1;
        if state == State::Ready {
            self.ready.push_back(thread);
        }
    }

    /// Lets those that are ready go first.
    fn yield_core(&mut self, thread: usize) {
        self.threads[thread].acts.push_front(Act::Work(self.machine.switch / 2));
        self.leave_core(thread, State::Ready);
    }

    /// Of so many cores, the share of accesses to a shared line whose line another one has.
    fn elsewhere(&self) -> f64 {
        let busy = self.busy().max(1) as f64;
        (busy - 1.0) / busy
    }

    fn work(&mut self, thread: usize, time: Time) {
        let shared = self.elsewhere();
        let beside = if shared > 0.0 { self.machine.beside } else { 1.0 };
        let stretch = beside + 2.0 * shared * self.machine.sharing;
        self.run_for(thread, (time as f64 * stretch) as Time);
    }

    /// On its core for so long, or until its slice is over.
    fn run_for(&mut self, thread: usize, time: Time) {
        let slice = self.threads[thread].slice_left;
        let step = time.min(slice);
        self.core_time += step;
        self.threads[thread].slice_left -= step;
        if step < time {
            self.threads[thread].acts.push_front(Act::Rest(time - step));
        }
        self.at(self.now + step, thread);
    }

    fn line(&mut self, thread: usize, line: usize, time: Time) {
        let service = (time as f64 * self.elsewhere()) as Time;
        let it = &mut self.lines[line];
        let begun = it.free_at.max(self.now);
        it.free_at = begun + service;
        it.busy += service;
        let end = it.free_at;
        self.run_for(thread, end - self.now);
    }

    /// Whether it was free.
    fn take(&mut self, thread: usize, mutex: usize) -> bool {
        let it = &mut self.mutexes[mutex];
        if !it.is_taken {
            (it.is_taken, it.since) = (true, self.now);
            self.threads[thread].yields = 0;
            return true;
        }
        self.threads[thread].acts.push_front(Act::Take(mutex));
        if self.ready.is_empty() && self.threads[thread].yields == 0 {
            self.threads[thread].yields = YIELDS;
            self.spin(thread, Some(mutex));
        } else if self.threads[thread].yields < YIELDS && !self.ready.is_empty() {
            self.threads[thread].yields += 1;
            self.yield_core(thread);
        } else {
            self.park_for(thread, mutex);
        }
        false
    }

    fn park_for(&mut self, thread: usize, mutex: usize) {
        self.threads[thread].yields = 0;
        self.mutexes[mutex].parked.push_back(thread);
        self.leave_core(thread, State::Parked);
    }

    fn spin(&mut self, thread: usize, mutex: Option<usize>) {
        self.threads[thread].state = State::Spinning(mutex);
        self.threads[thread].since = self.now;
        self.threads[thread].stamp += 1;
        self.spinning.push_back(thread);
        if mutex.is_some() {
            self.at(self.now + self.machine.spin, thread);
        }
    }

    fn give(&mut self, thread: usize, mutex: usize) {
        let it = &mut self.mutexes[mutex];
        it.is_taken = false;
        it.busy += self.now - it.since;
        let parked = it.parked.pop_front();
        let wants = State::Spinning(Some(mutex));
        if let Some(spinner) = self.spinning.iter().copied().find(|one| self.threads[*one].state == wants) {
            self.go_on(spinner);
        }
        if let Some(parked) = parked {
            self.wake(parked, Some(thread));
        }
    }

    /// Something that was waited for has come about.
    fn happen(&mut self, thread: usize) {
        match self.threads[thread].state {
            State::Parked => self.make_ready(thread),
            State::Spinning(Some(mutex)) => {
                self.end_spin(thread);
                self.park_for(thread, mutex);
            }
            State::Running if self.threads[thread].slice_left == 0 && !self.ready.is_empty() => {
                self.leave_core(thread, State::Ready);
            }
            State::Running => {
                if self.threads[thread].slice_left == 0 {
                    self.threads[thread].slice_left = self.machine.slice;
                }
                self.running.push_back(thread);
            }
            _ => {}
        }
    }
}

/// Runs until the program stops it, or nothing more can happen.
pub(crate) fn simulate(world: &mut World, program: &mut dyn Program) {
    loop {
        world.dispatch();
        while let Some(thread) = world.running.pop_front() {
            proceed(world, program, thread);
            world.dispatch();
        }
        if world.is_over {
            return;
        }
        let Some(Reverse((time, _, thread, stamp))) = world.events.pop() else { return };
        if world.threads[thread].stamp == stamp {
            world.now = time;
            world.happen(thread);
        }
    }
}

/// Lets a thread that has a core go on until that takes time, or it has to wait.
fn proceed(world: &mut World, program: &mut dyn Program, thread: usize) {
    loop {
        if world.threads[thread].acts.is_empty() {
            program.next(thread, world);
        }
        let Some(act) = world.threads[thread].acts.pop_front() else {
            return world.leave_core(thread, State::Parked);
        };
        match act {
            Act::Work(0) => {}
            Act::Work(time) => return world.work(thread, time),
            Act::Rest(time) => return world.run_for(thread, time),
            Act::Line(line, time) => return world.line(thread, line, time),
            Act::Sleep(time) => {
                world.leave_core(thread, State::Parked);
                return world.at(world.now + time, thread);
            }
            Act::Take(mutex) if world.take(thread, mutex) => {}
            Act::Take(_) => return,
            Act::Give(mutex) => world.give(thread, mutex),
            Act::Ask(what) => match program.ask(thread, what, world) {
                Answer::Go => {}
                answer => return wait(world, thread, what, answer),
            },
        }
    }
}

fn wait(world: &mut World, thread: usize, what: u32, answer: Answer) {
    world.threads[thread].acts.push_front(Act::Ask(what));
    match answer {
        Answer::Spin if world.ready.is_empty() => world.spin(thread, None),
        Answer::Spin => world.yield_core(thread),
        _ => world.leave_core(thread, State::Parked),
    }
}
