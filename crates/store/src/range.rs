//! Ranges of keys that are read piece by piece from either end.

use std::ops::{Bound, Deref};

/// A bound of a range, as it is asked for.
pub(crate) type Edge<'a> = Bound<&'a [u8]>;
/// A range, as it is asked for.
pub(crate) type Edges<'a> = (Edge<'a>, Edge<'a>);

pub(crate) fn edge<K: Deref<Target = [u8]>>(bound: &Bound<K>) -> Edge<'_> {
    bound.as_ref().map(|key| &**key)
}

/// Where the range begins that is beside one that ends so, or the other way round.
pub(crate) fn beside<K>(bound: Bound<K>) -> Bound<K> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Whether there may be keys from this one on in a range that ends so.
pub(crate) fn is_below(key: &[u8], to: Edge<'_>) -> bool {
    match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    }
}

/// Whether there may be keys below this one in a range that begins so.
pub(crate) fn is_above(key: &[u8], from: Edge<'_>) -> bool {
    match from {
        Bound::Included(from) | Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    }
}

/// Whether a range that begins so `now` has become smaller. Rows that are out of order would keep a scan where it is.
pub(crate) fn is_later(before: Edge<'_>, now: Edge<'_>) -> bool {
    match (before, now) {
        (_, Bound::Unbounded) => false,
        (Bound::Unbounded, _) => true,
        (Bound::Included(before), Bound::Excluded(now)) => before <= now,
        (Bound::Included(before) | Bound::Excluded(before), Bound::Included(now) | Bound::Excluded(now)) => {
            before < now
        }
    }
}

/// The same at the other end.
pub(crate) fn is_earlier(now: Edge<'_>, before: Edge<'_>) -> bool {
    match (now, before) {
        (Bound::Unbounded, _) => false,
        (_, Bound::Unbounded) => true,
        (Bound::Excluded(now), Bound::Included(before)) => now <= before,
        (Bound::Included(now) | Bound::Excluded(now), Bound::Included(before) | Bound::Excluded(before)) => {
            now < before
        }
    }
}
