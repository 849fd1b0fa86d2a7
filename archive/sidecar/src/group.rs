//! Makes one object of the archive from several commits: finds the pages that the object must have, and encodes it. The
//! commits come from a log (`source`) or from the backlog of a closed log (`backlog`).

use std::collections::BTreeMap;

use anyhow::Result;
use duralite_format::LogId;
use duralite_ltx::{Encoder, Header, lock_page};
use duralite_wal::shared::archived::Behind;
use tempfile::SpooledTempFile;

/// An encoded file stays in memory if it has at most this many bytes.
pub const IN_MEMORY: usize = 4 << 20;
/// A group is complete when its pages have this many bytes. So a sidecar that is far behind does not need memory for
/// all commits at once. A transaction is never divided.
pub const BYTES: usize = 8 << 20;

/// How far the archive has come: the number of its last transaction, and the position of that transaction in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// The number of the generation.
    pub generation: u64,
    /// The last transaction in the archive.
    pub txid: u64,
    /// The first eight bytes of the log's id.
    pub log: [u32; 2],
    /// The log's position after the transaction.
    pub position: u64,
    /// The time at which the transaction was committed, in milliseconds since 1970.
    pub time_ms: i64,
}

impl Mark {
    /// Returns the mark of the last transaction of an object, from the object's header. The header has the position
    /// plus one, because the format does not allow the position 0 in a file that names a log.
    pub fn of(header: &Header) -> Self {
        Self {
            generation: header.node_id,
            txid: header.max_txid,
            log: header.wal_salt,
            position: header.wal_offset.saturating_sub(1),
            time_ms: header.timestamp_ms,
        }
    }

    /// Returns the time at which the transaction was sealed, in milliseconds since 1970, as the unsigned number that
    /// the log stores.
    pub fn sealed_ms(&self) -> u64 {
        u64::try_from(self.time_ms).unwrap_or(0)
    }

    /// Returns the header of a file whose last transaction is that of this mark.
    pub fn header(&self, min_txid: u64, page_size: u32, commit: u32, commits: u64) -> Header {
        Header {
            page_size,
            commit,
            min_txid,
            max_txid: self.txid,
            timestamp_ms: self.time_ms,
            pre_checksum: None,
            wal_offset: self.position.saturating_add(1),
            wal_size: commits,
            wal_salt: self.log,
            node_id: self.generation,
        }
    }
}

/// Returns the part of a log's id that an object's header can hold.
pub fn salts(id: LogId) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    match [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])] {
        [0, 0] => [0, 1],
        salts => salts,
    }
}

/// A commit without its pages.
#[derive(Debug, Clone, Copy)]
pub struct Commit {
    /// The log's position after the commit.
    pub position: u64,
    /// The time at which the commit was sealed, in milliseconds since 1970; 0 if the log does not say.
    pub time_ms: u64,
    /// The size of the database in pages after the commit.
    pub db_pages: u32,
}

/// Consecutive commits. For each page that they wrote, the group knows the place of the last image.
#[derive(Debug)]
pub struct Group<T> {
    page_size: u32,
    log: LogId,
    commits: u64,
    /// The time at which the first commit was sealed, in milliseconds since 1970; 0 if the log does not say.
    since_ms: u64,
    last: Option<Commit>,
    /// The place of the last image of each page; `None` if the page has only zeros.
    pages: BTreeMap<u32, Option<T>>,
}

impl<T> Group<T> {
    /// Returns a group without commits.
    pub fn new(page_size: u32, log: LogId) -> Self {
        Self { page_size, log, commits: 0, since_ms: 0, last: None, pages: BTreeMap::new() }
    }

    /// Returns an empty group for the commits that follow this group.
    pub fn next(&self) -> Self {
        Self { last: self.last, ..Self::new(self.page_size, self.log) }
    }

    /// Returns whether the group has no commit.
    pub fn is_empty(&self) -> bool {
        self.commits == 0
    }

    /// Returns how many transactions and bytes the group has.
    pub fn size(&self) -> Behind {
        Behind { transactions: self.commits, bytes: self.bytes() as u64, since_ms: self.since_ms }
    }

    /// Returns the number of bytes of the group's pages.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.page_size as usize
    }

    /// Returns the places of all page images. A page of zeros has no place.
    pub fn images(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.values_mut().flatten()
    }

    /// Adds the next commit. A commit may make the database longer without writing all the pages that it adds. Such a
    /// page has only zeros, as in a file that is merged from the files of single commits. A commit of this group may
    /// have written the page before an earlier commit made the database shorter. The group must not use that image.
    pub fn push(&mut self, commit: Commit, pages: impl IntoIterator<Item = (u32, T)>) {
        if let Some(before) = self.last {
            self.pages.extend((before.db_pages.saturating_add(1)..=commit.db_pages).map(|page| (page, None)));
        }
        self.pages.extend(pages.into_iter().map(|(page, image)| (page, Some(image))));
        if self.commits == 0 {
            self.since_ms = commit.time_ms;
        }
        self.commits += 1;
        self.last = Some(commit);
    }

    /// Returns whether the group is complete, so that the next commit begins another group.
    pub fn is_full(&self) -> bool {
        self.bytes() >= BYTES
    }

    /// Encodes the commits as the transactions that follow the mark `after`. Calls `read` for each image. Returns the
    /// file, and the mark of its last transaction; `None` if the group has no commit.
    ///
    /// # Errors
    /// An error of `read`; the file system of temporary files is full.
    pub fn encode(
        &self,
        after: &Mark,
        mut read: impl FnMut(&T, &mut [u8]) -> Result<()>,
    ) -> Result<Option<(SpooledTempFile, Mark)>> {
        let Some(last) = self.last.filter(|_| !self.is_empty()) else { return Ok(None) };
        let mark = Mark {
            generation: after.generation,
            txid: after.txid + self.commits,
            log: salts(self.log),
            position: last.position,
            // Even if somebody has set the clock back, a transaction gets no earlier time than the one before it.
            time_ms: i64::try_from(last.time_ms).unwrap_or(i64::MAX).max(after.time_ms),
        };
        let header = mark.header(after.txid + 1, self.page_size, last.db_pages, self.commits);
        let mut encoder = Encoder::new(SpooledTempFile::new(IN_MEMORY), header)?;
        let mut page = vec![0; self.page_size as usize];
        let in_database = self.pages.range(..=last.db_pages);
        for (number, image) in in_database.filter(|(number, _)| **number != lock_page(self.page_size)) {
            match image {
                Some(image) => read(image, &mut page)?,
                None => page.fill(0),
            }
            encoder.page(*number, &page)?;
        }
        Ok(Some((encoder.finish()?.0, mark)))
    }
}
