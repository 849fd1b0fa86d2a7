//! Cores, mutexes and cache lines, for which threads queue in simulated time.
//!
//! - All cores together are one station, with one server for each core. Ready threads wait in one queue. A thread runs
//!   until it blocks, or until its time slice has ended and another thread is ready. The slice may end at any point. If
//!   the thread holds a mutex at that point, it keeps the mutex, and threads that want the mutex wait until the holder
//!   gets a core again.
//! - A free mutex goes to the next thread that tries to take it, as with `parking_lot`. A thread that finds the mutex
//!   taken spins if no other thread is ready, and otherwise yields its core. If yielding does not help, the thread
//!   sleeps until it is woken.
//! - A cache line that another core has changed must be fetched. The line goes to one core after another, and each core
//!   waits for it.
//! - A sleeping thread uses no core.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Simulated time, in picoseconds.
pub(crate) type Time = u64;

/// Converts nanoseconds to simulated time.
pub(crate) fn ns(ns: f64) -> Time {
    (ns.max(0.0) * 1000.0) as Time
}

/// An act: what a thread does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    /// Works on a core for this time.
    Work(Time),
    /// Sleeps for this time, without a core.
    Sleep(Time),
    /// Takes a mutex.
    Take(usize),
    /// Releases a mutex.
    Give(usize),
    /// Uses a cache line that all cores change. Fetching the line from another core takes this time.
    Line(usize, Time),
    /// Asks the [`Program`] whether the thread may continue.
    Ask(u32),
    /// The remaining part of work that the end of a time slice has interrupted.
    Rest(Time),
}

/// The program's answer to [`Act::Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Go,
    /// The thread has to wait. It sleeps until another thread wakes it, and then asks again.
    Sleep,
    /// The thread has to wait. It spins until another thread wakes it, and then asks again. It keeps its core unless
    /// another thread is ready.
    Spin,
}

/// The program, which says what the threads do.
pub(crate) trait Program {
    /// Adds the acts that the thread does next. Adds none if the thread has ended. The simulation calls this when a
    /// thread has nothing left to do.
    fn next(&mut self, thread: usize, world: &mut World);
    /// Answers whether the thread may continue. May also add acts for it to do first.
    fn ask(&mut self, thread: usize, what: u32, world: &mut World) -> Answer;
}

/// The machine that is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// The time for which a thread may run while other threads are ready.
    pub(crate) slice: Time,
    /// The cost of waking a thread. The waking thread pays one half, and the woken thread the other.
    pub(crate) switch: Time,
    /// The time until an idle core runs a woken thread.
    pub(crate) idle_wake: Time,
    /// The time for which a thread spins for a mutex before it sleeps.
    pub(crate) spin: Time,
    /// `beside` is the factor by which work takes longer while other cores work too. `sharing` is the time that shared
    /// cache lines add, as a fraction of the work's time. Both are measured on two cores, where half of the accesses
    /// find the line at their own core.
    pub(crate) beside: f64,
    pub(crate) sharing: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Running,
    /// The thread spins on a core: for this mutex, or for the program if this is `None`.
    Spinning(Option<usize>),
    Parked,
}

#[derive(Debug)]
struct Thread {
    acts: VecDeque<Act>,
    state: State,
    /// A number that changes with the thread's state. An event with an older number no longer counts.
    stamp: u64,
    slice_left: Time,
    /// The number of times that the thread has yielded its core while it wanted the same mutex.
    yields: u32,
    /// The time at which the thread began to spin.
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

/// The number of times that a thread yields its core for a mutex before it sleeps, as with `parking_lot`.
const YIELDS: u32 = 7;

/// The state of the simulation. The program keeps its own state.
#[derive(Debug)]
pub(crate) struct World {
    machine: Machine,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, usize, u64)>>,
    order: u64,
    threads: Vec<Thread>,
    ready: VecDeque<usize>,
    /// Threads that have just got a core, or may continue on the core that they have.
    running: VecDeque<usize>,
    spinning: VecDeque<usize>,
    idle: usize,
    core_time: Time,
    mutexes: Vec<Mutex>,
    lines: Vec<Line>,
    is_over: bool,
}

impl World {
    /// Begins a simulation in which all threads are ready. The last `background` threads have priority over the others.
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

    /// Ends the simulation after the current act.
    pub(crate) fn stop(&mut self) {
        self.is_over = true;
    }

    /// Returns the processor time that all threads have used so far, including spinning.
    pub(crate) fn core_time(&self) -> Time {
        self.core_time
    }

    /// Returns how long the mutex has been held so far.
    pub(crate) fn mutex_busy(&self, mutex: usize) -> Time {
        self.mutexes[mutex].busy
    }

    /// Returns how long the line has been in transfer so far.
    pub(crate) fn line_busy(&self, line: usize) -> Time {
        self.lines[line].busy
    }

    /// Adds an act after those that the thread still has to do.
    pub(crate) fn then(&mut self, thread: usize, act: Act) {
        self.threads[thread].acts.push_back(act);
    }

    /// Adds acts before those that the thread still has to do.
    pub(crate) fn first(&mut self, thread: usize, acts: &[Act]) {
        acts.iter().rev().for_each(|act| self.threads[thread].acts.push_front(*act));
    }

    /// Removes all acts that the thread still has to do.
    pub(crate) fn forget(&mut self, thread: usize) {
        self.threads[thread].acts.clear();
    }

    /// Wakes a thread that sleeps, or that spins for the program. If the thread sleeps, `by` is the thread that pays
    /// for waking it.
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

    /// Ends the thread's spinning.
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
        // A thread that is spinning notices at once that another thread needs a core, and yields its own core.
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

    /// Returns how many cores are neither idle nor spinning.
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

    /// Lets a thread yield its core, so that ready threads run first.
    fn yield_core(&mut self, thread: usize) {
        self.threads[thread].acts.push_front(Act::Work(self.machine.switch / 2));
        self.leave_core(thread, State::Ready);
    }

    /// Returns the probability that a shared cache line is at a busy core other than this one.
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

    /// Runs the thread on its core for this time, or until its time slice ends.
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

    /// Tries to take the mutex. Returns whether it was free.
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

    /// Handles an event of a thread: the end of a sleep, of a spin, or of a piece of work.
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

/// Runs the simulation until the program stops it, or until nothing more can happen.
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

/// Runs the acts of a thread that has a core, until an act takes time or makes the thread wait.
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
