//! Free pages that one connection has for itself, so that transactions that allocate do not conflict.
//!
//! SQLite takes a new page from the first trunk of the free list, or behind the end of the database, and notes
//! it in page 1. So any two transactions that allocate would conflict. A connection that has allocated is
//! therefore shown the list in an order of its own: first a trunk with pages that it has *leased*, then the rest.
//! At its commit the pages that it has taken and given back are taken off and added to the list as it is by then
//! (`publish`). What it shows is a permutation of the real list, so all that SQLite counts and checks stays true.
//!
//! A lease binds nobody (invariant 64). The pages stay on the real list; other connections of this process choose
//! others, and if a connection takes one all the same, the transaction that uses the page too is overtaken, like
//! any two that write one page. So a lease of a process that has died is nothing.
//!
//! If too few pages are free, a transaction that allocates makes the database larger by a number of free pages.

use std::collections::{BTreeMap, BTreeSet};

use crate::attachment::leases::Leases;

/// What a connection wants and has of free pages.
#[derive(Default)]
pub(super) struct Lease {
    /// How many pages it wants; 0 as long as it has not allocated any.
    pub(super) wanted: usize,
    /// The pages that it has.
    pub(super) pages: BTreeSet<u32>,
    /// Whether there were too few on the list.
    pub(super) is_short: bool,
    /// What SQLite is shown, if that is not the real list.
    pub(super) view: Option<View>,
}

/// The free list in the order of one connection.
pub(super) struct View {
    /// Page 1.
    pub(super) first: Vec<u8>,
    /// Trunks that differ from the real ones.
    pub(super) trunks: BTreeMap<u32, Vec<u8>>,
}

/// How many pages a connection leases at first.
const AT_FIRST: usize = 32;
/// How many it leases at most.
const AT_MOST: usize = 512;
/// A list with this many times the pages that a connection wants is long enough, whatever others have leased.
const MOST_FREE: usize = 16;

impl Lease {
    /// The connection allocates, so it leases pages from its next transaction on.
    pub fn want(&mut self) {
        if self.wanted == 0 {
            self.wanted = AT_FIRST;
        }
    }

    /// Whether the connection leases pages.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// A lease has not lasted for a transaction.
    pub fn want_more(&mut self) {
        self.wanted = (2 * self.wanted).clamp(AT_FIRST, AT_MOST);
    }

    /// Whether SQLite had better be shown another order: little is left, or there are no others any more.
    pub fn is_to_be_renewed(&self, has_others: bool) -> bool {
        let is_over = self.is_wanted() && !has_others;
        is_over || !self.is_short && self.pages.len() < self.wanted / 8
    }

    /// By how many pages a transaction that allocates should make the database larger that has this many free
    /// ones.
    pub fn pages_to_add(&self, free: u32) -> usize {
        let free = free as usize;
        let is_enough = free >= self.wanted && !self.is_short || free >= MOST_FREE * self.wanted;
        if is_enough { 0 } else { 2 * self.wanted }
    }

    /// Gives the pages back.
    pub fn drop_pages(&mut self, leases: &Leases) {
        let pages = std::mem::take(&mut self.pages);
        leases.with(|leased| pages.iter().for_each(|page| _ = leased.remove(page)));
        self.view = None;
    }

    /// The connection has committed: these pages were taken, and those given back, and it goes on with this
    /// view.
    pub fn committed(&mut self, leases: &Leases, taken: &BTreeSet<u32>, given: &BTreeSet<u32>, view: View) {
        leases.with(|leased| {
            for page in taken {
                if self.pages.remove(page) {
                    leased.remove(page);
                }
            }
            for page in given {
                if leased.insert(*page) {
                    self.pages.insert(*page);
                }
            }
        });
        self.view = Some(view);
    }

    /// Whether SQLite is shown something that depends on this page: it is leased, or a trunk in another form.
    pub fn is_of(&self, page: u32) -> bool {
        let depends = |view: &View| self.pages.contains(&page) || view.trunks.contains_key(&page);
        self.view.as_ref().is_some_and(depends)
    }

    /// What SQLite is shown instead of this page.
    pub fn page(&self, page: u32) -> Option<&[u8]> {
        let view = self.view.as_ref()?;
        if page == 1 { Some(&view.first) } else { view.trunks.get(&page).map(Vec::as_slice) }
    }
}
