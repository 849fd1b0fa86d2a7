//! The log starts over only while no checkpoint runs.

use super::*;

#[test]
fn inv45_nobody_checkpoints_while_the_log_starts_over() {
    let marks = (FIRST_READ + 1, SLOTS - FIRST_READ - 1);
    for (one, two) in pairs() {
        two.lock_exclusive(CHECKPOINT, 1).unwrap();
        assert_eq!(one.lock_exclusive(marks.0, marks.1), BUSY, "another checkpoints");
        for mark in FIRST_READ..SLOTS {
            two.lock_exclusive(mark, 1).unwrap();
            two.unlock_exclusive(mark, 1);
            one.lock_exclusive(mark, 1).unwrap();
            one.unlock_exclusive(mark, 1);
        }
        two.lock_exclusive(marks.0, marks.1).unwrap();
        two.unlock_exclusive(marks.0, marks.1);
        assert_eq!(one.lock_exclusive(CHECKPOINT, 1), BUSY, "it had that before, and keeps it");
        two.unlock_exclusive(CHECKPOINT, 1);
        one.lock_exclusive(marks.0, marks.1).unwrap();
        assert_eq!(two.lock_exclusive(CHECKPOINT, 1), BUSY, "the log is starting over");
        one.unlock_exclusive(marks.0, marks.1);
        two.lock_exclusive(CHECKPOINT, 1).unwrap();
        two.unlock_exclusive(CHECKPOINT, 1);
        one.lock_exclusive(marks.0, marks.1).unwrap();
        one.release();
        two.lock_exclusive(CHECKPOINT, 2).unwrap();
        two.release();
        two.lock_shared(READ).unwrap();
        assert_eq!(one.lock_exclusive(marks.0, marks.1), BUSY);
        two.lock_exclusive(CHECKPOINT, 1).unwrap();
        two.release();
    }
}
