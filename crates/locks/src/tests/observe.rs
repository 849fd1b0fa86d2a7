//! What a program that only observes the locks sees.

use super::*;
use crate::{CHECKPOINT, Held};

#[test]
fn who_looks_on_sees_what_each_process_holds_and_since_when() {
    let memory = Memory::new(false);
    let (one, other) = (memory.table(0), memory.table(5));
    let seen = || observe(&*memory.join(PROCESS_SLOTS), 0);
    assert_eq!(seen(), []);
    let (reader, writer) = (one.holder(), other.holder());
    reader.lock_shared(READ).unwrap();
    let since = memory.state().now;
    memory.pass(MS);
    reader.lock_shared(READ + 1).unwrap();
    writer.lock_exclusive(WRITE, 1).unwrap();
    writer.lock_exclusive(CHECKPOINT, 1).unwrap();
    let nothing = Held { process: 5, shared: 0, exclusive: 0, is_reserved: false, reads_since: None };
    let reads = Held { process: 0, shared: 3 << READ, reads_since: Some(since), ..nothing };
    let writes = Held { exclusive: 1 << WRITE | 1 << CHECKPOINT, ..nothing };
    assert_eq!(seen(), [reads, writes]);
    let (readers, oldest) = one.readers().unwrap();
    assert!(readers == 2 && oldest >= MS, "{readers} {oldest:?}");
    writer.release();
    memory.kill(0);
    assert_eq!(seen(), [reads], "what the dead have left is there until somebody wants it");
    assert_eq!(other.readers(), Ok((0, Duration::ZERO)));
}

#[test]
fn a_reservation_is_seen_as_one() {
    let memory = Memory::new(false);
    let table = memory.table(2);
    let holder = table.holder();
    assert_eq!(holder.wait_for_write(MS), Ok(true));
    let held = observe(&*memory.join(PROCESS_SLOTS), 0);
    assert_eq!(held.iter().map(|held| (held.exclusive, held.is_reserved)).collect::<Vec<_>>(), [(1, true)]);
    holder.lock_exclusive(WRITE, 1).unwrap();
    assert!(!observe(&*memory.join(PROCESS_SLOTS), 0)[0].is_reserved);
}
