//! Chooses for each page one of two ways to write it (paper, section 5.2.3). A page is *written through* with
//! non-temporal stores, or *written back* with stores to the cache and a later flush.
//!
//! Writing back flushes a line only once at each sync, however often the line was stored before. So writing through may
//! cost less only for a page that is written once between syncs. As in the paper, the policy at first writes back every
//! page, and counts its writes. The paper then writes through the pages that were written less often than the average.
//!
//! The paper assumes that this is the cheaper way for these pages. It also treats a page as hot if every transaction
//! writes it once, although writing that page back saves no flush. The policy of this module writes a page through only
//! if that costs less. To determine the costs, it times both ways, and counts how many lines of the page were stored
//! and how many had to be flushed. The paper's rule is available for comparison ([`HomeSync::Average`]). Because pages
//! become hot and cold, the policy repeats its measurements.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::engine::media::HomeSync;
use crate::shared::past_cache::Price;

/// The number of writes in each half of a sampling. In the first half the home writes all pages back, in the second
/// half it writes them through.
const SAMPLE_WRITES: u32 = 128;
/// Under the paper's rule, a sampling counts this many writes. Some hundred transactions make that many writes, enough
/// for a meaningful average.
const AVERAGE_WRITES: u32 = 2048;
/// The pause between two samplings: this many times the writes in one half of a sampling, or, under the paper's rule,
/// in a whole one. A sampling writes some pages in the more expensive way. With these pauses, that concerns one of 64
/// writes, or one of 16 under the paper's rule.
const INTERVAL: u32 = 62;
const AVERAGE_INTERVAL: u32 = 15;
/// The most pages that the policy counts. It needs a limit because a checkpoint may write all pages before it syncs.
const MOST_PAGES: usize = 16 << 10;

/// The rule that chooses how to write a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The cheaper way for each page.
    Cheapest,
    /// The paper's rule.
    Average,
}

/// What the policy has learnt from the writes of pages.
#[derive(Debug)]
pub(super) struct Policy {
    rule: Rule,
    /// The number of writes since the phase began.
    writes: u32,
    phase: Phase,
    pages: HashMap<u64, Lines>,
    /// The prices of storing lines through the cache, and of flushing these lines.
    back: (Price, Price),
    /// The prices of non-temporal stores, and of the sync after these stores.
    through: (Price, Price),
    /// The number of cache lines that were stored in this phase and that no sync has made durable yet.
    unsynced: u64,
}

/// What the policy has counted for a page while the home wrote the page back.
#[derive(Debug, Default, Clone, Copy)]
struct Lines {
    writes: u64,
    stored: u64,
    flushed: u64,
}

#[derive(Debug)]
enum Phase {
    /// The home writes back all pages, and the policy counts their lines.
    WriteBack,
    /// The home writes through all pages, and the policy times the writes.
    WriteThrough,
    /// The policy has decided. `through` says whether the home writes a page through, except for the pages in `others`,
    /// which it writes in the opposite way.
    Decided { through: bool, others: HashSet<u64> },
}

impl Policy {
    /// Returns a policy, if the setting leaves the choice for each page to a policy.
    pub(super) fn of(sync: HomeSync) -> Option<Self> {
        match sync {
            HomeSync::Adaptive => Some(Self::new(Rule::Cheapest)),
            HomeSync::Average => Some(Self::new(Rule::Average)),
            HomeSync::WriteBack | HomeSync::WriteThrough => None,
        }
    }

    fn new(rule: Rule) -> Self {
        Self {
            rule,
            writes: 0,
            phase: Phase::WriteBack,
            pages: HashMap::new(),
            back: Default::default(),
            through: Default::default(),
            unsynced: 0,
        }
    }

    /// Returns whether to write a page with non-temporal stores.
    pub(super) fn is_through(&self, page: u64) -> bool {
        match &self.phase {
            Phase::WriteBack => false,
            Phase::WriteThrough => true,
            Phase::Decided { through, others } => *through != others.contains(&page),
        }
    }

    /// Returns whether the caller has to time writes and syncs.
    pub(super) fn is_timed(&self) -> bool {
        self.rule == Rule::Cheapest && !matches!(self.phase, Phase::Decided { .. })
    }

    /// Records a write of a page. It stored `stored` cache lines. Of these, `fresh` lines need a flush now but did not
    /// need one before.
    pub(super) fn wrote(&mut self, page: u64, stored: u64, fresh: u64, elapsed: Duration) {
        self.writes = self.writes.saturating_add(1);
        match &self.phase {
            Phase::WriteBack => {
                if self.pages.len() < MOST_PAGES || self.pages.contains_key(&page) {
                    let lines = self.pages.entry(page).or_default();
                    lines.writes += 1;
                    lines.stored += stored;
                    lines.flushed += fresh;
                }
                self.back.0.paid(stored, elapsed);
                self.unsynced += fresh;
            }
            Phase::WriteThrough => {
                self.through.0.paid(stored, elapsed);
                self.unsynced += stored;
            }
            Phase::Decided { .. } => {}
        }
    }

    /// Records a sync that took `elapsed` and made all writes durable. A phase ends only at a sync, so that each phase measures
    /// only its own writes.
    pub(super) fn synced(&mut self, elapsed: Duration) {
        let lines = std::mem::take(&mut self.unsynced);
        match self.phase {
            Phase::WriteBack => self.back.1.paid(lines, elapsed),
            Phase::WriteThrough => self.through.1.paid(lines, elapsed),
            Phase::Decided { .. } => {}
        }
        let (sample, interval) = match self.rule {
            Rule::Cheapest => (SAMPLE_WRITES, INTERVAL),
            Rule::Average => (AVERAGE_WRITES, AVERAGE_INTERVAL),
        };
        match (&self.phase, self.rule) {
            (Phase::WriteBack, Rule::Cheapest) if self.writes >= sample => {
                (self.phase, self.writes) = (Phase::WriteThrough, 0);
            }
            (Phase::WriteBack, Rule::Average) if self.writes >= sample => {
                let hot = at_least_average(&self.pages);
                self.decide(true, hot);
            }
            (Phase::WriteThrough, _) if self.writes >= sample => {
                let (through, others) = self.cheapest();
                self.decide(through, others);
            }
            (Phase::Decided { .. }, _) if self.writes >= interval * sample => *self = Self::new(self.rule),
            _ => {}
        }
    }

    fn decide(&mut self, through: bool, others: HashSet<u64>) {
        *self = Self { phase: Phase::Decided { through, others }, ..Self::new(self.rule) };
    }

    /// Returns whether writing through is cheaper for a page that is written once between syncs. Also returns the pages
    /// for which the other way is cheaper.
    fn cheapest(&self) -> (bool, HashSet<u64>) {
        let price = |price: &Price| price.per_line().unwrap_or(0.0);
        let (store, flush) = (price(&self.back.0), price(&self.back.1));
        let stream = price(&self.through.0) + price(&self.through.1);
        let is_through = |lines: &Lines| {
            lines.stored as f64 * stream < lines.stored as f64 * store + lines.flushed as f64 * flush
        };
        let through = is_through(&Lines { writes: 1, stored: 1, flushed: 1 });
        let others = self.pages.iter().filter(|(_, lines)| lines.stored > 0 && is_through(lines) != through);
        (through, others.map(|(page, _)| *page).collect())
    }
}

/// Returns the pages that were written at least as often as the average of all pages that were written.
fn at_least_average(pages: &HashMap<u64, Lines>) -> HashSet<u64> {
    let writes: u64 = pages.values().map(|lines| lines.writes).sum();
    let count = pages.len() as u64;
    let hot = pages.iter().filter(|(_, lines)| lines.writes * count >= writes);
    hot.map(|(page, _)| *page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    /// Returns how many pages the policy writes in the other way than most pages; `None` before it has decided.
    fn exceptions(policy: &Policy) -> Option<usize> {
        match &policy.phase {
            Phase::Decided { others, .. } => Some(others.len()),
            Phase::WriteBack | Phase::WriteThrough => None,
        }
    }

    /// Reports one round to a policy: writes of four lines each, and a sync. Page 7 is written four times.
    fn round(policy: &mut Policy, number: u64, store: u32, flush: u32, stream: u32) {
        let pages = [7, 7, 7, 7, 1000 + number];
        let mut to_flush = 0;
        for (index, page) in pages.into_iter().enumerate() {
            if policy.is_through(page) {
                policy.wrote(page, 4, 0, 4 * stream * NANOSECOND);
            } else {
                let fresh = if index == 0 || page != 7 { 4 } else { 0 };
                to_flush += fresh;
                policy.wrote(page, 4, u64::from(fresh), 4 * store * NANOSECOND);
            }
        }
        policy.synced(to_flush * flush * NANOSECOND);
    }

    fn decided(store: u32, flush: u32, stream: u32) -> Policy {
        let mut policy = Policy::new(Rule::Cheapest);
        let mut number = 0;
        while exceptions(&policy).is_none() {
            round(&mut policy, number, store, flush, stream);
            number += 1;
        }
        policy
    }

    #[test]
    fn each_page_goes_the_way_that_costs_less() {
        // A non-temporal store costs half as much as a flush. So writing back pays only for a page that the home writes
        // several times between two syncs.
        let policy = decided(10, 500, 250);
        assert!(policy.is_through(1001) && policy.is_through(1 << 40) && !policy.is_through(7));
        // A non-temporal store costs twice as much as a flush, so nothing is written through.
        let policy = decided(10, 500, 1000);
        assert!(!policy.is_through(1001) && !policy.is_through(1 << 40) && !policy.is_through(7));
        // A non-temporal store costs next to nothing, so everything is written through.
        let policy = decided(10, 500, 5);
        assert!(policy.is_through(1001) && policy.is_through(1 << 40) && policy.is_through(7));
    }

    #[test]
    fn what_was_found_is_found_anew_after_a_while() {
        let mut policy = decided(10, 500, 250);
        let mut rounds = 0;
        while exceptions(&policy).is_some() {
            round(&mut policy, rounds, 10, 500, 1000);
            rounds += 1;
        }
        assert!(rounds * 5 >= u64::from(INTERVAL * SAMPLE_WRITES), "{rounds} rounds");
        assert!(!policy.is_through(1001), "everything is written back at first");
    }

    #[test]
    fn the_papers_rule_writes_back_what_is_written_at_least_as_often_as_the_average() {
        let mut policy = Policy::new(Rule::Average);
        // Half of the writes go to two pages, and each of the other writes to a page of its own.
        for n in 0..AVERAGE_WRITES {
            let page = if n % 2 == 0 { u64::from(n / 2 % 2) } else { 100 + u64::from(n) };
            assert!(!policy.is_through(page) && !policy.is_timed());
            policy.wrote(page, 1, 1, Duration::ZERO);
        }
        policy.synced(Duration::ZERO);
        assert_eq!(exceptions(&policy), Some(2));
        assert!(!policy.is_through(0) && !policy.is_through(1));
        assert!(policy.is_through(101), "a cold page");
        assert!(policy.is_through(1 << 40), "one that was never written");
        for _ in 0..AVERAGE_INTERVAL * AVERAGE_WRITES {
            policy.wrote(7, 1, 1, Duration::ZERO);
        }
        policy.synced(Duration::ZERO);
        assert!(!policy.is_through(7), "sampled anew");
    }

    #[test]
    fn pages_that_are_written_alike_are_all_written_back_by_the_papers_rule() {
        let mut policy = Policy::new(Rule::Average);
        for n in 0..AVERAGE_WRITES {
            policy.wrote(u64::from(n % 64), 1, 1, Duration::ZERO);
        }
        policy.synced(Duration::ZERO);
        assert_eq!(exceptions(&policy), Some(64));
    }

    #[test]
    fn what_is_counted_has_a_bound() {
        let mut policy = Policy::new(Rule::Cheapest);
        for page in 0..2 * MOST_PAGES as u64 {
            policy.wrote(page, 1, 1, NANOSECOND);
        }
        assert_eq!(policy.pages.len(), MOST_PAGES);
    }
}
