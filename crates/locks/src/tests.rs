//! The table on a memory whose clock, deaths and sleeps the test controls.
//!
//! Several [`Table`]s on one [`Memory`] stand for several processes. To stop a process at a certain point, a
//! test runs the other processes from a hook. The hook runs while that process sleeps, or when it asks which
//! processes are alive.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS, Segment};

use super::deaths::SUSPICION;
use super::layout::{CLAIMED, HELD, LINE, PLACES_OFFSET, WAITERS, WAITERS_OFFSET, member};
use super::table::RESERVATION;
use super::*;

const TURN: Duration = Duration::from_millis(5);
const READ: usize = 4;
const MS: Duration = Duration::from_millis(1);
const HELD_WRITE: u64 = 1 << HELD;

type Hook = Box<dyn FnOnce() + Send>;

/// The payload of the panic by which a process dies.
struct Death;

struct Memory {
    state: Mutex<State>,
    changed: Condvar,
    /// If `true`, sleeps are real and the clock stands still. If `false`, a sleep advances the clock.
    threads: bool,
}

struct State {
    words: Vec<u64>,
    alive: [bool; PROCESS_SLOTS],
    now: u64,
    waits: u64,
    /// The limit of the last sleep.
    sleep: Duration,
    wakes: u64,
    /// The number of times that a process asked whether another process is alive.
    asked: u64,
    /// Marks held by readers without a process slot, and whether there can be such readers.
    marks: [u32; SLOTS],
    outside: bool,
    /// The number of places in the queue that are in use.
    queued: usize,
    /// Whether a connection was queued when the WRITE lock was last taken.
    taken_before_waiters: bool,
}

struct ProcessSlot {
    memory: Arc<Memory>,
    index: usize,
    /// The number of operations left before the process dies.
    left: Mutex<Option<u64>>,
    in_wait: Mutex<Option<Hook>>,
    when_asked: Mutex<Option<Hook>>,
}

impl Memory {
    fn new(threads: bool) -> Arc<Self> {
        let state = State {
            words: vec![0; LAYOUT_BYTES as usize / 8],
            alive: [false; PROCESS_SLOTS],
            now: 1,
            waits: 0,
            sleep: Duration::ZERO,
            wakes: 0,
            asked: 0,
            marks: [0; SLOTS],
            outside: false,
            queued: 0,
            taken_before_waiters: false,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), threads })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(self: &Arc<Self>, index: usize) -> Arc<ProcessSlot> {
        if let Some(alive) = self.state().alive.get_mut(index) {
            *alive = true;
        }
        Arc::new(ProcessSlot {
            memory: Arc::clone(self),
            index,
            left: Mutex::default(),
            in_wait: Mutex::default(),
            when_asked: Mutex::default(),
        })
    }

    /// Makes a process with this slot, and its table on this memory.
    fn process(self: &Arc<Self>, index: usize) -> (Arc<Table>, Arc<ProcessSlot>) {
        let process = self.join(index);
        // With a clock that stands still, a turn would never end.
        let turn = if self.threads { Duration::ZERO } else { TURN };
        (Table::with_turn(Arc::clone(&process) as Arc<dyn Segment>, 0, turn), process)
    }

    fn table(self: &Arc<Self>, index: usize) -> Arc<Table> {
        self.process(index).0
    }

    fn kill(&self, index: usize) {
        self.state().alive[index] = false;
    }

    fn pass(&self, time: Duration) {
        self.state().now += time.as_nanos() as u64;
    }
}

impl ProcessSlot {
    fn operate<T: Default>(&self, operation: impl FnOnce(&mut State) -> T) -> T {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match left.as_mut() {
            Some(0) => {
                drop(left);
                self.memory.kill(self.index);
                if !std::thread::panicking() {
                    resume_unwind(Box::new(Death));
                }
                // The process is dead, so what it does while it unwinds must have no effect.
                return T::default();
            }
            Some(left) => *left -= 1,
            None => {}
        }
        operation(&mut self.memory.state())
    }

    fn update(&self, at: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        self.operate(|state| {
            let before = state.words[at as usize / 8];
            let after = change(before);
            state.words[at as usize / 8] = after;
            if (WAITERS_OFFSET..PLACES_OFFSET).contains(&at) {
                state.queued += usize::from(before == 0 && after != 0);
                state.queued -= usize::from(before != 0 && after == 0);
            } else if at >= member(0) && at.is_multiple_of(LINE) && !before & after & HELD_WRITE != 0 {
                state.taken_before_waiters = state.queued > 0;
            }
            before
        })
    }

    fn in_wait(&self, hook: impl FnOnce() + Send + 'static) {
        *self.in_wait.lock().unwrap() = Some(Box::new(hook));
    }

    fn when_asked(&self, hook: impl FnOnce() + Send + 'static) {
        *self.when_asked.lock().unwrap() = Some(Box::new(hook));
    }
}

impl Segment for ProcessSlot {
    fn len(&self) -> u64 {
        LAYOUT_BYTES
    }

    fn load(&self, at: u64) -> u64 {
        self.update(at, |word| word)
    }

    fn store(&self, at: u64, value: u64) {
        self.update(at, |_| value);
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        let before = self.update(at, |word| if word == current { new } else { word });
        if before == current { Ok(before) } else { Err(before) }
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.update(at, |word| word | bits)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.update(at, |word| word & bits)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        self.update(at, |word| word.wrapping_add(value))
    }

    fn read(&self, _at: u64, _buf: &mut [u8]) {
        unreachable!("the table uses words only");
    }

    fn write(&self, _at: u64, _bytes: &[u8]) {
        unreachable!("the table uses words only");
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        self.operate(|state| {
            state.waits += 1;
            state.sleep = limit;
        });
        let hook = self.in_wait.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
        let same = |state: &mut State| state.words[at as usize / 8] as u32 == expected;
        let mut state = self.memory.state();
        if self.memory.threads {
            drop(self.memory.changed.wait_timeout_while(state, limit, same));
        } else if same(&mut state) {
            state.now += limit.as_nanos() as u64;
        }
    }

    fn wake(&self, _at: u64, _count: u32) {
        self.operate(|state| state.wakes += 1);
        self.memory.changed.notify_all();
    }

    fn clock_ns(&self) -> u64 {
        let tick = if self.memory.threads { 0 } else { 1000 };
        self.operate(|state| {
            state.now += tick;
            state.now
        })
    }

    fn process_slot(&self) -> usize {
        self.index
    }

    fn is_alive(&self, process: usize) -> Result<bool, MediumError> {
        let alive = self.operate(|state| {
            state.asked += 1;
            state.alive[process]
        });
        let hook = self.when_asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(alive)
    }

    fn is_read_only(&self) -> bool {
        self.index == PROCESS_SLOTS
    }

    fn can_be_read_only(&self) -> bool {
        self.memory.state().outside
    }

    fn has_outside_readers(&self, first: usize, count: usize) -> Result<bool, MediumError> {
        let held = self.operate(|state| state.marks[first..first + count].iter().any(|count| *count > 0));
        let hook = self.when_asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(held)
    }

    fn hold_mark(&self, mark: usize) -> Result<bool, MediumError> {
        self.operate(|state| state.marks[mark] += 1);
        let hook = self.when_asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(true)
    }

    fn release_mark(&self, mark: usize) {
        self.operate(|state| state.marks[mark] -= 1);
    }
}

mod observe;
mod outside;
mod shares;
mod start_over;
mod waiters;

const BUSY: Result<(), LockError> = Err(LockError::Busy);

/// Makes two pairs of connections: one pair in the same process, the other in two processes.
fn pairs() -> [(Holder, Holder); 2] {
    let (one, two) = (Memory::new(false), Memory::new(false));
    let table = one.table(0);
    [(table.holder(), table.holder()), (two.table(0).holder(), two.table(1).holder())]
}

#[test]
fn connections_exclude_each_other_within_a_process_as_between_two() {
    for (one, two) in pairs() {
        for slot in 0..SLOTS {
            one.lock_shared(slot).unwrap();
            one.lock_shared(slot).unwrap();
            two.lock_shared(slot).unwrap();
            assert_eq!(one.lock_exclusive(slot, 1), BUSY, "its own reader, and another's");
            one.unlock_shared(slot);
            assert_eq!(one.lock_exclusive(slot, 1), BUSY, "another's reader");
            two.unlock_shared(slot);
            one.lock_exclusive(slot, 1).unwrap();
            one.lock_exclusive(slot, 1).unwrap();
            assert_eq!(two.lock_shared(slot), BUSY);
            assert_eq!(two.lock_exclusive(slot, 1), BUSY);
            two.unlock_exclusive(slot, 1);
            two.unlock_shared(slot);
            assert_eq!(two.lock_shared(slot), BUSY, "what another holds cannot be given back");
            one.unlock_exclusive(slot, 1);
            two.lock_exclusive(slot, 1).unwrap();
            two.unlock_exclusive(slot, 1);
        }
    }
}

#[test]
fn several_locks_are_taken_together_or_not_at_all() {
    for (one, two) in pairs() {
        one.lock_shared(READ).unwrap();
        assert_eq!(two.lock_exclusive(1, 7), BUSY);
        for slot in (1..SLOTS).filter(|slot| *slot != READ) {
            one.lock_exclusive(slot, 1).unwrap();
            one.unlock_exclusive(slot, 1);
        }
        one.unlock_shared(READ);
        two.lock_exclusive(1, 7).unwrap();
        one.lock_exclusive(WRITE, 1).unwrap();
        (1..SLOTS).for_each(|slot| assert_eq!(one.lock_shared(slot), BUSY));
    }
}

/// A transaction that waits for WRITE gives way if one connection holds WRITE and CHECKPOINT, because that
/// connection may be waiting for the transaction. The transaction must not give way to two connections that
/// hold one of these locks each.
#[test]
fn only_a_connection_that_has_both_locks_keeps_writers_out_to_checkpoint() {
    let memory = Memory::new(false);
    let (table, other) = (memory.table(0), memory.table(1));
    let (writer, checkpointer) = (table.holder(), table.holder());
    let seen = || [&table, &other].map(|table| table.is_write_taken_to_checkpoint());
    writer.lock_exclusive(WRITE, 1).unwrap();
    checkpointer.lock_exclusive(CHECKPOINT, 1).unwrap();
    assert_eq!(seen(), [false; 2], "two connections of one process");
    writer.unlock_exclusive(WRITE, 1);
    checkpointer.lock_exclusive(WRITE, 1).unwrap();
    assert_eq!(seen(), [true; 2], "a checkpoint that takes WRITE");
    checkpointer.unlock_exclusive(WRITE, 1);
    assert_eq!(seen(), [false; 2], "a checkpoint that has given WRITE back");
    checkpointer.unlock_exclusive(CHECKPOINT, 1);
    writer.lock_exclusive(WRITE, 1).unwrap();
    let (first, count) = (FIRST_READ + 1, SLOTS - FIRST_READ - 1);
    writer.lock_exclusive(first, count).unwrap();
    assert_eq!(seen(), [true; 2], "a writer that starts the log over");
    writer.unlock_exclusive(first, count);
    assert_eq!(seen(), [false; 2], "a writer that has started the log over");
}

/// Process 0 has claimed WRITE and has not withdrawn its claim yet.
#[test]
fn a_claim_that_comes_to_nothing_keeps_nobody_from_a_lock_that_is_free() {
    let memory = Memory::new(false);
    let _first = memory.join(0);
    let (table, process) = memory.process(1);
    let claim = 1 << WRITE << CLAIMED;
    let word = member(0) as usize / 8;
    memory.state().words[word] |= claim;
    let others = Arc::clone(&memory);
    process.in_wait(move || others.state().words[word] &= !claim);
    let holder = table.holder();
    assert_eq!(holder.lock_exclusive(WRITE, 1), Ok(()));
    holder.unlock_exclusive(WRITE, 1);
    // If process 0 never withdraws its claim, the lock is busy. The lock is also busy if process 0 gets it.
    memory.state().words[word] |= claim;
    assert_eq!(holder.lock_exclusive(WRITE, 1), Err(LockError::Busy));
    let others = Arc::clone(&memory);
    process.in_wait(move || others.state().words[word] ^= claim | HELD_WRITE);
    assert_eq!(holder.lock_exclusive(WRITE, 1), Err(LockError::Busy));
    memory.kill(0);
    memory.pass(SUSPICION);
    assert_eq!(holder.lock_exclusive(WRITE, 1), Ok(()));
}

#[test]
fn a_dropped_connection_leaves_nothing_behind() {
    for (one, two) in pairs() {
        one.lock_shared(READ).unwrap();
        one.lock_exclusive(1, 2).unwrap();
        assert!(one.wait_for_write(MS).unwrap());
        assert_eq!(two.lock_exclusive(WRITE, 1), BUSY);
        drop(one);
        two.lock_exclusive(0, SLOTS).unwrap();
    }
}

#[test]
fn the_lock_is_kept_for_the_waiter_that_it_is_reserved_for() {
    for (one, two) in pairs() {
        assert!(two.wait_for_write(MS).unwrap());
        assert_eq!(one.lock_exclusive(WRITE, 1), BUSY);
        assert!(!one.wait_for_write(MS).unwrap());
        two.lock_exclusive(WRITE, 1).unwrap();
        // The lock is held now, not reserved. So it stays held until its holder gives it back, however long
        // that takes.
        assert!(!one.wait_for_write(3 * RESERVATION).unwrap());
        two.unlock_exclusive(WRITE, 1);
        one.lock_exclusive(WRITE, 1).unwrap();
    }
}

#[test]
fn a_reservation_that_nobody_takes_up_ends() {
    for (one, two) in pairs() {
        for _ in 0..3 {
            assert!(two.wait_for_write(MS).unwrap());
            assert!(one.wait_for_write(3 * RESERVATION).unwrap());
            assert_eq!(two.lock_exclusive(WRITE, 1), BUSY, "taken away");
            one.lock_exclusive(WRITE, 1).unwrap();
            two.unlock_exclusive(WRITE, 1);
            assert_eq!(two.lock_exclusive(WRITE, 1), BUSY, "not its own any more");
            one.unlock_exclusive(WRITE, 1);
        }
        two.lock_exclusive(WRITE, 1).unwrap();
    }
}

#[test]
fn waiting_for_what_is_reserved_or_held_already_does_not_sleep() {
    for (one, two) in pairs() {
        assert!(one.wait_for_write(MS).unwrap());
        assert!(one.wait_for_write(MS).unwrap());
        one.lock_exclusive(WRITE, 1).unwrap();
        assert!(one.wait_for_write(MS).unwrap());
        one.unlock_exclusive(WRITE, 1);
        // After a reservation was taken away, the connection can make another one.
        assert!(one.wait_for_write(MS).unwrap());
        assert!(two.wait_for_write(3 * RESERVATION).unwrap());
        two.release();
        assert!(one.wait_for_write(MS).unwrap());
        one.lock_exclusive(WRITE, 1).unwrap();
    }
}

#[test]
fn a_dead_reader_is_found_however_often_the_living_are_in_the_way() {
    let memory = Memory::new(false);
    let (writer, dead, table) = (memory.table(0).holder(), memory.table(1).holder(), memory.table(2));
    let (contender, checkpointer) = (table.holder(), table.holder());
    writer.lock_exclusive(WRITE, 1).unwrap();
    dead.lock_shared(READ).unwrap();
    memory.kill(1);
    for _ in 0..10 {
        memory.pass(SUSPICION);
        assert_eq!(contender.lock_exclusive(WRITE, 1), BUSY);
        if checkpointer.lock_exclusive(READ, 1).is_ok() {
            assert_eq!(table.activity().recovered, 1);
            return;
        }
    }
    panic!("the dead reader still has its mark");
}

#[test]
fn the_locks_of_a_process_that_follows_a_dead_one_are_its_own() {
    let memory = Memory::new(false);
    let (table, process) = memory.process(0);
    let dead = memory.table(1).holder();
    dead.lock_exclusive(WRITE, 1).unwrap();
    memory.kill(1);
    let (next, taken) = (Arc::clone(&memory), Arc::new(Mutex::new(None)));
    let keep = Arc::clone(&taken);
    process.when_asked(move || {
        let holder = next.table(1).holder();
        holder.lock_shared(READ).unwrap();
        *keep.lock().unwrap() = Some(holder);
    });
    let holder = table.holder();
    holder.lock_exclusive(WRITE, 1).unwrap();
    assert_eq!(holder.lock_exclusive(READ, 1), BUSY);
    drop(taken.lock().unwrap().take());
    holder.lock_exclusive(READ, 1).unwrap();
    // A dead process gives no lock back, so do not drop its connection.
    std::mem::forget(dead);
}

/// Does the work during which a process dies. It may die at any point of this work. `other` is a connection
/// of another process.
fn live(table: &Arc<Table>, process: &Arc<ProcessSlot>, other: &Arc<Holder>) {
    let (one, two) = (table.holder(), table.holder());
    one.lock_shared(READ).unwrap();
    two.lock_shared(READ).unwrap();
    one.lock_exclusive(WRITE, 1).unwrap();
    assert_eq!(two.lock_exclusive(READ, 2), BUSY);
    one.unlock_exclusive(WRITE, 1);
    two.release();
    one.release();
    two.lock_exclusive(1, 7).unwrap();
    two.unlock_exclusive(1, 7);
    other.lock_exclusive(WRITE, 1).unwrap();
    assert_eq!(one.lock_exclusive(WRITE, 1), BUSY);
    assert!(!one.wait_for_write(15 * MS).unwrap());
    let releasing = Arc::clone(other);
    process.in_wait(move || releasing.unlock_exclusive(WRITE, 1));
    assert!(one.wait_for_write(100 * MS).unwrap());
    one.lock_exclusive(WRITE, 1).unwrap();
    one.unlock_exclusive(WRITE, 1);
    assert!(two.wait_for_write(100 * MS).unwrap());
}

fn gets_everything(memory: &Memory, holder: &Holder) {
    assert!(holder.wait_for_write(100 * MS).unwrap());
    for first in 0..SLOTS {
        memory.pass(2 * SUSPICION);
        holder.lock_exclusive(first, 1).unwrap();
    }
    holder.release();
    memory.pass(2 * SUSPICION);
    holder.lock_exclusive(0, SLOTS).unwrap();
    holder.release();
}

#[test]
fn a_process_that_dies_at_any_operation_leaves_no_lock_and_no_place_behind() {
    let mut deaths = 0;
    for (dying, surviving, rejoins) in [(0, 1, false), (1, 0, false), (0, 1, true), (1, 0, true)] {
        for at in 0.. {
            let memory = Memory::new(false);
            let survivor = Arc::new(memory.table(surviving).holder());
            let process = memory.join(dying);
            *process.left.lock().unwrap() = Some(at);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let table = Table::with_turn(Arc::clone(&process) as Arc<dyn Segment>, 0, TURN);
                live(&table, &process, &survivor);
            }));
            match ended {
                Ok(()) => break,
                Err(panic) if panic.is::<Death>() => deaths += 1,
                Err(panic) => resume_unwind(panic),
            }
            survivor.release();
            if rejoins {
                let follower = memory.table(dying).holder();
                assert_eq!(memory.state().queued, 0, "the dead one's places");
                gets_everything(&memory, &follower);
                gets_everything(&memory, &survivor);
            } else {
                gets_everything(&memory, &survivor);
                gets_everything(&memory, &memory.table(dying).holder());
            }
            memory.pass(1000 * MS);
            for _ in 0..10 {
                survivor.lock_exclusive(WRITE, 1).unwrap();
                survivor.unlock_exclusive(WRITE, 1);
            }
        }
    }
    assert!(deaths > 400, "{deaths} deaths");
}

#[derive(Clone, Copy)]
enum Event {
    Waits(usize),
    Turn(usize),
    /// A connection took a free lock. The value says whether another connection was in the queue at that
    /// time.
    PassedOver(bool),
}

/// Lets threads of several processes take the lock one after the other. Returns what happened, in order.
fn crowd(processes: usize, threads: usize, rounds: usize) -> Vec<Event> {
    let memory = Memory::new(true);
    let events = Mutex::new(Vec::new());
    let inside = Mutex::new(());
    std::thread::scope(|scope| {
        for process in 0..processes {
            let table = memory.table(process);
            for thread in 0..threads {
                let (holder, id) = (table.holder(), process * threads + thread);
                let (memory, events, inside) = (&memory, &events, &inside);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let mut waited = false;
                        while holder.lock_exclusive(WRITE, 1).is_err() {
                            events.lock().unwrap().push(Event::Waits(id));
                            waited = holder.wait_for_write(1000 * MS).unwrap();
                            assert!(waited, "the clock stands still");
                            events.lock().unwrap().push(Event::Turn(id));
                        }
                        if !waited {
                            let before_waiters = memory.state().taken_before_waiters;
                            events.lock().unwrap().push(Event::PassedOver(before_waiters));
                        }
                        let guard = inside.try_lock().expect("two of them inside");
                        std::thread::yield_now();
                        drop(guard);
                        holder.unlock_exclusive(WRITE, 1);
                    }
                });
            }
        }
    });
    events.into_inner().unwrap()
}

#[test]
fn in_a_crowd_nobody_is_passed_over_whose_turn_it_is() {
    const THREADS: usize = 16;
    let events = crowd(4, THREADS / 4, 400);
    let mut waiting: Vec<Option<(usize, usize)>> = vec![None; THREADS];
    let (mut passed_over, mut turns, mut waits) = (0, 0, 0);
    let mut by_later_ones = [0; THREADS];
    for event in events {
        match event {
            Event::Waits(id) => {
                waits += 1;
                waiting[id] = Some((waits, turns));
                by_later_ones[id] = 0;
            }
            Event::Turn(id) => {
                turns += 1;
                passed_over = 0;
                let (own, _) = waiting[id].take().unwrap();
                for other in 0..THREADS {
                    if waiting[other].is_some_and(|(since, _)| since < own) {
                        by_later_ones[other] += 1;
                        // `id` may pass `other` only if `other` came after `id` had drawn its ticket, or
                        // after `id` had found itself the oldest waiter.
                        assert!(by_later_ones[other] < THREADS, "{other} is passed over in the queue");
                    }
                }
            }
            Event::PassedOver(before_waiters) => {
                passed_over += usize::from(before_waiters);
                // Each running connection may pass the waiters once, because it may have checked for waiters
                // before any connection began to wait.
                assert!(passed_over < THREADS, "{passed_over} times between two turns");
            }
        }
    }
    assert!(turns > 100, "{turns} turns: no crowd");
    assert!(waiting.iter().all(Option::is_none));
}
