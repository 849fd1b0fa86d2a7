//! Locked ranges of keys of one table. Each owner's ranges are sorted, and ranges that touch each other are merged. A
//! request checks each owner once. Such a check takes time logarithmic in the number of that owner's ranges.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use rustc_hash::FxHashMap;

use super::key::Key;

/// A range of row keys.
pub(crate) type KeyRange = (Bound<Key>, Bound<Key>);

/// Returns whether the range contains no key. `BTreeMap::range` would panic for some empty ranges, so callers exclude
/// them first.
pub(crate) fn is_empty(range: &KeyRange) -> bool {
    match (&range.0, &range.1) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
            from >= to
        }
        _ => false,
    }
}

/// A place between keys. The key `k` lies between `Before(k)` and `After(k)`. Every range extends from one place to
/// another, so two ranges that touch have a place in common, and can be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    First,
    Before(Key),
    After(Key),
    Last,
}

#[cfg(test)]
thread_local! {
    /// The number of comparisons of places that this thread has made.
    static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        match (self, other) {
            (Self::First, Self::First) | (Self::Last, Self::Last) => Ordering::Equal,
            (Self::First, _) | (_, Self::Last) => Ordering::Less,
            (_, Self::First) | (Self::Last, _) => Ordering::Greater,
            (Self::Before(a) | Self::After(a), Self::Before(b) | Self::After(b)) => {
                a.cmp(b).then(matches!(self, Self::After(_)).cmp(&matches!(other, Self::After(_))))
            }
        }
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the places at which a range begins and ends.
fn places(range: &KeyRange) -> (Place, Place) {
    let from = match &range.0 {
        Bound::Included(key) => Place::Before(key.clone()),
        Bound::Excluded(key) => Place::After(key.clone()),
        Bound::Unbounded => Place::First,
    };
    let to = match &range.1 {
        Bound::Included(key) => Place::After(key.clone()),
        Bound::Excluded(key) => Place::Before(key.clone()),
        Bound::Unbounded => Place::Last,
    };
    (from, to)
}

/// Ranges that do not touch each other, as a map from the place where a range begins to the place where it ends.
#[derive(Debug, Default)]
struct Merged(BTreeMap<Place, Place>);

impl Merged {
    /// Returns whether one of the ranges covers everything between two places.
    fn has(&self, from: &Place, to: &Place) -> bool {
        self.0.range(..=from).next_back().is_some_and(|(_, end)| to <= end)
    }

    fn add(&mut self, mut from: Place, mut to: Place) {
        // In the common case, a scan extends its last range, which touches no range before it. Then nothing has to be
        // merged.
        if let Some((_, end)) =
            self.0.range_mut(..=&to).next_back().filter(|(begin, end)| **begin <= from && **end >= from)
        {
            if *end < to {
                *end = to;
            }
            return;
        }
        // Each range that is removed here was added by an earlier call. So this loop runs at most once per call on
        // average.
        while let Some((begin, end)) = self.0.range(..=&to).next_back().filter(|(_, end)| **end >= from) {
            from = from.min(begin.clone());
            to = to.max(end.clone());
            let begin = begin.clone();
            self.0.remove(&begin);
        }
        self.0.insert(from, to);
    }
}

/// The locked ranges of a table, by owner.
#[derive(Debug, Default)]
pub(super) struct Ranges(FxHashMap<u64, Merged>);

impl Ranges {
    /// Returns whether the owner holds every key of a range.
    pub(super) fn has(&self, owner: u64, range: &KeyRange) -> bool {
        let (from, to) = places(range);
        self.0.get(&owner).is_some_and(|merged| merged.has(&from, &to))
    }

    /// Returns whether one of the owner's ranges contains this key.
    pub(super) fn covers(&self, owner: u64, key: &Key) -> bool {
        let (from, to) = (Place::Before(key.clone()), Place::After(key.clone()));
        self.0.get(&owner).is_some_and(|merged| merged.has(&from, &to))
    }

    /// Returns the other owners that have locked a range with this key in it.
    pub(super) fn others(&self, owner: u64, key: &Key) -> impl Iterator<Item = u64> {
        let (from, to) = (Place::Before(key.clone()), Place::After(key.clone()));
        let others = self.0.iter().filter(move |(other, _)| **other != owner);
        others.filter(move |(_, merged)| merged.has(&from, &to)).map(|(other, _)| *other)
    }

    /// Adds a range. Returns whether it is the owner's first one. The caller records only the first range in the
    /// owner's list of locks, because all of an owner's ranges are released together.
    pub(super) fn add(&mut self, owner: u64, range: &KeyRange) -> bool {
        let is_first = !self.0.contains_key(&owner);
        let merged = self.0.entry(owner).or_default();
        if !is_empty(range) {
            let (from, to) = places(range);
            merged.add(from, to);
        }
        is_first
    }

    /// Releases all ranges of an owner.
    pub(super) fn release(&mut self, owner: u64) {
        self.0.remove(&owner);
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A random number generator. The schedule explorer compiles this file too, and has no crate for random numbers.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    fn key(n: u32) -> Key {
        Key::from(n.to_be_bytes().as_slice())
    }

    /// One transaction makes small scans, in ascending, descending and random order. The last scans cost about as much
    /// as the first.
    #[test]
    fn inv36_a_range_costs_the_logarithm_of_how_many_are_held() {
        const MANY: u32 = 16_384;
        let orders: [fn(u32) -> u32; 3] = [|n| n, |n| MANY - n, |n| n.wrapping_mul(40_503) % MANY];
        for order in orders {
            let mut ranges = Ranges::default();
            let mut most = 0;
            for n in 0..MANY {
                let at = order(n) * 10;
                let range = (Bound::Included(key(at)), Bound::Excluded(key(at + 3)));
                let before = COMPARED.get();
                assert!(!ranges.has(1, &range));
                assert_eq!(ranges.add(1, &range), n == 0);
                assert!(
                    ranges.has(1, &range)
                        && ranges.covers(1, &key(at + 2))
                        && !ranges.covers(1, &key(at + 3))
                );
                assert_eq!(ranges.others(2, &key(at)).collect::<Vec<_>>(), [1]);
                most = most.max(COMPARED.get() - before);
            }
            // A search visits about twenty nodes of eleven keys, so 600 comparisons are enough. Without merging, each
            // range took more than 16,000.
            assert!(most < 600, "{most} comparisons for one range");
        }
        // Adjacent ranges of one scan merge into a single range, so searching them costs nearly nothing.
        let mut ranges = Ranges::default();
        for n in 0..MANY {
            ranges.add(1, &(Bound::Included(key(n)), Bound::Excluded(key(n + 1))));
        }
        assert_eq!(ranges.0.get(&1).map(|merged| merged.0.len()), Some(1));
    }

    /// Owners take and release ranges of all kinds. The test compares the result with a plain list of the ranges, in
    /// which it looks at every entry.
    #[test]
    fn inv36_merged_ranges_hold_what_a_list_of_them_holds() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let mut ranges = Ranges::default();
            let mut list: Vec<(u64, KeyRange)> = Vec::new();
            let bound = |random: &mut Random| match random.below(8) {
                0 => Bound::Unbounded,
                1..4 => Bound::Included(key(random.below(24) as u32 * 2)),
                _ => Bound::Excluded(key(random.below(24) as u32 * 2)),
            };
            for _ in 0..60 {
                let owner = random.below(3);
                if random.below(12) == 0 {
                    ranges.release(owner);
                    list.retain(|(held, _)| *held != owner);
                }
                let range = (bound(&mut random), bound(&mut random));
                let is_first = !list.iter().any(|(held, _)| *held == owner);
                assert_eq!(ranges.add(owner, &range), is_first, "seed {seed}");
                list.push((owner, range));
                for n in 0..48 {
                    let key = key(n);
                    let holds = |owner: u64| {
                        list.iter().any(|(held, range)| {
                            *held == owner && !is_empty(range) && std::ops::RangeBounds::contains(range, &key)
                        })
                    };
                    let mut others: Vec<u64> = ranges.others(0, &key).collect();
                    others.sort_unstable();
                    let expected: Vec<u64> = (1..3).filter(|owner| holds(*owner)).collect();
                    assert_eq!(others, expected, "seed {seed}, key {n}, {list:?}");
                    for owner in 0..3 {
                        assert_eq!(
                            ranges.covers(owner, &key),
                            holds(owner),
                            "seed {seed}, key {n}, {list:?}"
                        );
                    }
                }
                // An owner that holds a whole range must hold each key in it.
                let asked = (bound(&mut random), bound(&mut random));
                if !is_empty(&asked) && ranges.has(owner, &asked) {
                    for n in 0..48 {
                        let is_in = std::ops::RangeBounds::contains(&asked, &key(n));
                        assert!(!is_in || ranges.covers(owner, &key(n)), "seed {seed}, {asked:?}, {list:?}");
                    }
                }
            }
        }
    }
}
