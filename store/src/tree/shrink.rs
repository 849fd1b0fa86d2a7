//! Frees an empty leaf, together with those inner pages above it that have no other child.

use std::collections::BTreeMap;

use super::{Tree, child_of, damaged, is_leaf};
use crate::buffer::Writing;
use crate::error::Error;
use crate::format::{
    Change, PageId, PageKind, blank, cell, cell_count, cell_key, child_at, child_for, level, set_extra,
};
use crate::pager::Author;

impl<'a> Tree<'a> {
    /// Frees the leaf that covers a key, if the leaf is empty and is not the root.
    pub(super) fn give_empty_back(&self, key: &[u8]) -> Result<(), Error> {
        // The end of the path down to the leaf. It begins at the last page that has several children, or at the root if
        // no page has.
        let mut path = vec![(self.pager.pool.write(self.root)?, 0)];
        let mut above = None;
        while let Some((page, place)) = path.last_mut() {
            if is_leaf(page.bytes(), page.id(), above)? {
                break;
            }
            above = Some(level(page.bytes()));
            *place = child_for(page.bytes(), key).map_err(damaged(page.id()))?;
            let id = child_of(page.bytes(), page.id(), *place)?;
            let has_others = cell_count(page.bytes()) > 0;
            if path.iter().any(|(on_it, _)| on_it.id() == id) {
                return Err(Error::Corrupt { what: "a tree".to_owned(), page: Some(id) });
            }
            let child = self.pager.pool.write(id)?;
            if has_others {
                path.drain(..path.len() - 1);
            }
            path.push((child, 0));
        }
        let is_empty = path.last().is_some_and(|(leaf, _)| cell_count(leaf.bytes()) == 0);
        if path.len() < 2 || !is_empty {
            return Ok(());
        }
        let (mut top, place) = path.remove(0);
        let mut image = top.bytes().to_vec();
        if cell_count(&image) == 0 {
            blank(&mut image, PageKind::Leaf, 0);
        } else {
            without_child(&mut image, place).map_err(damaged(top.id()))?;
        }
        let gone: Vec<PageId> = path.iter().map(|(page, _)| page.id()).collect();
        self.replace(&mut top, &image, &gone)
    }

    /// Replaces the content of a page and frees other pages, by one log object.
    pub(super) fn replace(&self, page: &mut Writing<'a>, image: &[u8], gone: &[PageId]) -> Result<(), Error> {
        // Maps are always latched in ascending order, so that threads cannot deadlock.
        let mut maps = BTreeMap::new();
        for id in gone {
            let (map, bit) = self.space.place_of(*id);
            maps.entry(map).or_insert_with(Vec::new).push(bit);
        }
        let mut latched = Vec::new();
        let mut changes = vec![(0, Change::image_of(image))];
        for (map, bits) in &maps {
            latched.push(self.pager.pool.write(*map)?);
            changes.extend(bits.iter().map(|bit| (latched.len(), Change::MapClear { bit: *bit })));
        }
        let mut pages: Vec<&mut Writing<'a>> = vec![page];
        pages.extend(latched.iter_mut());
        let logged = self.pager.step(Author::SYSTEM, &[], &mut pages, &changes)?;
        gone.iter().for_each(|page| self.space.freed(*page, logged.lsn));
        Ok(())
    }
}

/// Removes a child from an inner page. The page must have more than one child.
pub(super) fn without_child(page: &mut [u8], place: usize) -> Result<(), duralite_format::FormatError> {
    let index = place.saturating_sub(1);
    let key = cell_key(PageKind::Inner, cell(page, index)?)?.to_vec();
    if place == 0 {
        let next = child_at(page, 1)?;
        set_extra(page, next);
    }
    Change::Remove { key: &key }.apply(page)
}
