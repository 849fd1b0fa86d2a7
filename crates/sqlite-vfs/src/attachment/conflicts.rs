//! Statistics of this process since it attached the log: the pages on which transactions of other connections
//! overtook its own transactions, and how often each kind of event has happened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duralite_wal::metrics::Counter;

/// A page, and the conflicts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotPage {
    /// The number of this process's transactions that could not commit because another connection had changed
    /// this page.
    pub count: u64,
    pub page: u32,
    /// The table, the index or the like to which the page belonged when a connection last looked for its
    /// owner. `None` if the owner is not known.
    pub owner: Option<String>,
}

impl HotPage {
    /// Returns the owner of the page, or `unknown`.
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or("unknown")
    }
}

/// The largest number of pages whose conflicts a process remembers.
const MOST: usize = 64;
/// A page is hot for so long after a conflict on it. With random keys the conflicts on one page are seconds
/// apart, and on a row that all transactions update they are milliseconds apart.
const HOT: Duration = Duration::from_millis(100);

/// The conflicts of this process.
#[derive(Default)]
pub struct Conflicts {
    /// The pages, each with the time of its last conflict.
    pages: Mutex<Vec<(HotPage, Instant)>>,
    events: [AtomicU64; Counter::ALL.len()],
}

impl Conflicts {
    fn pages(&self) -> MutexGuard<'_, Vec<(HotPage, Instant)>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a conflict on a page, and returns what is known about the page. If the list is full, a new page
    /// takes the place of the page with the fewest conflicts.
    pub fn add(&self, page: u32, now: Instant) -> HotPage {
        let mut pages = self.pages();
        if let Some((hot, last)) = pages.iter_mut().find(|(hot, _)| hot.page == page) {
            hot.count += 1;
            *last = now;
            return hot.clone();
        }
        if pages.len() >= MOST
            && let Some(least) =
                pages.iter().enumerate().min_by_key(|(_, (hot, _))| hot.count).map(|(at, _)| at)
        {
            pages.remove(least);
        }
        let hot = HotPage { count: 1, page, owner: None };
        pages.push((hot.clone(), now));
        hot
    }

    /// Returns whether there was a conflict on this page a moment ago.
    pub fn is_hot(&self, page: u32, now: Instant) -> bool {
        self.pages().iter().any(|(hot, last)| hot.page == page && now.saturating_duration_since(*last) < HOT)
    }

    /// Notes the owner of a page.
    pub fn set_owner(&self, page: u32, owner: Option<&str>) {
        if let Some((hot, _)) = self.pages().iter_mut().find(|(hot, _)| hot.page == page) {
            hot.owner = owner.map(ToOwned::to_owned);
        }
    }

    /// Returns the remembered pages, those with the most conflicts first.
    pub fn list(&self) -> Vec<HotPage> {
        let mut list: Vec<HotPage> = self.pages().iter().map(|(hot, _)| hot.clone()).collect();
        list.sort_by_key(|hot| (std::cmp::Reverse(hot.count), hot.page));
        list
    }

    /// Counts an event of this process.
    pub(super) fn event(&self, counter: Counter) {
        if let Some(count) = self.events.get(counter as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often this process has counted an event since it attached the log.
    pub fn events(&self, counter: Counter) -> u64 {
        self.events.get(counter as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_pages_come_first_and_keep_their_places() {
        let conflicts = Conflicts::default();
        assert_eq!(conflicts.list(), []);
        let now = Instant::now();
        for page in [7, 5, 9, 5] {
            conflicts.add(page, now);
        }
        conflicts.set_owner(5, Some("table t"));
        conflicts.set_owner(8, Some("nobody asks"));
        let list = conflicts.list();
        let seen: Vec<_> = list.iter().map(|hot| (hot.count, hot.page, hot.owner.as_deref())).collect();
        assert_eq!(seen, [(2, 5, Some("table t")), (1, 7, None), (1, 9, None)]);
        for page in 100..1000 {
            assert_eq!(conflicts.add(page, now).count, 1);
        }
        let list = conflicts.list();
        assert_eq!((list.len(), list[0].page, list[0].count), (MOST, 5, 2));
        assert!(list.iter().any(|hot| hot.page == 999), "the newest is there");
    }

    #[test]
    fn a_page_is_hot_for_a_moment_after_its_last_conflict() {
        let (conflicts, start) = (Conflicts::default(), Instant::now());
        assert!(!conflicts.is_hot(5, start));
        conflicts.add(5, start);
        assert!(conflicts.is_hot(5, start + HOT / 2) && !conflicts.is_hot(7, start));
        assert!(!conflicts.is_hot(5, start + HOT));
        conflicts.add(5, start + HOT);
        assert!(conflicts.is_hot(5, start + HOT * 3 / 2));
    }

    #[test]
    fn events_are_counted_by_kind() {
        let conflicts = Conflicts::default();
        conflicts.event(Counter::Merged);
        conflicts.event(Counter::Merged);
        assert_eq!(conflicts.events(Counter::Merged), 2);
        assert_eq!(conflicts.events(Counter::SnapshotsMoved), 0);
    }
}
