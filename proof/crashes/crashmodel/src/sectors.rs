//! Writes to a file that may not be durable yet.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::pieces::{pieces, whole};

/// The number of bytes in a sector, the unit that a device writes whole or not at all.
pub const SECTOR: usize = 512;

/// For each sector, the versions written since the sector was last durable.
#[derive(Clone, Debug, Default)]
pub struct Sectors(BTreeMap<u64, Versions>);

#[derive(Clone, Debug, Default)]
struct Versions {
    /// The versions, oldest first.
    all: Vec<[u8; SECTOR]>,
    /// The number of versions whose sync failed. The operating system then treats them as clean, so no later
    /// sync writes them.
    lost: usize,
}

impl Sectors {
    /// Records a write of `len` bytes at `at`. `visible` is the content that programs see after the write.
    pub fn written(&mut self, visible: &[u8], at: u64, len: usize) {
        for (within, _) in pieces(at, len, SECTOR) {
            let sector = within / SECTOR as u64;
            self.0.entry(sector).or_default().all.push(whole(visible, sector * SECTOR as u64));
        }
    }

    /// Makes the written sectors in this range durable. Their durable content becomes what programs see, up
    /// to the end of the file. A sector whose sync has failed stays in doubt until it is written and synced
    /// again.
    pub fn sync(&mut self, durable: &mut Vec<u8>, visible: &[u8], sectors: &Range<u64>) {
        self.0.retain(|sector, versions| {
            let written = versions.all.len() > versions.lost && sectors.contains(sector);
            let at = *sector as usize * SECTOR;
            let until = (at + SECTOR).min(visible.len());
            if written && at < until {
                if durable.len() < until {
                    durable.resize(until, 0);
                }
                durable[at..until].copy_from_slice(&visible[at..until]);
            }
            !written
        });
    }

    /// Records a failed sync. The written versions may or may not have reached the device, and no later sync
    /// writes them.
    pub fn fail_sync(&mut self) {
        for versions in self.0.values_mut() {
            versions.lost = versions.all.len();
        }
    }

    /// Forgets all versions in doubt.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Records that the file was cut to `len` bytes: writes past the new end never reach the device.
    pub fn cut(&mut self, len: u64) {
        self.0.retain(|sector, _| sector * (SECTOR as u64) < len);
    }

    /// Returns the sectors in doubt, and how many states each has.
    pub fn in_doubt(&self) -> impl Iterator<Item = (u64, usize)> {
        self.0.iter().map(|(sector, versions)| (*sector, versions.all.len() + 1))
    }

    /// Puts one sector of `image` into the given state. Before the call the sector has its durable content.
    pub fn leave(&self, image: &mut Vec<u8>, sector: u64, state: usize) {
        let version = state.checked_sub(1).and_then(|nth| self.0.get(&sector)?.all.get(nth));
        if let Some(content) = version {
            let at = sector as usize * SECTOR;
            if image.len() < at + SECTOR {
                image.resize(at + SECTOR, 0);
            }
            image[at..at + SECTOR].copy_from_slice(content);
        }
    }

    /// Returns the sector number and content of each version in doubt. The versions of a sector are ordered
    /// from oldest to newest.
    pub fn versions(&self) -> impl Iterator<Item = (u64, &[u8; SECTOR])> {
        self.0.iter().flat_map(|(sector, versions)| versions.all.iter().map(|content| (*sector, content)))
    }
}
