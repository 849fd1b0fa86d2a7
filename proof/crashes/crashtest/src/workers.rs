//! Runs the same work on every processor.

use std::ops::AddAssign;

use anyhow::{Result, anyhow};

use crate::failure::Violation;

/// The result of a test: a tally, or the violation that it found. The outer error says why the test could not
/// run.
pub type Verdict<T> = Result<Result<T, Box<Violation>>>;

/// Returns the number of processors to use.
pub fn count() -> u64 {
    std::thread::available_parallelism().map_or(1, usize::from) as u64
}

/// Runs `work` once on each processor, and adds up the results.
pub fn on_each<T>(work: impl Fn() -> Verdict<T> + Sync) -> Verdict<T>
where
    T: Default + AddAssign + Send,
{
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count()).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut sum = T::default();
    for result in results {
        match result.map_err(|_| anyhow!("a thread of the rig panicked"))?? {
            Ok(tally) => sum += tally,
            Err(violation) => return Ok(Err(violation)),
        }
    }
    Ok(Ok(sum))
}
