//! Free pages that one connection uses first, so that transactions that allocate do not conflict.
//!
//! SQLite takes a new page from the first trunk of the free list, or after the end of the database, and notes
//! that in page 1. So any two transactions that allocate would conflict. Therefore, once a connection has
//! allocated a page, this VFS shows it the free list in another order. In that order a trunk with pages that
//! the connection has *leased* comes first, and then the rest. When the connection commits, `publish` takes
//! the current list, removes the pages that the connection has taken, and adds the pages that it has given
//! back. The list that SQLite sees is a permutation of the real list, so SQLite's counts and checks of the
//! list stay correct.
//!
//! A lease binds nobody (invariant 64). The pages stay on the real list. Other connections of this process
//! lease other pages. If another connection nevertheless takes a leased page, the transaction that commits
//! later is overtaken, as if both had written any other page. So the lease of a process that has died needs
//! no cleaning up.
//!
//! If too few pages are free, a transaction that allocates makes the database larger by some free pages.

use std::collections::{BTreeMap, BTreeSet};

use super::free_list;
use crate::attachment::leases::Leases;

/// The number of free pages that a connection wants, and the pages that it has leased.
#[derive(Default)]
pub(super) struct Lease {
    /// The number of pages that the connection wants; 0 as long as it has not allocated any.
    pub(super) wanted: usize,
    /// The pages that the connection has leased.
    pub(super) pages: BTreeSet<u32>,
    /// Whether the free list had too few pages to lease.
    pub(super) is_short: bool,
    /// The free list that this VFS shows to SQLite, if that is not the real list.
    pub(super) view: Option<View>,
}

/// The free list in the order of one connection.
pub(super) struct View {
    /// Page 1.
    pub(super) first: Vec<u8>,
    /// Trunks that differ from the real ones.
    pub(super) trunks: BTreeMap<u32, Vec<u8>>,
}

/// The number of pages that a connection leases at first.
const AT_FIRST: usize = 32;
/// The largest number of pages that a connection leases.
const AT_MOST: usize = 512;
/// A free list that has this many times the number of pages that a connection wants is long enough, even if
/// other connections have leased some of them.
const MOST_FREE: usize = 16;

impl Lease {
    /// Notes that the connection allocates. It then leases pages from its next transaction on.
    pub fn want(&mut self) {
        if self.wanted == 0 {
            self.wanted = AT_FIRST;
        }
    }

    /// Returns whether the connection leases pages.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// Returns whether the connection wants pages, and this VFS has not shown SQLite any leased pages yet.
    pub fn is_to_come(&self) -> bool {
        self.is_wanted() && self.view.is_none()
    }

    /// Notes that a transaction has used up the lease. The next lease is then twice as large.
    pub fn want_more(&mut self) {
        self.wanted = (2 * self.wanted).clamp(AT_FIRST, AT_MOST);
    }

    /// Returns whether this VFS must choose a new order in which SQLite sees the free list. It must if few
    /// leased pages are left. It also must if the connection has a lease and believes that no other
    /// connection commits any more.
    pub fn is_to_be_renewed(&self, has_others: bool) -> bool {
        let is_over = self.is_wanted() && !has_others;
        is_over || !self.is_short && self.pages.len() < self.wanted / 8
    }

    /// Returns by how many pages a transaction that allocates should make the database larger, if the
    /// database has this many free pages.
    pub fn pages_to_add(&self, free: u32) -> usize {
        let free = free as usize;
        let is_enough = free >= self.wanted && !self.is_short || free >= MOST_FREE * self.wanted;
        if is_enough { 0 } else { 2 * self.wanted }
    }

    /// Gives the leased pages back, for other connections of this process to lease.
    pub fn drop_pages(&mut self, leases: &Leases) {
        let pages = std::mem::take(&mut self.pages);
        leases.with(|leased| pages.iter().for_each(|page| _ = leased.remove(page)));
        self.view = None;
    }

    /// Notes that the connection has committed. It has taken the pages `taken` from the free list, and has
    /// given the pages `given` back. From now on this VFS shows `view` to SQLite.
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

    /// Returns whether the list that SQLite sees depends on this page. It depends on leased pages, and on
    /// trunks that SQLite sees with other content.
    pub fn is_of(&self, page: u32) -> bool {
        let depends = |view: &View| self.pages.contains(&page) || view.trunks.contains_key(&page);
        self.view.as_ref().is_some_and(depends)
    }

    /// Returns whether SQLite sees this page on one of the trunks that differ from the real ones, or sees such a
    /// trunk in it.
    pub fn shows_as_free(&self, page: u32) -> bool {
        let lists = |trunk: &Vec<u8>| free_list::leaves(trunk).is_some_and(|leaves| leaves.contains(&page));
        let shows = |view: &View| view.trunks.contains_key(&page) || view.trunks.values().any(lists);
        self.view.as_ref().is_some_and(shows)
    }

    /// Returns the image that SQLite sees instead of this page, or `None` if SQLite sees the page itself.
    pub fn page(&self, page: u32) -> Option<&[u8]> {
        let view = self.view.as_ref()?;
        if page == 1 { Some(&view.first) } else { view.trunks.get(&page).map(Vec::as_slice) }
    }
}
