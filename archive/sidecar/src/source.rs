//! The log of a database as the archive reads it: groups of commits.

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

/// Bytes of page images that the sidecar keeps to rebuild later ones from. Each image is read once, or a few times.
const CACHE_BYTES: usize = 2 << 20;

/// What a log holds after a position.
pub struct Source {
    follower: Follower,
}

/// Commits of a log that become one object of the archive.
pub struct LogGroup {
    group: Group<Image>,
    /// The position after its last commit.
    position: u64,
    /// The transactions that have images in the log.
    transactions: Vec<FollowedTransaction>,
    /// The images that were read, one after another. Not one allocation for each: freed among others, those would stay
    /// with the process.
    held: SpooledTempFile,
    held_bytes: u64,
    /// Whether the next transaction does not fit.
    is_stuck: bool,
}

/// Bytes of images up to which a group holds them in memory, and not in a temporary file.
const HELD_IN_MEMORY: usize = 1 << 20;
/// Bytes of images from which on a group holds no more, also where they are of the same pages.
const HELD: u64 = 2 * BYTES as u64;

/// The image of a page.
enum Image {
    /// Held, at this offset.
    Held(u64),
    /// In the log: that of a page of a transaction, by the indexes of both.
    InLog(usize, usize),
}

impl LogGroup {
    /// Returns a group without commits, for those that follow on this one's.
    pub fn next(&self) -> Self {
        Self::new(self.group.next(), self.position)
    }

    fn new(group: Group<Image>, position: u64) -> Self {
        let held = SpooledTempFile::new(HELD_IN_MEMORY);
        Self { group, position, transactions: Vec::new(), held, held_bytes: 0, is_stuck: false }
    }

    /// Returns whether it has no commit.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty()
    }

    /// Returns how much it is.
    pub fn size(&self) -> Behind {
        self.group.size()
    }

    /// Returns the position after its last commit.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether no further commit can be held. It has to be uploaded first.
    pub fn is_full(&self) -> bool {
        self.is_stuck || self.group.is_full() || self.held_bytes > HELD
    }

    /// Returns whether it has commits, and no longer needs the log for them.
    pub fn is_held(&self) -> bool {
        self.transactions.is_empty() && !self.is_empty()
    }
}

impl Source {
    /// Follows the log of a database; `None` if the database has no log.
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

    /// Page size in bytes.
    pub fn page_bytes(&self) -> u32 {
        self.follower.page_bytes()
    }

    /// Returns the follower itself.
    pub fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    /// Returns a group without commits, for those after a position.
    pub fn group_after(&self, position: u64) -> LogGroup {
        LogGroup::new(Group::new(self.page_bytes(), self.id()), position)
    }

    /// Adds to a group the commits that follow on it: as many as there are, up to a limit of memory or up to the position
    /// `until`. A transaction that is too large to be held becomes a group of its own, or none unless `large`.
    ///
    /// # Errors
    /// `LostPlace` as the source, if the log no longer has the commits that follow.
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

    /// Reads the images of a group, so that it no longer needs the log.
    ///
    /// # Errors
    /// `LostPlace` as the source if the log has started over since they were collected, or it cannot be read; the file
    /// system of temporary files is full.
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

    /// Encodes commits that follow on a mark. Returns the file and the mark after them; nothing if there are none.
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

    /// Waits until there is a commit after a position, for at most `limit`. Returns whether there is one.
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
