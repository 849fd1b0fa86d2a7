//! Merges a transaction's changes of the free list and of the database's size with those of other
//! transactions.

use std::collections::{BTreeMap, BTreeSet};

use duralite_format::sqlite_wal::FRAME_HEADER_BYTES;
use duralite_sqlite_ffi as ffi;

use super::conflict::{Conflict, overtaken};
use super::free_list::{
    ALLOCATION, FreeList, free_pages, has_pointer_maps, head, leaves, next, set_size, size_in,
};
use super::images::Images;
use super::lease::View;
use super::snapshot::Snapshot;
use super::state::{ALONE, Concurrent, Write};
use crate::database::Db;
use crate::errors::Failure;

/// The effects of a transaction's commit on the size of the database, on SQLite's cache and on the lease.
pub(super) struct Allocation {
    /// The size of the database after the commit, in pages.
    pub pages: u32,
    /// Whether SQLite on this connection has to drop its cache. It has to if the size of the database differs
    /// from what SQLite assumes, or if the connection's lease is to be renewed.
    pub is_larger: bool,
    /// The effect on the connection's lease, if the connection has one.
    pub lease: Option<Settled>,
}

/// What a transaction has done to leased pages.
pub(super) struct Settled {
    pub taken: BTreeSet<u32>,
    pub given: BTreeSet<u32>,
    pub view: View,
}

/// The least number of bytes that one page counts for when this VFS estimates how many pages fit into the
/// log. An engine may keep a few sectors for each page, so the number is this large.
const MOST_OF_A_PAGE: usize = 16 << 10;

/// The number of trunks of the real list that are looked through for a page. They hold 65,000 free pages of 4096 bytes.
const TRUNKS_LOOKED_AT: usize = 64;

/// A part of a free list, from the list's beginning.
struct Part {
    pages: BTreeSet<u32>,
    trunks: BTreeMap<u32, Vec<u8>>,
    /// The trunk after this part; 0 if the part reaches the end of the list.
    rest: u32,
}

impl Concurrent {
    /// Returns whether the transaction may have taken or freed pages, judged by the images that SQLite has
    /// written. If the answer is `false`, and no other connection has written page 1 since the snapshot, then
    /// the free list and the database's size are unchanged.
    pub(super) fn may_allocate(&self, newest: &Snapshot, images: &Images<'_>, pages: u32) -> bool {
        // SQLite writes page 1 with every page that it takes or frees. A page also counts if the connection's
        // own order of the free list depends on it. Otherwise the commit could contain a trunk that exists
        // only in that order.
        let state = self.state();
        images.pages().any(|page| page == 1 || state.lease.is_of(page)) || newest.header.db_pages() != pages
    }

    /// Replaces the images that SQLite has written by those that are to be committed on top of `newest`. The
    /// committed free list is the real list, without the pages that the transaction has taken, and with the
    /// pages that it has given back. `pages` is the size of the database that SQLite has written.
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` if other connections have allocated too, and their allocations cannot be merged with
    /// this one.
    pub(super) fn allocate(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &Snapshot,
        images: &mut Images<'_>,
        pages: u32,
    ) -> Result<Allocation, Failure> {
        let has_view = self.state().lease.view.is_some();
        if snapshot.header == newest.header && !has_view {
            // This VFS has shown SQLite the real list, and no other connection has changed the list.
            return self.add_pages(db, newest, images, Allocation { pages, is_larger: false, lease: None });
        }
        let current = self.page_at(db, newest, 1)?;
        let shown = self.state().lease.view.as_ref().map(|view| view.first.clone());
        let allocation = match shown {
            Some(shown) => self.allocate_from_lease(db, snapshot, newest, images, pages, &shown, &current)?,
            None => self.allocate_from_list(db, snapshot, images, pages, &current)?,
        };
        self.add_pages(db, newest, images, allocation)
    }

    /// Lets the connection lease pages from its next transaction on, if this transaction has allocated and
    /// other connections use the database. The caller has not validated this transaction yet.
    pub(super) fn note_allocation(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        images: &Images<'_>,
    ) -> Result<(), Failure> {
        let Some(first) = images.get(1) else { return Ok(()) };
        let state = self.state();
        let (is_wanted, others) = (state.lease.is_wanted(), state.others);
        drop(state);
        if is_wanted || others == 0 && !self.holder.table().has_several_readers().unwrap_or(true) {
            return Ok(());
        }
        let before = self.page_at(db, snapshot, 1)?;
        if first.get(ALLOCATION) != before.get(ALLOCATION) {
            let mut state = self.state();
            state.others = ALONE;
            state.lease.want();
        }
        Ok(())
    }

    /// Returns the pages that are free after a transaction with these images. Looks only at the part of the
    /// free list that the transaction has written, which is the beginning of the list.
    pub(super) fn free_at_the_end(&self, db: &Db, images: &Images<'_>) -> Result<BTreeSet<u32>, Failure> {
        let Some(first) = images.get(1) else { return Ok(BTreeSet::new()) };
        let list = self.part(db, head(first), |page| Ok(images.get(page).map(<[u8]>::to_vec)), None)?;
        Ok(list.pages)
    }

    /// Returns whether SQLite may have taken this page from the free list in the open transaction: the page was
    /// free in the snapshot, whose page 1 is `first`, or the connection's own order of the list has it. If the
    /// list is too long to look through, the answer is `true`.
    pub(super) fn may_have_taken(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        first: &[u8],
        page: u32,
    ) -> Result<bool, Failure> {
        if self.state().lease.shows_as_free(page) {
            return Ok(true);
        }
        let mut at = head(first);
        for _ in 0..TRUNKS_LOOKED_AT {
            if at == 0 {
                return Ok(false);
            }
            let trunk = self.page_at(db, snapshot, at)?;
            if at == page || leaves(&trunk).is_none_or(|leaves| leaves.contains(&page)) {
                return Ok(true);
            }
            at = next(&trunk);
        }
        Ok(true)
    }

    /// Merges the allocation of a transaction to which this VFS has shown the real free list. The merge
    /// succeeds if only this transaction has allocated, or if only other connections have. If both have, the
    /// transaction is overtaken.
    ///
    /// In a database with pointer maps a transaction may take pages after the end of the database, and cut
    /// them off again at its commit. Page 1 is then the same as before the transaction, but the pointer-map
    /// entries of these pages have changed. Other connections that have taken the same pages may rely on
    /// these entries without having written them. So in such a database every transaction that has written
    /// page 1 counts as one that has allocated. SQLite writes page 1 with every page that it takes or frees.
    fn allocate_from_list(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        images: &mut Images<'_>,
        pages: u32,
        current: &[u8],
    ) -> Result<Allocation, Failure> {
        let before = self.page_at(db, snapshot, 1)?;
        let is_changed = before.get(ALLOCATION) != current.get(ALLOCATION);
        let allocates =
            |first: &[u8]| has_pointer_maps(&before) || first.get(ALLOCATION) != before.get(ALLOCATION);
        if !images.get(1).is_some_and(allocates) {
            if let Some(first) = images.get_mut(1) {
                copy_allocation(first, current);
            }
            let pages = if is_changed { size_in(current) } else { pages };
            return Ok(Allocation { pages, is_larger: is_changed, lease: None });
        }
        if is_changed {
            return Err(overtaken(db, &Conflict::Page(1)));
        }
        Ok(Allocation { pages, is_larger: false, lease: None })
    }

    /// Merges the allocation of a transaction to which this VFS has shown the free list in the order of its
    /// lease. `shown` is page 1 as this VFS has shown it to the transaction.
    #[allow(clippy::too_many_arguments, reason = "the list before, as shown, as written and as it is now")]
    fn allocate_from_lease(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &Snapshot,
        images: &mut Images<'_>,
        pages: u32,
        shown: &[u8],
        current: &[u8],
    ) -> Result<Allocation, Failure> {
        let written = images.get(1).unwrap_or(shown).to_vec();
        let after = self.part(db, head(&written), |page| Ok(images.get(page).map(<[u8]>::to_vec)), None)?;
        let before = self.part(db, head(shown), |_| Ok(None), Some((snapshot, after.rest)))?;
        if pages < size_in(shown) {
            return self.shrink(db, snapshot, newest, images, pages, written, after);
        }
        let taken: BTreeSet<u32> = before.pages.difference(&after.pages).copied().collect();
        let given: BTreeSet<u32> = after.pages.difference(&before.pages).copied().collect();
        // Drop what SQLite has written to a page that was free before the transaction and is still free,
        // because such a page may be a trunk of the real list. SQLite may have made a trunk of a page that
        // the transaction has freed. The real list does not need that trunk, so commit zeros for that page.
        // Its old content must be gone (`secure_delete`).
        images.retain(|page| !(before.pages.contains(&page) && after.pages.contains(&page)));
        for page in after.trunks.keys().filter(|page| given.contains(page)) {
            images.insert(*page, vec![0; self.page_bytes]);
        }
        let grows = pages > size_in(shown);
        let settled = |view| Some(Settled { taken: taken.clone(), given: given.clone(), view });
        let view = View { first: written.clone(), trunks: after.trunks };
        if taken.is_empty() && given.is_empty() && !grows {
            if let Some(first) = images.get_mut(1) {
                copy_allocation(first, current);
            }
            let is_larger = size_in(current) != size_in(shown);
            return Ok(Allocation { pages: size_in(current), is_larger, lease: settled(view) });
        }
        if grows {
            self.state().lease.want_more();
            if size_in(current) != size_in(shown) {
                return Err(overtaken(db, &Conflict::Page(1)));
            }
        }
        let read = |page| self.page_at(db, newest, page);
        let mut list = FreeList::new(current.to_vec(), &read);
        for page in &taken {
            if !list.take(*page)? {
                return Err(overtaken(db, &Conflict::Page(*page)));
            }
        }
        for page in &given {
            list.give(*page)?;
        }
        let (first, trunks) = list.into_changed();
        let mut merged = written;
        copy_allocation(&mut merged, &first);
        let size = if grows { pages } else { size_in(current) };
        set_size(&mut merged, size);
        images.extend(trunks);
        images.insert(1, merged);
        Ok(Allocation { pages: size, is_larger: size != pages, lease: settled(view) })
    }

    /// Returns the allocation of a transaction that has WRITE and whose pages are already in the log, as
    /// SQLite has written them. `written` returns the last image of a page. This function adds to `images`
    /// those pages of the free list that are not in the log yet.
    pub(super) fn allocate_as_written(
        &self,
        db: &Db,
        images: &mut Images<'_>,
        pages: u32,
        written: impl Fn(u32) -> Result<Option<Vec<u8>>, Failure>,
    ) -> Result<Allocation, Failure> {
        let has_view = self.state().lease.view.is_some();
        match written(1)?.filter(|_| has_view) {
            // The list that SQLite was shown has the same pages as the real list, so it may become the real
            // list.
            Some(first) => {
                let after = self.part(db, head(&first), written, None)?;
                Ok(Self::commit_view(images, pages, first, after))
            }
            None => Ok(Allocation { pages, is_larger: false, lease: None }),
        }
    }

    /// Returns the allocation of a transaction that has made the database smaller. Such an allocation cannot
    /// be merged with those of other transactions. So if another transaction has committed since the
    /// snapshot, this one is overtaken. Otherwise it commits what SQLite has written.
    #[allow(clippy::too_many_arguments, reason = "as `allocate_from_lease`")]
    fn shrink(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: &Snapshot,
        images: &mut Images<'_>,
        pages: u32,
        written: Vec<u8>,
        after: Part,
    ) -> Result<Allocation, Failure> {
        if snapshot.header != newest.header {
            return Err(overtaken(db, &Conflict::Shrunk));
        }
        Ok(Self::commit_view(images, pages, written, after))
    }

    /// Commits the free list as SQLite has written it, in the order that this VFS has shown to SQLite.
    /// `written` becomes page 1.
    fn commit_view(images: &mut Images<'_>, pages: u32, written: Vec<u8>, after: Part) -> Allocation {
        let view = View { first: written.clone(), trunks: after.trunks.clone() };
        for (page, image) in after.trunks {
            if !images.contains(page) {
                images.insert(page, image);
            }
        }
        images.insert(1, written);
        images.retain(|page| page <= pages);
        let lease = Some(Settled { taken: BTreeSet::new(), given: BTreeSet::new(), view });
        Allocation { pages, is_larger: true, lease }
    }

    /// Returns a part of the free list, beginning with the trunk at `at`. The part consists of trunks that
    /// only this connection knows: `written` returns them, or the connection's view has them. If `until` is
    /// given, the part also contains trunks of that snapshot's list, up to the trunk that `until` names.
    fn part(
        &self,
        db: &Db,
        mut at: u32,
        written: impl Fn(u32) -> Result<Option<Vec<u8>>, Failure>,
        until: Option<(&Snapshot, u32)>,
    ) -> Result<Part, Failure> {
        let mut part = Part { pages: BTreeSet::new(), trunks: BTreeMap::new(), rest: 0 };
        loop {
            if at == 0 || until.is_some_and(|(_, end)| end == at) {
                break;
            }
            let known = written(at)?.or_else(|| {
                let state = self.state();
                state.lease.view.as_ref().and_then(|view| view.trunks.get(&at).cloned())
            });
            let image = match (known, until) {
                (Some(image), _) => image,
                (None, Some((snapshot, _))) => self.page_at(db, snapshot, at)?,
                (None, None) => break,
            };
            let damaged = || Failure::new(ffi::CORRUPT, format!("page {at} is not a trunk of the free list"));
            if !part.pages.insert(at) {
                return Err(damaged());
            }
            part.pages.extend(leaves(&image).ok_or_else(damaged)?);
            let after = next(&image);
            part.trunks.insert(at, image);
            at = after;
        }
        part.rest = at;
        Ok(part)
    }

    /// Returns how many free pages a transaction may add to the database, in addition to the `images` pages
    /// that it writes anyway. No connection needs the added pages yet, so they must not fill the log: all
    /// these pages together take at most half of the room that is left.
    fn room_for_pages(&self, images: usize) -> usize {
        let (fill, _) = self.attachment.log().fill();
        if fill.limit_bytes == 0 {
            return usize::MAX;
        }
        let left = fill.limit_bytes.saturating_sub(fill.used_bytes) / 2;
        let each = self.page_bytes.max(MOST_OF_A_PAGE) + FRAME_HEADER_BYTES;
        (usize::try_from(left).unwrap_or(usize::MAX) / each).saturating_sub(images)
    }

    /// Makes the database larger if this transaction allocates and too few pages are free for leases.
    fn add_pages(
        &self,
        db: &Db,
        newest: &Snapshot,
        images: &mut Images<'_>,
        allocation: Allocation,
    ) -> Result<Allocation, Failure> {
        let Some(first) = images.get(1) else { return Ok(allocation) };
        let state = self.state();
        // If the transaction holds WRITE while it runs, add no pages. The database then is as large as it
        // would be with stock SQLite.
        let adds = state.write == Write::Validated;
        let count = if adds { state.lease.pages_to_add(free_pages(first)) } else { 0 };
        drop(state);
        let count = count.min(self.room_for_pages(images.len()));
        // Also add no pages while another statement runs, because that statement continues with the size and
        // the free list that SQLite knows.
        if count == 0
            || !db.host.runs_one_statement(db.sqlite)
            || has_pointer_maps(first)
            || size_in(first) != allocation.pages
        {
            return Ok(allocation);
        }
        let lock_page = 0x4000_0000 / u32::try_from(self.page_bytes).unwrap_or(u32::MAX) + 1;
        let new: Vec<u32> =
            (allocation.pages + 1..u32::MAX).filter(|page| *page != lock_page).take(count).collect();
        let Some(last) = new.last().copied() else { return Ok(allocation) };
        let trunks = {
            let read = |page: u32| {
                images.get(page).map_or_else(|| self.page_at(db, newest, page), |image| Ok(image.to_vec()))
            };
            let mut list = FreeList::new(first.to_vec(), &read);
            for page in &new {
                list.give(*page)?;
            }
            list.into_changed()
        };
        let (mut first, trunks) = trunks;
        set_size(&mut first, last);
        // Commit a frame for each new page. If the database became larger without frames for the new pages, a
        // checkpoint would conclude that the database is damaged.
        images.extend(new.iter().map(|page| (*page, vec![0; self.page_bytes])));
        images.extend(trunks);
        images.insert(1, first);
        Ok(Allocation { pages: last, is_larger: true, ..allocation })
    }
}

/// Copies to page 1 what `from` says about the free list and about the size of the database.
fn copy_allocation(first: &mut [u8], from: &[u8]) {
    if let Some((to, from)) = first.get_mut(ALLOCATION).zip(from.get(ALLOCATION)) {
        to.copy_from_slice(from);
    }
}
