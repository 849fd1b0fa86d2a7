//! Which page has which chain. Users that share memory find it in the page table, whose lists of chains are chosen by a hash of
//! the page number. A process that may only look finds the chains by a scan.

use duralite_format::FormatError;
use duralite_format::ppl::{Extent, MERGED_AT};
use rustc_hash::FxHashMap;

use super::area::{Area, State};
use crate::LogError;

/// A page's chain, as it was found.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    /// The extents, in order.
    pub(super) extents: Vec<Extent>,
    /// The newest committed transaction with a record in it.
    pub(super) last: u64,
    /// The transaction up to which the page is home, unless all pages are home further.
    pub(super) home: u64,
    /// Records up to this transaction are in the page on flash.
    pub(super) merged: u64,
    /// The slot with the image that the page is being merged from.
    pub(super) slot: Option<u32>,
}

/// Where chains are found.
pub(super) enum Pages {
    /// In the page table.
    Shared,
    /// In the result of a scan, for a log that this process may not change.
    Scanned(FxHashMap<u32, Chain>),
}

impl Area {
    fn too_long(&self, at: u64) -> LogError {
        LogError::Corrupt { offset: at, what: FormatError::Damaged { what: "a list of extents" } }
    }

    /// An upper bound on the steps through any list.
    fn most_steps(&self) -> u32 {
        self.chunks().saturating_mul(64 + 3 * 32)
    }

    /// The first extent of a page's chain.
    pub(super) fn find_chain(&self, page_number: u32) -> Result<Option<Extent>, LogError> {
        let bucket = self.geometry.bucket_offset(page_number);
        let mut link = self.nvm.load_u64(bucket);
        let mut steps = 0;
        while let Some(extent) = self.follow(link)? {
            if self.page_of(extent) == page_number {
                return Ok(Some(extent));
            }
            link = self.state(extent, State::Bucket);
            steps += 1;
            if steps > self.most_steps() {
                return Err(self.too_long(bucket));
            }
        }
        Ok(None)
    }

    /// Puts a chain into the page table.
    pub(super) fn enter_chain(&self, page_number: u32, first: Extent) {
        let bucket = self.geometry.bucket_offset(page_number);
        self.set_state(first, State::Bucket, self.nvm.load_u64(bucket));
        self.nvm.store_u64(bucket, first.to_link());
    }

    /// Takes a chain out of the page table, or replaces it by the chain `by`. A concurrent reader sees either the old state or
    /// the new one.
    pub(super) fn replace_chain(
        &self,
        page_number: u32,
        first: Extent,
        by: Option<Extent>,
    ) -> Result<(), LogError> {
        let bucket = self.geometry.bucket_offset(page_number);
        let after = self.state(first, State::Bucket);
        let link = match by {
            Some(new) => {
                self.set_state(new, State::Bucket, after);
                new.to_link()
            }
            None => after,
        };
        if self.nvm.load_u64(bucket) == first.to_link() {
            self.nvm.store_u64(bucket, link);
            return Ok(());
        }
        let mut at = self.follow(self.nvm.load_u64(bucket))?;
        for _ in 0..self.most_steps() {
            let Some(extent) = at else { break };
            let next = self.state(extent, State::Bucket);
            if next == first.to_link() {
                self.set_state(extent, State::Bucket, link);
                return Ok(());
            }
            at = self.follow(next)?;
        }
        Err(self.too_long(bucket))
    }

    /// The extents of a chain from its first one on, in order.
    pub(super) fn extents_from(&self, first: Extent, out: &mut Vec<Extent>) -> Result<(), LogError> {
        out.clear();
        out.push(first);
        let mut link = self.state(first, State::Next);
        while let Some(extent) = self.follow(link)? {
            out.push(extent);
            if out.len() > self.most_steps() as usize {
                return Err(self.too_long(self.geometry.state_offset(first)));
            }
            link = self.state(extent, State::Next);
        }
        Ok(())
    }

    pub(super) fn merged(&self, first: Extent) -> u64 {
        self.nvm.load_u64(self.at(first, MERGED_AT as u32))
    }

    /// Loads a page's chain from the page table. Returns whether the page has one.
    pub(super) fn load_chain(&self, page_number: u32, chain: &mut Chain) -> Result<bool, LogError> {
        let Some(first) = self.find_chain(page_number)? else { return Ok(false) };
        self.extents_from(first, &mut chain.extents)?;
        chain.last = self.state(first, State::Last);
        chain.home = self.state(first, State::Home);
        // The slot is loaded before `merged`, because a merge stores `merged` before it gives up the slot.
        chain.slot = u32::try_from(self.state(first, State::Slot)).ok().and_then(|slot| slot.checked_sub(1));
        chain.merged = self.merged(first);
        Ok(true)
    }

    /// All chains in the page table: pages with their first extents.
    pub(super) fn all_chains(&self) -> Result<Vec<(u32, Extent)>, LogError> {
        let mut found = Vec::new();
        for bucket in 0..u64::from(self.geometry.buckets) {
            let at = self.geometry.buckets_offset + 8 * bucket;
            let mut link = self.nvm.load_u64(at);
            while let Some(extent) = self.follow(link)? {
                found.push((self.page_of(extent), extent));
                if found.len() > self.most_steps() as usize {
                    return Err(self.too_long(at));
                }
                link = self.state(extent, State::Bucket);
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

impl Pages {
    /// Loads a page's chain. Returns whether the page has one.
    pub(super) fn load(&self, area: &Area, page_number: u32, chain: &mut Chain) -> Result<bool, LogError> {
        match self {
            Self::Shared => area.load_chain(page_number, chain),
            Self::Scanned(chains) => match chains.get(&page_number) {
                Some(found) => {
                    chain.clone_from(found);
                    Ok(true)
                }
                None => Ok(false),
            },
        }
    }
}
