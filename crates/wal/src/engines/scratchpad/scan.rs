//! The scan of a region's pages, from head to tail.

use duralite_format::scratchpad::Kind;
use rustc_hash::FxHashMap;

use super::region::Region;

/// Where transactions begin, by their numbers, and which pages may belong to other transactions of the log.
#[derive(Default)]
pub(super) struct Scan {
    /// Several pages for a number, if a transaction that was rolled back had the same number.
    heads: FxHashMap<u32, Vec<u32>>,
    /// Pages of this log, by their owner word or by their header.
    own: Vec<u32>,
    /// How many pages are taken, by all logs.
    used: u64,
}

impl Scan {
    /// Reads the headers of all pages.
    pub(super) fn of(region: &Region, generation: u64) -> Self {
        let mut scan = Self::default();
        for page in 1..region.pages() {
            scan.used += u64::from(region.owner_word(page) != 0);
            let header = region.header(page).map(|(header, _)| header);
            let current =
                header.filter(|header| header.kind == Kind::Redo && header.generation == generation);
            if let Some(header) = current.filter(|header| header.index == 0) {
                scan.heads.entry(header.transaction).or_default().push(page);
            }
            if current.is_some() || region.is_own(page) {
                scan.own.push(page);
            }
        }
        scan
    }

    /// The pages where a transaction may begin.
    pub(super) fn heads(&self, transaction: u32) -> &[u32] {
        self.heads.get(&transaction).map_or(&[], |heads| heads)
    }

    /// The numbers of the transactions above this one for which there are heads; ascending.
    pub(super) fn numbers_above(&self, transaction: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> =
            self.heads.keys().copied().filter(|number| *number > transaction).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Pages of this log, by their owner word or by their header.
    pub(super) fn own(&self) -> &[u32] {
        &self.own
    }

    /// How many pages are taken, by all logs.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}
