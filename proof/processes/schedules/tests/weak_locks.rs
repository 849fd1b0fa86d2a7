//! Tests the lock table in a weak memory model. The next holder of a lock must see what the previous holder
//! has written.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::sync::Arc;

use duralite_locks::{Holder, LAYOUT_BYTES, Table, WRITE};
use duralite_schedules::weak::{Loads, WeakMemory};
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

const READ: usize = 4;

/// The data that the locks protect. Operations on these words impose no order of their own.
struct Protected([AtomicU64; 2]);

impl Protected {
    fn read(&self) -> u64 {
        let read = [0, 1].map(|i: usize| self.0[i].load(Relaxed));
        assert_eq!(read[0], read[1], "in the middle of another's change");
        read[0]
    }

    fn change(&self) {
        let value = self.read() + 1;
        self.0.iter().for_each(|word| word.store(value, Relaxed));
    }
}

fn exclusively(holder: &Holder, first: usize, count: usize, protected: &Protected) -> u64 {
    if holder.lock_exclusive(first, count).is_err() {
        return 0;
    }
    protected.change();
    holder.unlock_exclusive(first, count);
    1
}

fn shared(holder: &Holder, protected: &Protected) -> u64 {
    if holder.lock_shared(READ).is_ok() {
        protected.read();
        holder.unlock_shared(READ);
    }
    0
}

fn check(one: fn(&Holder, &Protected) -> u64, two: fn(&Holder, &Protected) -> u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = WeakMemory::new(&[0..512, 512..1024.min(LAYOUT_BYTES)], Loads::Newest);
        let protected = Arc::new(Protected([AtomicU64::new(0), AtomicU64::new(0)]));
        let holders = [0, 1].map(|index| Table::join(memory.join(index), 0).holder());
        let [first, second] = holders;
        let thread = {
            let protected = Arc::clone(&protected);
            loom::thread::spawn(move || two(&second, &protected))
        };
        let changes = one(&first, &protected) + one(&first, &protected);
        let changes = changes + thread.join().expect("the other");
        assert_eq!(protected.read(), changes);
    });
}

#[test]
fn inv11_writers_see_each_others_changes_under_a_weak_memory_model() {
    let write = |holder: &Holder, protected: &Protected| exclusively(holder, WRITE, 1, protected);
    check(write, write);
}

#[test]
fn inv11_readers_see_no_change_in_the_middle_under_a_weak_memory_model() {
    check(|holder, protected| exclusively(holder, READ - 1, 3, protected), shared);
}
