//! A shared segment for tests. The processes that use it run under a schedule explorer, and can die at any
//! operation.
//!
//! At every operation on the segment, the explorer may let another process run. [`Sleep`] says how a sleep of
//! a process ends. No schedule depends on real time.
#![allow(clippy::panic)] // how a process dies

pub mod weak;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duralite_medium::{LocalSegment, MediumError, PROCESS_SLOTS, Segment};

/// Returns the number of schedules to explore. It is `all`, divided by the environment variable
/// `SCHEDULES_SHARE` if that is set. Runs on an emulated processor use this to explore fewer.
#[must_use]
pub fn rounds(all: usize) -> usize {
    let share = std::env::var("SCHEDULES_SHARE").ok().and_then(|share| share.parse().ok());
    all / share.unwrap_or(1).max(1)
}

/// The way in which a sleep ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// A sleep may end by itself at any time, as the trait allows. So waits can time out. Tests need that if
    /// a process may die or be stopped, and then cannot wake the others.
    MayEnd,
    /// Only a wake-up ends a sleep. So a lost wake-up becomes a deadlock, which the explorer reports. A sleep
    /// shorter than [`SHORTEST_SLEEP`] is an exception: it is only a pause, and ends by itself.
    UntilWoken,
    /// Like [`Sleep::UntilWoken`], but every wake-up is lost. With this control the tests must fail.
    ForEver,
}

/// A sleep of at least this length is a wait with a time limit. A shorter sleep is only a pause.
pub const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

impl Sleep {
    /// Returns how long a process waits for a lock before it checks the lock again. If sleeps may end by
    /// themselves, this time is short. Otherwise the wait lasts until the wake-up.
    #[must_use]
    pub fn limit(self) -> Duration {
        if self == Self::MayEnd { Duration::from_millis(1) } else { Duration::from_secs(3600) }
    }
}

/// The payload of the panic that ends a dying process.
pub struct Death;

/// The shared memory, and which processes are alive.
#[derive(Debug)]
pub struct Memory {
    words: LocalSegment,
    steps: shuttle::sync::atomic::AtomicU64,
    /// The process that is to stop when it reaches a certain point, as its slot plus 1; 0 for none.
    stops: shuttle::sync::atomic::AtomicU64,
    /// Whether that process has reached the point.
    stopped: shuttle::sync::atomic::AtomicBool,
    state: Mutex<State>,
    sleep: Sleep,
    /// The sleeping processes. Each entry has the word on which the process sleeps, and a number that is
    /// unique to the sleep.
    sleepers: shuttle::sync::Mutex<Sleepers>,
    woken: shuttle::sync::Condvar,
}

#[derive(Debug, Default)]
struct Sleepers {
    asleep: Vec<(u64, u64)>,
    next: u64,
}

#[derive(Debug)]
struct State {
    alive: [bool; PROCESS_SLOTS],
    clock_ns: u64,
}

/// The shared memory, as one process uses it.
#[derive(Debug)]
pub struct ProcessSlot {
    memory: Arc<Memory>,
    index: usize,
    /// After this many more operations the process dies; `None` if it does not die.
    left: Mutex<Option<u64>>,
    /// After this many more operations the process is stopped; `None` if it is not stopped.
    runs: Mutex<Option<u64>>,
}

impl Memory {
    /// Makes memory full of zeros.
    #[must_use]
    pub fn new(bytes: u64, sleep: Sleep) -> Arc<Self> {
        let state = State { alive: [false; PROCESS_SLOTS], clock_ns: 1 };
        Arc::new(Self {
            words: LocalSegment::new(bytes),
            steps: shuttle::sync::atomic::AtomicU64::new(0),
            stops: shuttle::sync::atomic::AtomicU64::new(0),
            stopped: shuttle::sync::atomic::AtomicBool::new(false),
            state: Mutex::new(state),
            sleep,
            sleepers: shuttle::sync::Mutex::default(),
            woken: shuttle::sync::Condvar::new(),
        })
    }

    /// Adds a process with this slot. If `dies_at` is given, the process dies before its operation with this
    /// number.
    #[must_use]
    pub fn join(self: &Arc<Self>, index: usize, dies_at: Option<u64>) -> Arc<ProcessSlot> {
        self.lock().alive[index] = true;
        Arc::new(ProcessSlot {
            memory: Arc::clone(self),
            index,
            left: Mutex::new(dies_at),
            runs: Mutex::new(None),
        })
    }

    /// Makes a process stop as soon as it learns that another process is dead, before it acts on that.
    pub fn stop_at_death(&self, index: usize) {
        self.stops.store(index as u64 + 1, Ordering::SeqCst);
    }

    /// Makes a process stop before the operation with this number, counted from now.
    pub fn stop_at(&self, process_slot: &ProcessSlot, operation: u64) {
        *process_slot.runs.lock().unwrap_or_else(PoisonError::into_inner) = Some(operation);
        self.stops.store(process_slot.index as u64 + 1, Ordering::SeqCst);
    }

    /// Returns how sleeps end.
    #[must_use]
    pub fn sleep(&self) -> Sleep {
        self.sleep
    }

    /// Sleeps until another process wakes the caller. But if the lower half of the word differs from
    /// `expected`, returns at once. The comparison and falling asleep are one step, as in the kernel.
    fn sleep_at(&self, at: u64, expected: u32) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.words.load(at) as u32 != expected {
            return;
        }
        let own = (at, sleepers.next);
        sleepers.next += 1;
        sleepers.asleep.push(own);
        while sleepers.asleep.contains(&own) {
            sleepers = self.woken.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes up to `count` sleepers at the word.
    fn wake_at(&self, at: u64, count: u32) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = count;
        sleepers.asleep.retain(|sleeper| {
            let woken = sleeper.0 == at && left > 0;
            left -= u32::from(woken);
            !woken
        });
        self.woken.notify_all();
    }

    /// Returns whether the process that was told to stop has stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Lets the stopped process continue.
    pub fn go_on(&self) {
        self.stops.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No process holds this lock while another process runs.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessSlot {
    /// Runs the operation, unless the process is dead. So while a dying process unwinds its stack, its
    /// operations have no effect.
    fn operate<T: Default>(&self, operation: impl FnOnce(&Memory) -> T) -> T {
        // At this load the explorer may switch to another process. A yield would be worse: the explorer would
        // then prefer the other processes, so they would run in a fixed rotation.
        self.memory.steps.load(Ordering::SeqCst);
        if count_down(&self.left) {
            self.die();
            return T::default();
        }
        if count_down(&self.runs) {
            self.stop();
        }
        operation(&self.memory)
    }

    /// If this process was told to stop, waits until it may continue.
    fn stop(&self) {
        let own = self.index as u64 + 1;
        while self.memory.stops.load(Ordering::SeqCst) == own {
            self.memory.stopped.store(true, Ordering::SeqCst);
            shuttle::thread::yield_now();
        }
    }

    /// Makes the process die here.
    ///
    /// # Panics
    /// With [`Death`], unless the process is already dying.
    pub fn die(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(0);
        self.memory.lock().alive[self.index] = false;
        if !std::thread::panicking() {
            std::panic::panic_any(Death);
        }
    }
}

/// Counts down. Returns whether the count was already 0.
fn count_down(left: &Mutex<Option<u64>>) -> bool {
    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
    let none = *left == Some(0);
    if let Some(left) = left.as_mut() {
        *left = left.saturating_sub(1);
    }
    none
}

impl Segment for ProcessSlot {
    fn len(&self) -> u64 {
        self.memory.words.len()
    }

    fn load(&self, at: u64) -> u64 {
        self.operate(|memory| memory.words.load(at))
    }

    fn store(&self, at: u64, value: u64) {
        self.operate(|memory| memory.words.store(at, value));
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.operate(|memory| Some(memory.words.compare_exchange(at, current, new))).unwrap_or(Err(0))
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.operate(|memory| memory.words.fetch_or(at, bits))
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.operate(|memory| memory.words.fetch_and(at, bits))
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        self.operate(|memory| memory.words.fetch_add(at, value))
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        self.operate(|memory| memory.words.read(at, buf));
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        // Write the two parts in separate operations, so that another process can see the first part without
        // the second.
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        for (at, part) in [(at, head), (at + head.len() as u64, tail)] {
            self.operate(|memory| memory.words.write(at, part));
        }
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        self.operate(|_| ());
        if self.memory.sleep == Sleep::MayEnd || limit < SHORTEST_SLEEP {
            shuttle::thread::yield_now();
        } else {
            self.memory.sleep_at(at, expected);
        }
    }

    fn wake(&self, at: u64, count: u32) {
        self.operate(|_| ());
        if self.memory.sleep == Sleep::UntilWoken {
            self.memory.wake_at(at, count);
        }
    }

    fn clock_ns(&self) -> u64 {
        self.operate(|memory| {
            let mut state = memory.lock();
            // If sleeps do not end by themselves, time limits should not expire either. So let the clock
            // advance only slowly.
            state.clock_ns += if memory.sleep == Sleep::MayEnd { 50_000 } else { 1_000 };
            state.clock_ns
        })
    }

    fn process_slot(&self) -> usize {
        self.index
    }

    fn is_alive(&self, process_slot: usize) -> Result<bool, MediumError> {
        let alive = self.operate(|memory| memory.lock().alive[process_slot]);
        if !alive {
            self.stop();
        }
        Ok(alive)
    }
}
