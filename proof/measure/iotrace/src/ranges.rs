//! Calculates with sets of the bytes on a device. A set is a sorted list of ranges. A range goes from its
//! first byte up to its end; the byte at the end is not part of it.

/// A range: the first byte and the end.
pub type Range = (u64, u64);

/// Sorts ranges, and joins those that touch or overlap.
pub fn normalise(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.retain(|(from, to)| from < to);
    ranges.sort_unstable();
    let mut joined: Vec<Range> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// Returns the intersection of a range with sorted ranges.
pub fn common(range: Range, with: &[Range]) -> Vec<Range> {
    let first = with.partition_point(|(_, to)| *to <= range.0);
    let touching = with[first..].iter().take_while(|(from, _)| *from < range.1);
    touching.map(|(from, to)| (range.0.max(*from), range.1.min(*to))).collect()
}

/// Returns the parts of a range that are in none of the sorted ranges.
pub fn without(range: Range, other: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    let mut at = range.0;
    for (from, to) in common(range, other) {
        if at < from {
            left.push((at, from));
        }
        at = to;
    }
    if at < range.1 {
        left.push((at, range.1));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_cut_and_subtracted() {
        assert_eq!(normalise(vec![(8, 9), (0, 4), (4, 6), (5, 5), (2, 3)]), [(0, 6), (8, 9)]);
        let with = [(0, 6), (8, 9), (20, 30)];
        assert_eq!(common((4, 25), &with), [(4, 6), (8, 9), (20, 25)]);
        assert_eq!(without((4, 25), &with), [(6, 8), (9, 20)]);
        assert_eq!(without((21, 22), &with), []);
        assert_eq!(without((6, 8), &with), [(6, 8)]);
        assert_eq!(common((6, 8), &with), []);
        assert_eq!(without((30, 31), &with), [(30, 31)]);
    }
}
