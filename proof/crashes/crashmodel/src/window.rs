//! Chooses which crash states of a window a test builds. A window is the part of a recording between two
//! barriers. A state of a window consists of one state for each of its pieces in doubt.

use std::collections::HashSet;

use crate::Chance;

/// The limits on the states of one window that a test builds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The largest number of states to build, unless the window is small enough to be explored exhaustively.
    pub states: usize,
    /// A window with at most this many pieces in doubt is explored exhaustively, even if that takes more than
    /// `states` states.
    pub exhaustive_pieces: usize,
}

/// Picks the states of a window that a test builds, without duplicates. `pieces` holds the number of states
/// of each piece. Also returns whether the test can call the window explored exhaustively. That is so if the
/// picked states include every combination of states. If these are too many, every combination of the pieces'
/// first and last states is enough; the function then adds random states, also with intermediate states of
/// pieces.
#[must_use]
pub fn pick(pieces: &[usize], bounds: Bounds, seed: u64) -> (Vec<Vec<usize>>, bool) {
    let subsets = 1_usize.checked_shl(pieces.len() as u32).unwrap_or(usize::MAX);
    let few = pieces.len() <= bounds.exhaustive_pieces;
    let most = if few { bounds.states.max(subsets) } else { bounds.states };
    let combinations = pieces.iter().try_fold(1_usize, |all, states| all.checked_mul(*states));
    if let Some(all) = combinations
        && all <= most
    {
        return ((0..all).map(|index| nth_combination(pieces, index)).collect(), true);
    }
    let mut picked = Picked::default();
    let exhaustive = subsets <= most;
    if exhaustive {
        for subset in 0..subsets {
            let whole = |(nth, states): (usize, &usize)| if subset >> nth & 1 == 1 { states - 1 } else { 0 };
            picked.add(pieces.iter().enumerate().map(whole).collect());
        }
    } else {
        picked.add(vec![0; pieces.len()]);
        picked.add(pieces.iter().map(|states| states - 1).collect());
    }
    let so_far = picked.states.len();
    let samples = if exhaustive { so_far / 2 } else { most.saturating_sub(so_far) };
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..samples {
        picked.add(sample(pieces, &mut random));
    }
    (picked.states, exhaustive)
}

#[derive(Default)]
struct Picked {
    states: Vec<Vec<usize>>,
    seen: HashSet<Vec<usize>>,
}

impl Picked {
    fn add(&mut self, state: Vec<usize>) {
        if self.seen.insert(state.clone()) {
            self.states.push(state);
        }
    }
}

fn nth_combination(pieces: &[usize], mut index: usize) -> Vec<usize> {
    let mut digit = |states: &usize| {
        let digit = index % states;
        index /= states;
        digit
    };
    pieces.iter().map(&mut digit).collect()
}

/// Returns a random state of a window.
pub fn sample(pieces: &[usize], random: &mut fastrand::Rng) -> Vec<usize> {
    let mut chance = Chance::drawn(random);
    pieces.iter().map(|states| chance.state(*states)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_combinations_are_all_built() {
        let (states, exhaustive) = pick(&[2, 3], Bounds { states: 6, exhaustive_pieces: 0 }, 1);
        assert!(exhaustive);
        assert_eq!(states, [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]);
    }

    #[test]
    fn where_combinations_are_too_many_every_subset_is_built_once() {
        let (states, exhaustive) = pick(&[9; 4], Bounds { states: 5, exhaustive_pieces: 4 }, 1);
        assert!(exhaustive);
        let subsets = states.iter().filter(|state| state.iter().all(|one| [0, 8].contains(one))).count();
        assert_eq!(subsets, 16);
        assert!(states.len() > 16, "and parts of pieces");
        assert_eq!(states.iter().collect::<HashSet<_>>().len(), states.len());
    }

    #[test]
    fn of_a_large_window_the_extremes_and_samples_are_built() {
        let (states, exhaustive) = pick(&[3; 200], Bounds { states: 50, exhaustive_pieces: 12 }, 1);
        assert!(!exhaustive);
        assert_eq!(states.len(), 50);
        assert_eq!(states[..2], [vec![0; 200], vec![2; 200]]);
    }
}
