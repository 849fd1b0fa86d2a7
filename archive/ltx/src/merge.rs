//! Merges several consecutive files into one file. The result does not depend on how the transactions were divided into
//! files (invariant 69).

use std::io::{Read, Write};
use std::ops::RangeInclusive;

use super::decoder::Decoder;
use super::encoder::Encoder;
use super::error::LtxError;
use super::header::Header;
use super::layout::lock_page;

/// One of the files to merge (a *member*), and the next page to read from it.
struct Member<R> {
    decoder: Decoder<R>,
    /// The number of the next page in the file; `None` after the last page. `page` holds the page's image.
    held: Option<u32>,
    page: Vec<u8>,
    /// The pages that this member's transactions added at the end of the database, except those that the merge has
    /// already passed. If the file has no image of such a page, the merge writes zeros. Otherwise the page would get an
    /// older image from an earlier member.
    grown: RangeInclusive<u32>,
}

impl<R: Read> Member<R> {
    fn read(&mut self) -> Result<(), LtxError> {
        self.held = self.decoder.next_page(&mut self.page)?;
        Ok(())
    }

    fn next(&self) -> Option<u32> {
        let grown = (!self.grown.is_empty()).then_some(*self.grown.start());
        self.held.into_iter().chain(grown).min()
    }

    /// Skips `page`, if it is the member's next page.
    fn pass(&mut self, page: u32) -> Result<(), LtxError> {
        if self.grown.start() == &page {
            self.grown.next();
        }
        if self.held == Some(page) { self.read() } else { Ok(()) }
    }
}

/// Writes one file with the transactions of all members. The members are in the order of their transactions. The
/// transactions of two neighbours may overlap. If several members have an image of a page, the new file gets the image
/// of the last one. The new header is that of the last member, except that it names the first transaction of the first
/// member. In memory this function keeps one page and one buffer for each member. After an error the caller must not
/// use the file.
///
/// # Errors
///
/// [`LtxError::Damaged`] if a member is damaged; [`LtxError::Refused`] if there are no members, if they leave a gap, or
/// if their pages differ in size; an I/O error.
pub fn merge<R: Read, W: Write>(members: Vec<R>, writer: W) -> Result<(Header, W, u64), LtxError> {
    let mut all = Vec::new();
    let mut pages_before = u32::MAX;
    for member in members {
        let decoder = Decoder::new(member)?;
        let Header { page_size, commit, .. } = *decoder.header();
        let grown = pages_before.saturating_add(1)..=commit;
        pages_before = commit;
        all.push(Member { decoder, held: None, page: vec![0; page_size as usize], grown });
    }
    let header = check(&all)?;
    let zeros = vec![0; header.page_size as usize];
    for member in &mut all {
        member.read()?;
    }
    let mut encoder = Encoder::new(writer, header)?;
    while let Some(page) = all.iter().filter_map(Member::next).min() {
        let newest = all.iter().rev().find(|member| member.next() == Some(page));
        let image = newest.filter(|newest| newest.held == Some(page)).map_or(&zeros, |newest| &newest.page);
        if page <= header.commit && page != lock_page(header.page_size) {
            encoder.page(page, image)?;
        }
        for member in &mut all {
            if member.next() == Some(page) {
                member.pass(page)?;
            }
        }
    }
    for member in all {
        member.decoder.finish()?;
    }
    let (writer, bytes) = encoder.finish()?;
    Ok((header, writer, bytes))
}

/// Checks that no transaction is missing between the members, and returns the header of the result.
fn check<R: Read>(members: &[Member<R>]) -> Result<Header, LtxError> {
    let (Some(first), Some(last)) = (members.first(), members.last()) else {
        return Err(LtxError::Refused("there is nothing to merge"));
    };
    for pair in members.windows(2) {
        let [before, after] = [pair[0].decoder.header(), pair[1].decoder.header()];
        if before.page_size != after.page_size {
            return Err(LtxError::Refused("files with pages of different sizes"));
        }
        if after.min_txid > before.max_txid.saturating_add(1) || after.max_txid <= before.max_txid {
            return Err(LtxError::Refused("files that do not follow on each other"));
        }
    }
    let first = first.decoder.header();
    let pre_checksum = None;
    Ok(Header { min_txid: first.min_txid, pre_checksum, ..*last.decoder.header() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(min: u64, max: u64, commit: u32, pages: &[(u32, u8)]) -> Vec<u8> {
        let header = Header {
            page_size: 512,
            commit,
            min_txid: min,
            max_txid: max,
            timestamp_ms: max as i64,
            pre_checksum: None,
            wal_offset: 100 * max,
            wal_size: 1,
            wal_salt: [1, 2],
            node_id: 0,
        };
        let mut encoder = Encoder::new(Vec::new(), header).unwrap();
        for (number, byte) in pages {
            encoder.page(*number, &[*byte; 512]).unwrap();
        }
        encoder.finish().unwrap().0
    }

    fn pages(file: &[u8]) -> Vec<(u32, u8)> {
        let mut decoder = Decoder::new(file).unwrap();
        let (mut page, mut pages) = (vec![0; 512], Vec::new());
        while let Some(number) = decoder.next_page(&mut page).unwrap() {
            pages.push((number, page[0]));
        }
        decoder.finish().unwrap();
        pages
    }

    fn merged(members: &[&[u8]]) -> Vec<u8> {
        let (header, file, bytes) = merge(members.to_vec(), Vec::new()).unwrap();
        assert_eq!(bytes, file.len() as u64);
        assert_eq!(*Decoder::new(&file[..]).unwrap().header(), header);
        file
    }

    #[test]
    fn the_last_image_of_a_page_counts_and_the_header_is_the_last() {
        let (a, b) = (file(2, 3, 9, &[(1, 1), (4, 1)]), file(4, 4, 9, &[(2, 2), (4, 2), (9, 2)]));
        let file = merged(&[&a, &b]);
        assert_eq!(pages(&file), [(1, 1), (2, 2), (4, 2), (9, 2)]);
        let header = *Decoder::new(&file[..]).unwrap().header();
        assert_eq!(
            (header.min_txid, header.max_txid, header.timestamp_ms, header.wal_offset),
            (2, 4, 4, 400)
        );
    }

    #[test]
    fn inv69_pages_that_were_cut_off_do_not_come_back_however_the_files_are_grouped() {
        let large = file(2, 2, 9, &[(1, 1), (8, 1)]);
        let small = file(3, 3, 5, &[(1, 2)]);
        let again = file(4, 4, 9, &[(1, 3), (9, 3)]);
        let whole = merged(&[&large, &small, &again]);
        assert_eq!(pages(&whole), [(1, 3), (6, 0), (7, 0), (8, 0), (9, 3)]);
        assert_eq!(merged(&[&merged(&[&large, &small]), &again]), whole);
        assert_eq!(merged(&[&large, &merged(&[&small, &again])]), whole);
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        let (a, b, c) = (file(2, 3, 2, &[(1, 1)]), file(5, 5, 2, &[(1, 1)]), file(3, 3, 2, &[(1, 1)]));
        for members in [vec![], vec![&a[..], &b[..]], vec![&a[..], &c[..]]] {
            assert!(matches!(merge(members, Vec::new()), Err(LtxError::Refused(_))));
        }
    }

    #[test]
    fn a_damaged_member_is_an_error() {
        let a = file(2, 2, 2, &[(1, 1), (2, 1)]);
        let whole = merge(vec![&a[..]], Vec::new()).unwrap();
        for at in 0..a.len() {
            let mut damaged = a.clone();
            damaged[at] ^= 1;
            // LZ4 can encode the same page in several ways, so a damaged file may still decode to the same pages.
            let merged = merge(vec![&damaged[..]], Vec::new());
            assert!(merged.is_err() || merged.unwrap() == whole, "byte {at}");
        }
    }
}
