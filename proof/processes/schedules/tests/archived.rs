//! Tests commits that wait for the archive, under explored schedules. The sidecar may acknowledge a commit
//! just when the process of that commit falls asleep. The sidecar may also die at any of its operations
//! (invariant 70).

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_schedules::{Death, Memory, Sleep, rounds};
use duralite_wal::shared::archived::{ARCHIVED_BYTES, ArchivedWords, NotArchived};

const LONG: Duration = Duration::from_secs(1 << 30);

/// The position up to which the archive really has the commits.
#[derive(Default)]
struct Archive(AtomicU64);

impl Archive {
    fn holds(&self, position: u64) -> bool {
        self.0.load(Ordering::SeqCst) >= position
    }
}

/// Makes a commit at each of `positions`, and waits for the archive each time.
fn commit(words: ArchivedWords<'_>, archive: &Archive, positions: &[u64]) {
    for position in positions {
        words.committed(*position);
        assert_eq!(words.wait(*position, LONG), Ok(()), "nobody takes the archive over");
        assert!(archive.holds(*position), "{position} was acknowledged and is not in the archive");
    }
}

/// Archives the four commits one after the other.
fn archive_all(words: ArchivedWords<'_>, archive: &Archive, apart: u64) {
    let from = archive.0.load(Ordering::SeqCst);
    words.announce(from, 0);
    for commit in from / apart + 1..=4 {
        let position = commit * apart;
        archive.0.store(position, Ordering::SeqCst);
        words.set(position, 0);
        shuttle::thread::yield_now();
    }
    words.withdraw();
}

fn unless_it_dies(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work))
        && !panic.is::<Death>()
    {
        std::panic::resume_unwind(panic);
    }
}

/// The distances between the positions of commits. Depending on the distance, commits sleep on the same word,
/// on neighbouring words, or on distant words.
const APART: [u64; 3] = [1, 50, 500];

/// Lets two processes commit. The sidecar may die at an operation, and then another sidecar continues its
/// work. One of the two committing processes may die too.
fn commits_wait(sleep: Sleep, apart: u64, sidecar_dies: Option<u64>, committer_dies: Option<u64>) {
    let memory = Memory::new(ARCHIVED_BYTES, sleep);
    let archive = Arc::new(Archive::default());
    let committers: Vec<_> = [(1, None, [1, 3]), (2, committer_dies, [2, 4])]
        .into_iter()
        .map(|(index, dies, positions)| {
            let (memory, archive) = (Arc::clone(&memory), Arc::clone(&archive));
            shuttle::thread::spawn(move || {
                let slot = memory.join(index, dies);
                let positions = positions.map(|commit| commit * apart);
                unless_it_dies(|| commit(ArchivedWords::new(&*slot, 0), &archive, &positions));
            })
        })
        .collect();
    let sidecars: [(usize, Option<u64>); 2] = [(3, sidecar_dies), (4, None)];
    let rounds = if sidecar_dies.is_some() { &sidecars[..] } else { &sidecars[1..] };
    for (index, dies) in rounds {
        let slot = memory.join(*index, *dies);
        unless_it_dies(|| archive_all(ArchivedWords::new(&*slot, 0), &archive, apart));
    }
    committers.into_iter().for_each(|committer| committer.join().expect("a committer"));
}

#[test]
fn inv70_no_acknowledgement_is_missed_in_random_schedules() {
    // Only a wake-up ends a sleep, so a missed acknowledgement becomes a deadlock.
    for apart in APART {
        shuttle::check_random(move || commits_wait(Sleep::UntilWoken, apart, None, None), rounds(5000));
    }
}

#[test]
fn inv70_no_acknowledgement_is_missed_in_schedules_with_few_switches() {
    for apart in APART {
        shuttle::check_pct(move || commits_wait(Sleep::UntilWoken, apart, None, None), rounds(5000), 3);
    }
}

#[test]
fn inv70_commits_go_on_when_processes_die_at_any_operation() {
    std::panic::set_hook(Box::new(|_| {}));
    let at = AtomicU64::new(0);
    // Every schedule kills the processes at different operations. If a sidecar dies between its
    // acknowledgement and the wake-up, nobody wakes the sleeping processes. So they have to check the
    // acknowledgement themselves from time to time.
    shuttle::check_random(
        move || {
            let at = at.fetch_add(1, Ordering::SeqCst);
            let apart = APART[at as usize % APART.len()];
            commits_wait(Sleep::MayEnd, apart, Some(at / 3 % 50), Some(at / 9 % 40));
        },
        rounds(10000),
    );
}

#[test]
fn inv70_once_the_archive_is_taken_over_nobody_sleeps_on() {
    shuttle::check_random(
        || {
            let memory = Memory::new(ARCHIVED_BYTES, Sleep::UntilWoken);
            let of_committer = Arc::clone(&memory);
            let committer = shuttle::thread::spawn(move || {
                let slot = of_committer.join(1, None);
                let words = ArchivedWords::new(&*slot, 0);
                assert_eq!(words.wait(1, LONG), Ok(()), "it was acknowledged before");
                assert_eq!(words.wait(2, LONG), Err(NotArchived::Fenced));
            });
            let slot = memory.join(2, None);
            let words = ArchivedWords::new(&*slot, 0);
            words.announce(1, 0);
            words.set_fenced();
            committer.join().expect("the committer");
        },
        rounds(10000),
    );
}
