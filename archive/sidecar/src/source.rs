//! Reads the log of a database for the archive, in groups of commits.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use duralite_cli::locate;
use duralite_cli::target::Target;
use duralite_format::LogId;
use duralite_format::guard::DatabaseHeader;
use duralite_wal::log::offline;
use duralite_wal::shared::archived::Behind;
use duralite_wal::{EngineOptions, FollowedTransaction, Follower, LogError};
use tempfile::SpooledTempFile;

use crate::group::{BYTES, Commit, Group, Mark};

/// The size in bytes of the follower's cache of page images. The follower builds later images from cached ones. The
/// sidecar reads each image only once, or a few times.
const CACHE_BYTES: usize = 2 << 20;

/// A log that the archive reads.
pub struct Source {
    follower: Follower,
}

/// A database's log, from which the sidecar reads commits for the archive.
pub struct LogGroup {
    group: Group<Image>,
    /// The position after the group's last commit.
    position: u64,
    /// The transactions whose images this group has not copied out of the log yet.
    transactions: Vec<FollowedTransaction>,
    /// The images that this group has copied out of the log, one after another. They are not separate allocations,
    /// because the allocator would not return the freed memory to the system.
    held: SpooledTempFile,
    held_bytes: u64,
    /// Whether the next transaction was too large for the group.
    is_stuck: bool,
}

/// If a group holds at most this many bytes of images, it keeps them in memory. Otherwise it keeps them in a temporary
/// file.
const HELD_IN_MEMORY: usize = 1 << 20;
/// If a group holds more than this many bytes of images, it takes no further commit. `BYTES` counts each page only
/// once, but a group may hold several images of a page.
const HELD: u64 = 2 * BYTES as u64;

/// The place of a page's image.
enum Image {
    /// The image is in [`LogGroup::held`], at this offset.
    Held(u64),
    /// The image is in the log. The first number is the index of its transaction, and the second the index of the
    /// page in that transaction.
    InLog(usize, usize),
}

impl LogGroup {
    /// Returns an empty group for the commits after those of this group.
    pub fn next(&self) -> Self {
        Self::new(self.group.next(), self.position)
    }

    fn new(group: Group<Image>, position: u64) -> Self {
        let held = SpooledTempFile::new(HELD_IN_MEMORY);
        Self { group, position, transactions: Vec::new(), held, held_bytes: 0, is_stuck: false }
    }

    /// Returns whether the group has no commit.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    /// Returns how many transactions and bytes the group has.
    pub fn size(&self) -> Behind {
        self.group.size()
    }

    /// Returns the position after the group's last commit.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether the group can take no further commit. The caller has to upload the group first.
    pub fn is_full(&self) -> bool {
        self.is_stuck || self.group.is_full() || self.held_bytes > HELD
    }

    /// Returns whether the group has commits, and has copied all their images out of the log.
    pub fn is_held(&self) -> bool {
        self.transactions.is_empty() && !self.is_empty()
    }
}

impl Source {
    /// Begins to follow the log of a database. Returns `None` if the database has no log.
    ///
    /// # Errors
    /// The log is missing or damaged, or this user may not write it; the database is not in WAL mode.
    pub fn open(target: &Target) -> Result<Option<Self>> {
        let DatabaseHeader::Guarded { log_id, .. } = offline::inspect(&target.path)? else { return Ok(None) };
        let Some(log) = locate::find(target, log_id) else {
            // The log's last user may have deleted it since the header was read.
            return match offline::inspect(&target.path)? {
                DatabaseHeader::Guarded { log_id: id, .. } if id == log_id => {
                    bail!(locate::missing(target, log_id))
                }
                _ => Ok(None),
            };
        };
        let mut options = EngineOptions::default();
        options.cache_bytes = Some(CACHE_BYTES);
        match Follower::open(&log.placement, &options, &target.path) {
            Ok(follower) => Ok(Some(Self { follower })),
            Err(LogError::NoLog(_)) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("follow the log of {}", target.path.display())),
        }
    }

    /// Returns the log's id.
    pub fn id(&self) -> LogId {
        self.follower.id()
    }

    /// Returns the page size in bytes.
    pub fn page_bytes(&self) -> u32 {
        self.follower.page_bytes()
    }

    /// Returns the follower itself.
    pub fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    /// Returns an empty group for the commits after a position.
    pub fn group_after(&self, position: u64) -> LogGroup {
        LogGroup::new(Group::new(self.page_bytes(), self.id()), position)
    }

    /// Adds the next commits of the log to a group. Stops at the end of the log, at the position `until`, or when the
    /// group is full. Does not add a transaction that does not fit into the group, unless the group is empty and
    /// `large` is set.
    ///
    /// # Errors
    /// The kind is `LostPlace` if the log has dropped the next commits.
    pub fn collect(&mut self, found: &mut LogGroup, until: Option<u64>, large: bool) -> Result<(), LogError> {
        found.is_stuck = false;
        while until.is_none_or(|until| found.position < until) && !found.group.is_full() {
            let Some(transaction) = self.follower.read_since(found.position)? else { break };
            let bytes = found.group.bytes() + transaction.pages.len() * self.page_bytes() as usize;
            if bytes > BYTES && !(large && found.is_empty()) {
                found.is_stuck = true;
                break;
            }
            let nth = found.transactions.len();
            let pages = transaction.pages.iter().enumerate();
            let pages = pages.map(|(index, page)| (*page, Image::InLog(nth, index)));
            let FollowedTransaction { position, time_ms, db_pages, .. } = transaction;
            found.group.push(Commit { position, time_ms, db_pages }, pages);
            found.position = position;
            found.transactions.push(transaction);
        }
        Ok(())
    }

    /// Copies the images of a group out of the log, so that the group no longer needs the log.
    ///
    /// # Errors
    /// A `LogError` of the kind `LostPlace` if the log has started over since the commits were collected; the log
    /// cannot be read; the file system of temporary files is full.
    pub fn hold(&mut self, found: &mut LogGroup) -> Result<()> {
        let mut page = vec![0; self.page_bytes() as usize];
        found.held.seek(SeekFrom::Start(found.held_bytes))?;
        for image in found.group.images() {
            if let Image::InLog(nth, index) = *image {
                read_image(&mut self.follower, &found.transactions, nth, index, &mut page)?;
                found.held.write_all(&page)?;
                *image = Image::Held(found.held_bytes);
                found.held_bytes += page.len() as u64;
            }
        }
        found.transactions.clear();
        Ok(())
    }

    /// Encodes a group of commits as the transactions after the mark `after`. Returns the file, and the mark of its
    /// last transaction; `None` if the group has no commit.
    ///
    /// # Errors
    /// As [`Source::hold`].
    pub fn encode(&mut self, found: &mut LogGroup, after: &Mark) -> Result<Option<(SpooledTempFile, Mark)>> {
        let LogGroup { group, transactions, held, .. } = found;
        group.encode(after, |image, page| match *image {
            Image::Held(offset) => {
                held.seek(SeekFrom::Start(offset))?;
                Ok(held.read_exact(page)?)
            }
            Image::InLog(nth, index) => Ok(read_image(&mut self.follower, transactions, nth, index, page)?),
        })
    }

    /// Waits for at most `limit` until there is a commit after a position. Returns whether there is one.
    ///
    /// # Errors
    /// As [`Source::collect`].
    pub fn wait(&mut self, position: u64, limit: Duration) -> Result<bool, LogError> {
        self.follower.wait(position, limit)
    }
}

fn read_image(
    follower: &mut Follower,
    transactions: &[FollowedTransaction],
    nth: usize,
    index: usize,
    page: &mut [u8],
) -> Result<(), LogError> {
    let unknown = LogError::Unexpected("a transaction that a group does not have");
    follower.read_page(transactions.get(nth).ok_or(unknown)?, index, page)
}
