//! The whole interface beside a model of it, with crashes in the middle of everything.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Instant;

use common::backups::Backups;
use common::data::{Data, smallest};
use common::explore::Course;
use common::schemes;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// One walk of a seed, which says also what it is on; how many crashes were looked at.
fn walk(seed: u64, steps: u64) -> u64 {
    let scheme = schemes()[(seed % 6) as usize];
    let data = Data::ALL[(seed / 6 % 2) as usize];
    let dir = (seed % 4 == 3).then(|| tempfile::tempdir().unwrap());
    let mut options = smallest(scheme);
    if let Some(dir) = &dir {
        options = options.archive(Backups::archive(dir.path()));
    }
    println!("STORE_MODEL_SEED={seed} repeats: {scheme:?}, {data:?}, an archive: {}", dir.is_some());
    let course = Course { data, options, seed, steps, crash_every: 12 };
    course.explore().unwrap_or_else(|why| panic!("{why}"))
}

/// Twelve walks, on each scheme with data in its cache and with ten times that; `STORE_MODEL_ROUNDS` of those rounds, or one
/// walk, of `STORE_MODEL_SEED`.
#[test]
fn inv30_the_whole_interface_is_as_its_model_through_crashes() {
    let begun = Instant::now();
    if let Some(seed) = number("STORE_MODEL_SEED") {
        walk(seed, 60);
        return;
    }
    let rounds = number("STORE_MODEL_ROUNDS");
    let walks = rounds.unwrap_or(1) * 12;
    let steps = if rounds.is_some() { 60 } else { 40 };
    let states: u64 = (1..=walks).map(|seed| walk(seed, steps)).sum();
    println!(
        "| store | walks through the whole interface beside a model | {walks} walks of {steps} calls, on all schemes, half of them \
         at ten times the smallest cache; {states} crashes as the model says | {} |",
        begun.elapsed().as_secs()
    );
}
