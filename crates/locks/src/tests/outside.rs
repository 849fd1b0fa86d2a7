//! Readers who may not write the words (outside readers), together with processes that have slots.

use super::*;

const MARK: usize = FIRST_READ + 1;
const OTHER: usize = FIRST_READ + 2;

fn memory() -> Arc<Memory> {
    let memory = Memory::new(false);
    memory.state().outside = true;
    memory.state().words[OUTSIDE as usize / 8] = 1;
    memory
}

/// Makes an outside reader, and its table on this memory.
fn reader(memory: &Arc<Memory>) -> (Arc<Table>, Arc<ProcessSlot>) {
    memory.process(PROCESS_SLOTS)
}

#[test]
fn it_changes_no_word() {
    let memory = memory();
    let process = memory.table(0).holder();
    let words = memory.state().words.clone();
    let reader = reader(&memory).0.holder();
    (0..SLOTS).for_each(|slot| reader.lock_shared(slot).unwrap());
    assert_eq!(reader.lock_exclusive(WRITE, 1), BUSY);
    assert_eq!(reader.lock_exclusive(MARK, 1), BUSY);
    reader.release();
    assert_eq!(memory.state().marks, [0; SLOTS]);
    assert_eq!(memory.state().words, words);
    drop(process);
}

#[test]
fn it_is_excluded_by_living_processes_only() {
    let memory = memory();
    let process = memory.table(0).holder();
    let reader = reader(&memory).0.holder();
    for slot in 0..SLOTS {
        process.lock_exclusive(slot, 1).unwrap();
        assert_eq!(reader.lock_shared(slot), BUSY);
        process.unlock_exclusive(slot, 1);
        reader.lock_shared(slot).unwrap();
        reader.unlock_shared(slot);
        process.lock_shared(slot).unwrap();
        reader.lock_shared(slot).unwrap();
        reader.unlock_shared(slot);
        process.unlock_shared(slot);
    }
    assert_eq!(memory.state().marks, [0; SLOTS], "what was refused is given back");
    process.lock_exclusive(MARK, 1).unwrap();
    memory.kill(0);
    reader.lock_shared(MARK).unwrap();
}

#[test]
fn the_log_does_not_start_over_under_it() {
    let memory = memory();
    let process = memory.table(0).holder();
    let reader = reader(&memory).0.holder();
    reader.lock_shared(MARK).unwrap();
    assert_eq!(process.lock_exclusive(FIRST_READ + 1, SLOTS - FIRST_READ - 1), BUSY);
    assert_eq!(process.lock_exclusive(1, SLOTS - 1), BUSY);
    reader.unlock_shared(MARK);
    // A reader that reads only the database file does not hinder the log from starting over.
    reader.lock_shared(FIRST_READ).unwrap();
    process.lock_exclusive(FIRST_READ + 1, SLOTS - FIRST_READ - 1).unwrap();
}

#[test]
fn nobody_checkpoints_beside_it() {
    let memory = memory();
    let (one, two) = (memory.table(0).holder(), memory.table(1).holder());
    let reader = reader(&memory).0.holder();
    for mark in FIRST_READ..SLOTS {
        reader.lock_shared(mark).unwrap();
        // The process may move the reader's mark, because no checkpoint depends on the mark now.
        one.lock_exclusive(mark, 1).unwrap();
        one.unlock_exclusive(mark, 1);
        assert_eq!(one.lock_exclusive(CHECKPOINT, 1), BUSY);
        // Recovery of the index is allowed, because it writes nothing to the database.
        one.lock_exclusive(CHECKPOINT, 2).unwrap();
        assert_eq!((one.lock_exclusive(mark, 1), two.lock_exclusive(mark, 1)), (BUSY, BUSY));
        one.unlock_exclusive(CHECKPOINT, 2);
        reader.unlock_shared(mark);
    }
    one.lock_exclusive(CHECKPOINT, 1).unwrap();
    reader.lock_shared(MARK).unwrap();
    assert_eq!((one.lock_exclusive(MARK, 1), two.lock_exclusive(MARK, 1)), (BUSY, BUSY));
    for process in [&one, &two] {
        process.lock_exclusive(OTHER, 1).unwrap();
        process.unlock_exclusive(OTHER, 1);
    }
}

#[test]
fn a_refused_lock_leaves_no_claim() {
    let memory = memory();
    let (process, other) = (memory.table(0).holder(), memory.table(1).holder());
    let reader = reader(&memory).0.holder();
    reader.lock_shared(MARK).unwrap();
    assert_eq!(process.lock_exclusive(CHECKPOINT, 1), BUSY);
    reader.release();
    other.lock_exclusive(1, SLOTS - 1).unwrap();
}

/// A process claims the mark after a reader has taken hold of the mark and before that reader looks at the
/// words.
#[test]
fn both_announce_before_they_look() {
    for checkpoints in [false, true] {
        let memory = memory();
        let process = Arc::new(memory.table(0).holder());
        if checkpoints {
            process.lock_exclusive(CHECKPOINT, 1).unwrap();
        }
        let (table, seen) = reader(&memory);
        let reader = table.holder();
        let taken = Arc::new(Mutex::new(None));
        let (hooked, result) = (Arc::clone(&process), Arc::clone(&taken));
        seen.when_asked(move || *result.lock().unwrap() = Some(hooked.lock_exclusive(MARK, 1)));
        let read = reader.lock_shared(MARK);
        let taken = taken.lock().unwrap().take();
        // Without a checkpoint the process does not ask the kernel about readers, so it gets the mark, and
        // the reader does not.
        let expected = if checkpoints { (Ok(()), Some(BUSY)) } else { (BUSY, Some(Ok(()))) };
        assert_eq!((read, taken), expected);
    }
}

/// A reader arrives after a process that is about to checkpoint has found no reader.
#[test]
fn a_reader_that_comes_later_is_found_by_who_moves_its_mark() {
    let memory = memory();
    let (table, seen) = memory.process(0);
    let (one, two) = (table.holder(), memory.table(1).holder());
    let reader = Arc::new(reader(&memory).0.holder());
    let hooked = Arc::clone(&reader);
    seen.when_asked(move || hooked.lock_shared(MARK).unwrap());
    one.lock_exclusive(CHECKPOINT, 1).unwrap();
    assert_eq!(memory.state().marks[MARK], 1, "it came in between");
    assert_eq!((one.lock_exclusive(MARK, 1), two.lock_exclusive(MARK, 1)), (BUSY, BUSY));
    reader.release();
    two.lock_exclusive(MARK, 1).unwrap();
}

#[test]
fn figures_count_it() {
    let memory = memory();
    let table = memory.table(0);
    assert!(!table.has_other_readers().unwrap());
    let reader = reader(&memory).0.holder();
    reader.lock_shared(MARK).unwrap();
    assert!(table.has_other_readers().unwrap());
    assert_eq!(table.readers().unwrap().0, 1);
}

#[test]
fn nobody_asks_where_there_can_be_none() {
    let memory = memory();
    memory.state().words[OUTSIDE as usize / 8] = 0;
    let process = memory.table(0).holder();
    let reader = reader(&memory).0.holder();
    reader.lock_shared(MARK).unwrap();
    process.lock_exclusive(CHECKPOINT, 1).unwrap();
}
