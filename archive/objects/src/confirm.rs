//! Decides when the archive really lacks what a listing does not show.
//!
//! A listing takes several requests. Meanwhile other processes upload, take the archive over and prune. For example, a
//! listing reads one prefix before a primary writes transactions there, and another prefix after pruning has deleted
//! the same transactions there. This listing shows a gap that the archive never had. So this code believes in a gap
//! only if a second listing, which began after the end of the first, shows the same gap.

use super::error::ArchiveError;

/// The largest number of listings before this code gives up. Two listings in a row differ only if somebody has pruned
/// the archive or taken it over in between, and both are rare.
const LISTS: u32 = 8;

/// Calls `list` until a listing is complete, or until two listings in a row have the same gap. `lacks` describes what a
/// listing lacks; it returns `None` if the listing is complete.
///
/// # Errors
///
/// Those of `list`; [`ArchiveError::Changing`] if no two lists in a row agree.
pub async fn confirmed<T>(
    mut list: impl AsyncFnMut() -> Result<T, ArchiveError>,
    lacks: impl Fn(&T) -> Option<String>,
) -> Result<T, ArchiveError> {
    let mut before = None;
    for _ in 0..LISTS {
        let found = list().await;
        let lack = match &found {
            Ok(found) => lacks(found),
            Err(error) => error.is_lack().then(|| error.to_string()),
        };
        if lack.is_none() || lack == before {
            return found;
        }
        before = lack;
    }
    Err(ArchiveError::Changing)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Runs `confirmed` with these listings, and returns the result and the number of listings. `Some(n)` stands for a
    /// listing in which all transactions from `n` on are missing.
    fn after(lists: &[Option<u64>]) -> (Option<Result<usize, String>>, usize) {
        let mut listed = 0;
        let list = async || {
            listed += 1;
            match lists[(listed - 1) % lists.len()] {
                Some(first) => Err(ArchiveError::Gap { first, last: 9, had: None }),
                None => Ok(listed),
            }
        };
        let found = confirmed(list, |_| None).now_or_never();
        (found.map(|found| found.map_err(|error| error.to_string())), listed)
    }

    #[test]
    fn a_gap_is_believed_when_two_lists_in_a_row_show_it() {
        assert_eq!(after(&[None]), (Some(Ok(1)), 1));
        assert_eq!(after(&[Some(1), None]), (Some(Ok(2)), 2));
        assert_eq!(after(&[Some(1), Some(2), None]), (Some(Ok(3)), 3));
        let (found, lists) = after(&[Some(1), Some(2), Some(2), None]);
        assert!(found.unwrap().unwrap_err().starts_with("transactions 2 to 9 are missing"));
        assert_eq!(lists, 3);
    }

    #[test]
    fn lists_that_never_agree_end() {
        let (found, lists) = after(&[Some(1), Some(2)]);
        assert!(found.unwrap().unwrap_err().contains("try again"));
        assert_eq!(lists, LISTS as usize);
    }

    #[test]
    fn other_errors_are_said_at_once() {
        let mut lists = 0;
        let list = async || {
            lists += 1;
            Err::<(), _>(ArchiveError::Task)
        };
        assert!(matches!(confirmed(list, |()| None).now_or_never(), Some(Err(ArchiveError::Task))));
        assert_eq!(lists, 1);
    }
}
