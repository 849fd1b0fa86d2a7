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

use super::free_list::{self, head, leaves, next, set_head, trunk};
use super::private::Concurrent;
use super::snapshot::{Snapshot, read_page};
use crate::attachment::leases::Leases;
use crate::database::Db;
use crate::errors::Failure;

/// What a connection wants and has of free pages.
#[derive(Default)]
pub(super) struct Lease {
    /// How many pages it wants; 0 as long as it has not allocated any.
    wanted: usize,
    /// The pages that it has.
    pages: BTreeSet<u32>,
    /// Whether there were too few on the list.
    is_short: bool,
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
/// How many trunks of the real list are looked through for pages to lease.
const TRUNKS: usize = 16;

impl Lease {
    /// The connection allocates, so it leases pages from its next transaction on.
    pub fn want(&mut self) {
        if self.wanted == 0 {
            self.wanted = AT_FIRST;
        }
    }

    /// A lease has not lasted for a transaction.
    pub fn want_more(&mut self) {
        self.wanted = (2 * self.wanted).clamp(AT_FIRST, AT_MOST);
    }

    /// Whether so little is left that SQLite had better be shown another order.
    pub fn is_to_be_renewed(&self) -> bool {
        !self.is_short && self.pages.len() < self.wanted / 8
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
        self.pages.contains(&page) || self.view.as_ref().is_some_and(|view| view.trunks.contains_key(&page))
    }

    /// What SQLite is shown instead of this page.
    pub fn page(&self, page: u32) -> Option<&[u8]> {
        let view = self.view.as_ref()?;
        if page == 1 { Some(&view.first) } else { view.trunks.get(&page).map(Vec::as_slice) }
    }
}

impl Concurrent {
    /// Chooses the order of the free list that SQLite is shown from this snapshot on, when it has dropped its
    /// cache.
    pub(super) fn renew_lease(&self, db: &Db, snapshot: &Snapshot) -> Result<(), Failure> {
        let leases = self.attachment.leases();
        let mut state = self.state();
        state.lease.view = None;
        if state.lease.wanted == 0 {
            return Ok(());
        }
        let wanted = state.lease.wanted.min(self.page_bytes / 8);
        let own = std::mem::take(&mut state.lease.pages);
        drop(state);
        let chosen = self.choose(db, snapshot, wanted, &own);
        let (view, pages) = match chosen {
            Ok(chosen) => chosen,
            Err(failure) => {
                leases.with(|leased| own.iter().for_each(|page| _ = leased.remove(page)));
                return Err(failure);
            }
        };
        leases.with(|leased| own.difference(&pages).for_each(|page| _ = leased.remove(page)));
        let mut state = self.state();
        state.lease.is_short = pages.len() < wanted / 4;
        state.lease.pages = pages;
        state.lease.view = view;
        Ok(())
    }

    /// Chooses pages of the list: those in `own` that are still on it, and others that no connection of this
    /// process has.
    fn choose(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        wanted: usize,
        own: &BTreeSet<u32>,
    ) -> Result<(Option<View>, BTreeSet<u32>), Failure> {
        let read = |page| self.page_at(db, snapshot, page);
        let mut first = read(1)?;
        let nothing = (None, BTreeSet::new());
        if free_list::has_pointer_maps(&first) {
            return Ok(nothing);
        }
        let leases = self.attachment.leases();
        let (mut chosen, mut trunks, mut at) = (Vec::new(), BTreeMap::new(), head(&first));
        for _ in 0..TRUNKS {
            if at == 0 || chosen.len() >= wanted {
                break;
            }
            let image = read(at)?;
            // SQLite finds out what is wrong with such a list.
            let Some(found) = leaves(&image) else { return Ok(nothing) };
            let stay: Vec<u32> = leases.with(|leased| {
                let mut stay = Vec::new();
                for leaf in &found {
                    let is_ours = chosen.len() < wanted && (own.contains(leaf) || leased.insert(*leaf));
                    if is_ours { chosen.push(*leaf) } else { stay.push(*leaf) }
                }
                stay
            });
            // Also trunks that keep all their leaves: the view is the list's beginning without a gap.
            trunks.insert(at, trunk(image.len(), next(&image), &stay));
            at = next(&image);
        }
        let Some((lead, rest)) = chosen.split_first() else { return Ok(nothing) };
        trunks.insert(*lead, trunk(first.len(), head(&first), rest));
        set_head(&mut first, *lead);
        Ok((Some(View { first, trunks }), chosen.into_iter().collect()))
    }

    /// A page as of a snapshot.
    pub(super) fn page_at(&self, db: &Db, snapshot: &Snapshot, page: u32) -> Result<Vec<u8>, Failure> {
        let mut image = vec![0; self.page_bytes];
        read_page(db, self.index(), snapshot, page, &mut image)?;
        Ok(image)
    }
}
