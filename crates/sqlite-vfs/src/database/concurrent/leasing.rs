//! Chooses which free pages a connection leases, and in which order SQLite sees the free list.

use std::collections::{BTreeMap, BTreeSet};

use super::free_list::{self, head, leaves, next, set_head, trunk};
use super::lease::View;
use super::snapshot::Snapshot;
use super::state::Concurrent;
use crate::database::Db;
use crate::errors::Failure;

/// The number of trunks of the real list in which a connection looks for pages to lease.
const TRUNKS: usize = 16;

impl Concurrent {
    /// Chooses the order in which SQLite sees the free list from this snapshot on. SQLite has already dropped
    /// its cache.
    pub(super) fn renew_lease(&self, db: &Db, snapshot: &Snapshot) -> Result<(), Failure> {
        let leases = self.attachment.leases();
        let mut state = self.state();
        state.lease.view = None;
        if state.others == 0 {
            state.lease.drop_pages(leases);
            state.lease.wanted = 0;
        }
        if state.lease.wanted == 0 || state.luck.is_out() {
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

    /// Chooses pages of the free list to lease. These are pages in `own` that are still on the list, and
    /// pages that no connection of this process has leased.
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
            // The list is damaged. SQLite itself will find the damage.
            let Some(found) = leaves(&image) else { return Ok(nothing) };
            let stay: Vec<u32> = leases.with(|leased| {
                let mut stay = Vec::new();
                for leaf in &found {
                    let is_ours = chosen.len() < wanted && (own.contains(leaf) || leased.insert(*leaf));
                    if is_ours { chosen.push(*leaf) } else { stay.push(*leaf) }
                }
                stay
            });
            // Insert also trunks that keep all their leaves, because the view has to show the beginning of
            // the list without a gap.
            trunks.insert(at, trunk(image.len(), next(&image), &stay));
            at = next(&image);
        }
        let Some((lead, rest)) = chosen.split_first() else { return Ok(nothing) };
        trunks.insert(*lead, trunk(first.len(), head(&first), rest));
        set_head(&mut first, *lead);
        Ok((Some(View { first, trunks }), chosen.into_iter().collect()))
    }
}
