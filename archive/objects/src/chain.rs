//! Which states of a database a restore can make from the objects of a replica, and which objects it needs for each.
//!
//! A state is identified by its last transaction. An object leads to the state after its own last transaction. A
//! restore can use the object if it begins with transaction 1, or if a restore can first make a state to which the
//! object adds without a gap. The object may repeat transactions of that state, because it has the newest image of each
//! of its pages.

use super::keys::{Object, SNAPSHOTS};

/// The objects of one replica that a restore may use.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    /// The objects, sorted by their last transactions.
    objects: Vec<Object>,
    /// A state that a restore can make without these objects. They may add transactions to it.
    seed: Option<u64>,
    /// The states that can be restored, including the seed, in ascending order.
    states: Vec<u64>,
}

/// A range of transactions that no object of a chain has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
}

impl Chain {
    /// Makes a chain of the objects whose transactions are all below `limit`. A restore can make the state `seed`
    /// without these objects, and then apply objects to it.
    pub fn new(objects: &[Object], limit: Option<u64>, seed: Option<u64>) -> Self {
        let counts = |object: &&Object| limit.is_none_or(|limit| object.max < limit);
        let mut objects: Vec<Object> = objects.iter().filter(counts).copied().collect();
        objects.sort_unstable_by_key(|object| (object.max, object.min, object.level));
        let mut states = Vec::from_iter(seed);
        for object in &objects {
            // The object may continue any state from `min - 1` to `max - 1`. If one of these states exists, the newest
            // state before `max` is one of them.
            let below = states.partition_point(|state| *state < object.max);
            let follows = below.checked_sub(1).is_some_and(|newest| states[newest] + 1 >= object.min);
            if (object.is_snapshot() || follows) && states.get(below) != Some(&object.max) {
                states.insert(below, object.max);
            }
        }
        Self { objects, seed, states }
    }

    /// Returns the states that can be restored, in ascending order.
    pub fn states(&self) -> &[u64] {
        &self.states
    }

    /// Returns the newest state that can be restored and is not after `txid`.
    pub fn state_until(&self, txid: u64) -> Option<u64> {
        self.states[..self.states.partition_point(|state| *state <= txid)].last().copied()
    }

    /// Returns the object with the fewest bytes that ends with this transaction.
    pub fn ending_with(&self, txid: u64) -> Option<&Object> {
        let from = self.objects.partition_point(|object| object.max < txid);
        self.objects[from..].iter().take_while(|object| object.max == txid).min_by_key(|object| object.bytes)
    }

    /// Returns the first object that ends after this transaction.
    pub fn first_after(&self, txid: u64) -> Option<&Object> {
        self.objects.get(self.objects.partition_point(|object| object.max <= txid))
    }

    /// Returns the object that leads from the state `txid` to a later state, and ends first. If several objects end
    /// there, returns the one on the lowest level. If `or` is given, the database may be in any state from `txid` to
    /// `or`, or from `or` to `txid`. The object then leads from all of them to one state, which is none before them.
    pub fn following(&self, txid: u64, or: Option<u64>) -> Option<&Object> {
        let (earlier, least) = or.map_or((txid, txid + 1), |or| (or.min(txid), or.max(txid)));
        let from = self.objects.partition_point(|object| object.max < least);
        let follows = |object: &&Object| !object.is_snapshot() && object.min <= earlier + 1;
        self.objects[from..].iter().filter(follows).min_by_key(|object| (object.max, object.level))
    }

    /// Returns the transactions that are missing between the newest state and later objects. Ignores gaps before the
    /// newest state: there, pruning may have deleted objects, and this only leaves fewer states to restore.
    pub fn missing(&self) -> Vec<Missing> {
        let mut end = self.states.last().copied().unwrap_or(0);
        let mut beyond: Vec<&Object> = self.objects.iter().filter(|object| object.max > end).collect();
        beyond.sort_unstable_by_key(|object| object.min);
        let mut missing = Vec::new();
        for object in beyond {
            let first = end.saturating_add(1);
            if first < object.min {
                missing.push(Missing { first, last: object.min - 1 });
            }
            end = end.max(object.max);
        }
        missing
    }

    /// Returns the objects that make `state`, in the order in which a restore applies them. The returned flag says
    /// whether the restore must first make the state `seed`. `state` must be one of the states that can be restored.
    pub fn objects_of(&self, state: u64) -> (bool, Vec<Object>) {
        let until = &self.objects[..self.objects.partition_point(|object| object.max <= state)];
        let snapshot = until
            .iter()
            .filter(|object| object.is_snapshot())
            .max_by_key(|object| (object.max, object.level == SNAPSHOTS, std::cmp::Reverse(object.bytes)));
        let seed =
            self.seed.filter(|seed| *seed <= state && snapshot.is_none_or(|snapshot| snapshot.max < *seed));
        let mut objects = Vec::new();
        let mut reached = match (seed, snapshot) {
            (Some(seed), _) => seed,
            (None, Some(snapshot)) => {
                objects.push(*snapshot);
                snapshot.max
            }
            (None, None) => 0,
        };
        // Of the objects that may come next, the loop takes the one that ends last. If several end there, it takes the
        // smallest of them. An object that begins too late stays in `candidates` for a later iteration, so the loop
        // looks at each object once.
        let mut by_first: Vec<&Object> = until.iter().filter(|object| object.max > reached).collect();
        by_first.sort_unstable_by_key(|object| object.min);
        let mut candidates = by_first.into_iter().peekable();
        let mut best: Option<&Object> = None;
        while reached < state {
            while let Some(object) = candidates.next_if(|object| object.min <= reached + 1) {
                let rank = |object: &Object| (object.max, std::cmp::Reverse(object.bytes));
                if best.is_none_or(|best| rank(best) < rank(object)) {
                    best = Some(object);
                }
            }
            let Some(next) = best.filter(|object| object.max > reached) else { break };
            objects.push(*next);
            reached = next.max;
        }
        (seed.is_some(), objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(level: u8, min: u64, max: u64) -> Object {
        Object { level, min, max, bytes: max - min + 1 }
    }

    fn chain(objects: &[(u8, u64, u64)]) -> Chain {
        let objects: Vec<Object> =
            objects.iter().map(|(level, min, max)| object(*level, *min, *max)).collect();
        Chain::new(&objects, None, None)
    }

    fn ranges(chain: &Chain, state: u64) -> Vec<(u8, u64, u64)> {
        chain.objects_of(state).1.iter().map(|object| (object.level, object.min, object.max)).collect()
    }

    #[test]
    fn states_are_those_that_objects_lead_to() {
        let chain = chain(&[
            (9, 1, 10),
            (0, 11, 12),
            (0, 13, 13),
            (1, 11, 20),
            (0, 18, 19),
            (0, 20, 22),
            (0, 25, 26),
            (0, 26, 30),
            (0, 33, 33),
        ]);
        assert_eq!(chain.states(), [10, 12, 13, 20, 22]);
        assert_eq!(chain.missing(), [Missing { first: 23, last: 24 }, Missing { first: 31, last: 32 }]);
        assert_eq!(chain.state_until(19), Some(13));
        assert_eq!(chain.state_until(9), None);
        assert_eq!(ranges(&chain, 22), [(9, 1, 10), (1, 11, 20), (0, 20, 22)]);
        assert_eq!(ranges(&chain, 13), [(9, 1, 10), (0, 11, 12), (0, 13, 13)]);
    }

    #[test]
    fn the_newest_snapshot_and_the_longest_ways_are_taken() {
        let chain = chain(&[
            (9, 1, 5),
            (9, 1, 8),
            (2, 1, 8),
            (0, 6, 6),
            (0, 9, 9),
            (1, 6, 12),
            (0, 10, 10),
            (0, 11, 12),
        ]);
        assert_eq!(ranges(&chain, 12), [(9, 1, 8), (1, 6, 12)]);
        assert_eq!(ranges(&chain, 10), [(9, 1, 8), (0, 9, 9), (0, 10, 10)]);
        assert_eq!(ranges(&chain, 6), [(9, 1, 5), (0, 6, 6)]);
        assert!(chain.missing().is_empty());
    }

    #[test]
    fn an_object_that_follows_two_states_leads_on_from_the_earlier_one() {
        let chain = chain(&[(0, 6, 6), (0, 7, 8), (0, 9, 9), (1, 6, 9), (0, 10, 10), (2, 6, 12)]);
        let following = |txid, or| chain.following(txid, or).map(|object| (object.min, object.max));
        assert_eq!(following(5, None), Some((6, 6)));
        assert_eq!(following(8, None), Some((9, 9)));
        // A step from 5 to 8 was cut short, or a move from 8 back to 5.
        assert_eq!((following(5, Some(8)), following(8, Some(5))), (Some((6, 9)), Some((6, 9))));
        assert_eq!((following(9, Some(5)), following(9, Some(8))), (Some((6, 9)), Some((9, 9))));
        assert_eq!((following(10, Some(5)), following(10, Some(4))), (Some((6, 12)), None));
    }

    #[test]
    fn a_snapshot_after_a_gap_is_a_state_again() {
        let chain = chain(&[(0, 1, 1), (0, 2, 3), (0, 5, 6), (9, 1, 6), (0, 7, 7)]);
        assert_eq!(chain.states(), [1, 3, 6, 7]);
        assert!(chain.missing().is_empty());
    }

    #[test]
    fn what_is_not_below_the_limit_does_not_count() {
        let objects = [object(9, 1, 5), object(0, 6, 7), object(0, 8, 9), object(9, 1, 9)];
        assert_eq!(Chain::new(&objects, Some(8), None).states(), [5, 7]);
        assert_eq!(Chain::new(&objects, Some(9), None).states(), [5, 7]);
    }

    #[test]
    fn objects_follow_on_a_state_that_is_made_elsewhere() {
        let objects = [object(0, 6, 7), object(0, 8, 9)];
        let chain = Chain::new(&objects, None, Some(5));
        assert_eq!(chain.states(), [5, 7, 9]);
        assert_eq!(chain.objects_of(9), (true, objects.to_vec()));
        assert_eq!(chain.objects_of(5), (true, Vec::new()));
        let with_snapshot = [&objects[..], &[object(9, 1, 7)]].concat();
        assert_eq!(
            Chain::new(&with_snapshot, None, Some(5)).objects_of(9),
            (false, vec![object(9, 1, 7), objects[1]])
        );
    }
}
