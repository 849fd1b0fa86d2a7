//! Compares the cell pointers of two images of a page. They tell cheaply whether it can pay to compare the cells.

use super::btree::Tree;
use crate::diff;

/// Up to this many pointers between the common beginning and the common end of the two pointer arrays count as few.
const FEW: usize = 4;

/// How the cells of a page were rearranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rearranged {
    /// No cell was rearranged: cells at most changed in place or were added after all others. Also if the page is not a
    /// b-tree page.
    Hardly,
    /// A few cells were inserted among others, were deleted, or moved to another place.
    Few,
    /// Most cells have another place or another slot.
    Many,
}

/// Compares only the cell pointers of two pages of the same size.
pub(super) fn rearranged(old: &[u8], new: &[u8], header: usize) -> Rearranged {
    let (Some(before), Some(after)) = (Tree::new(old, header), Tree::new(new, header)) else {
        return Rearranged::Hardly;
    };
    let (from, to) = (before.pointer_bytes(), after.pointer_bytes());
    if before.kind() != after.kind() || to.starts_with(from) {
        return Rearranged::Hardly;
    }
    let both = from.len().min(to.len());
    let first = diff::next_difference(&from[..both], &to[..both], 0).unwrap_or(both) / 2;
    let last = diff::common_suffix(&from[2 * first..], &to[2 * first..]) / 2;
    let between = from.len().max(to.len()) / 2 - first - last;
    if between <= FEW { Rearranged::Few } else { Rearranged::Many }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table leaf with these pointers.
    fn leaf(pointers: &[u16]) -> Vec<u8> {
        let mut page = vec![0; 4096];
        page[0] = 13;
        page[4] = pointers.len() as u8;
        page[5..7].copy_from_slice(&1000_u16.to_be_bytes());
        for (place, pointer) in page[8..].chunks_exact_mut(2).zip(pointers) {
            place.copy_from_slice(&pointer.to_be_bytes());
        }
        page
    }

    fn seen(old: &[u16], new: &[u16]) -> Rearranged {
        rearranged(&leaf(old), &leaf(new), 0)
    }

    #[test]
    fn cells_at_the_end_and_in_their_places_are_not_looked_at() {
        assert_eq!(seen(&[4000, 3900], &[4000, 3900]), Rearranged::Hardly);
        assert_eq!(seen(&[4000, 3900], &[4000, 3900, 3800, 3700]), Rearranged::Hardly);
        assert_eq!(seen(&[], &[4000]), Rearranged::Hardly);
        assert_eq!(rearranged(&[9; 512], &[8; 512], 0), Rearranged::Hardly);
        let mut other = leaf(&[4000]);
        other[0] = 10;
        assert_eq!(rearranged(&leaf(&[4000, 3900]), &other, 0), Rearranged::Hardly);
    }

    #[test]
    fn few_that_came_went_or_were_put_elsewhere_are() {
        let old = [4000, 3900, 3800, 3700, 3600, 3500];
        for new in [
            &[3900, 3800, 3700, 3600, 3500][..],
            &[4000, 3900, 3800, 3700, 3600],
            &[4000, 3900, 3400, 3800, 3700, 3600, 3500],
            &[4000, 3900, 3400, 3700, 3600, 3500],
            &[4000, 3500],
        ] {
            assert_eq!(seen(&old, new), Rearranged::Few, "{new:?}");
        }
        assert_eq!(seen(&old, &[4000]), Rearranged::Many);
        assert_eq!(seen(&old, &[4001, 3901, 3801, 3701, 3601, 3501]), Rearranged::Many);
    }
}
