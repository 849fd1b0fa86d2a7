//! Must-fail controls: if one flush or fence of a commit is omitted, the exploration of crashes has to find lost or
//! damaged data. A test rig that never finds anything would prove nothing.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::sync::Arc;

use common::{Model, Rng, contents, fresh_medium, open};
use duralite_crashmodel::{Crashes as _, RecordingNvm};
use duralite_medium::Nvm;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::{NvwalOptions, SyncMode};

/// The call to omit, counted from the beginning of the second commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Omit {
    Nothing,
    Flush(u64),
    Fence(u64),
}

/// Commits twice. The power fails before medium operation `crash_at`, or after both commits. Returns what is wrong with
/// the recovered log, or `None` if nothing is wrong.
fn run(sync: SyncMode, omit: Omit, crash_at: u64, seed: u64) -> Option<String> {
    let options = NvwalOptions { sync, block_bytes: 8192, limit_bytes: 1 << 20, ..NvwalOptions::default() };
    let nvm = Arc::new(fresh_medium(&options, 512));
    nvm.crash_before(crash_at, seed);
    let mut stream = open(nvm.clone(), &options).expect("open");
    let mut model = Model::new(512, 20);
    let mut write = |writes: &[(u64, Vec<u8>)]| {
        writes.iter().for_each(|(offset, data)| {
            stream.write(&NoDatabase, *offset, data).expect("write");
        });
    };
    write(&[model.restart()]);
    let first = model.transaction(&mut Rng(5), false);
    write(&first.writes);
    let mut possible = vec![Vec::new(), model.committed[..32].to_vec()];
    model.commit(first);
    let early = nvm.image().map(|left| nvm.over(left));
    possible.push(model.committed.clone());
    match omit {
        Omit::Nothing => {}
        Omit::Flush(nth) => nvm.drop_flush(nth),
        Omit::Fence(nth) => nvm.drop_fence(nth),
    }
    let second = model.transaction(&mut Rng(6), false);
    write(&second.writes);
    let before_second = possible.last().cloned();
    model.commit(second);
    let (image, possible) = match early.map(|image| (image, possible.clone())) {
        Some(found) => found,
        None => match nvm.image().map(|left| nvm.over(left)) {
            Some(image) => (image, before_second.into_iter().chain([model.committed.clone()]).collect()),
            None => (nvm.crash(seed), vec![model.committed.clone()]),
        },
    };
    verdict(image, &options, &possible)
}

fn verdict(image: RecordingNvm, options: &NvwalOptions, possible: &[Vec<u8>]) -> Option<String> {
    let image: Arc<dyn Nvm> = Arc::new(image);
    match open(image, options) {
        Err(error) => Some(error.to_string()),
        Ok(mut stream) => {
            let missing = !possible.contains(&contents(&mut stream));
            missing.then(|| "an acknowledged commit is missing".into())
        }
    }
}

/// Tries many crashes, and returns the first fault that one of them reveals.
fn found(sync: SyncMode, omit: Omit) -> Option<String> {
    (0..4000).find_map(|seed| {
        let crash_at = if seed % 2 == 0 { Rng(seed + 1).below(60) } else { u64::MAX };
        run(sync, omit, crash_at, seed)
    })
}

#[test]
fn inv04_nothing_left_out_nothing_found() {
    for sync in [SyncMode::Eager, SyncMode::Lazy, SyncMode::Checksum] {
        assert_eq!(found(sync, Omit::Nothing), None, "{sync:?}");
    }
}

#[test]
fn inv04_every_flush_of_a_commit_is_needed() {
    // `lazy` flushes the records (one range here) and then the mark. `checksum` flushes everything at once.
    for (sync, flushes) in [(SyncMode::Lazy, 2), (SyncMode::Checksum, 1)] {
        for nth in 0..flushes {
            assert!(
                found(sync, Omit::Flush(nth)).is_some(),
                "{sync:?}: no crash shows that flush {nth} is missing"
            );
        }
    }
}

#[test]
fn inv04_every_fence_of_a_commit_is_needed() {
    for (sync, fences) in [(SyncMode::Lazy, 2), (SyncMode::Checksum, 1)] {
        for nth in 0..fences {
            assert!(
                found(sync, Omit::Fence(nth)).is_some(),
                "{sync:?}: no crash shows that fence {nth} is missing"
            );
        }
    }
}
