//! Ranges of keys, which a scan reads piece by piece from either end.

use std::ops::{Bound, Deref};

/// A bound of a requested range.
pub(crate) type Edge<'a> = Bound<&'a [u8]>;
/// A requested range.
pub(crate) type Edges<'a> = (Edge<'a>, Edge<'a>);

pub(crate) fn edge<K: Deref<Target = [u8]>>(bound: &Bound<K>) -> Edge<'_> {
    bound.as_ref().map(|key| &**key)
}

/// Returns the bound that an adjacent range has at the same key, on its other side. If one range ends with `bound`, the
/// next one begins with the result, and the other way round.
pub(crate) fn beside<K>(bound: Bound<K>) -> Bound<K> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Returns whether a range that ends with `to` may contain `key` or a larger key.
pub(crate) fn is_below(key: &[u8], to: Edge<'_>) -> bool {
    match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    }
}

/// Returns whether a range that begins with `from` may contain a key below `key`.
pub(crate) fn is_above(key: &[u8], from: Edge<'_>) -> bool {
    match from {
        Bound::Included(from) | Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    }
}

/// Returns whether a range that began at `before` and now begins at `now` has become smaller. If it has not, rows are
/// out of order. The caller then has to stop, because the scan would never end.
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

/// Like `is_later`, for the end of a range.
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
