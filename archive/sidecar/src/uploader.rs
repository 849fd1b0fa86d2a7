//! Uploads groups of commits, and acknowledges them. Before it acknowledges commits, it *looks* whether another primary
//! has claimed the next generation of the archive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use duralite_archive::{ArchiveError, Primary};
use duralite_wal::shared::archived::Behind;
use duralite_wal::{ErrorKind, LogError};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tempfile::SpooledTempFile;
use tokio::runtime::Handle;

use crate::beside::Beside;
use crate::group::Mark;
use crate::source::{LogGroup, Source};
use crate::upload::upload_group;

/// How often the sidecar checks, during an upload, whether a connection wants to start the log over.
const ASKED: Duration = Duration::from_millis(1);
/// How often the sidecar publishes how much the archive lacks.
const SHOWN: Duration = Duration::from_millis(100);
/// How often the sidecar checks for further commits while a group waits for them.
const GATHERED: Duration = Duration::from_micros(200);
/// If the previous group took less time than this, the sidecar uploads no group while a look runs. The archive is then
/// so fast that the processors are the bottleneck, and smaller groups would cost more processor time for each commit.
const SLOW: Duration = Duration::from_millis(10);
/// While a look runs, the sidecar uploads the next group only if it is large enough. For every `STRAGGLERS` commits
/// that the look acknowledges, the group must have at least one commit.
const STRAGGLERS: u64 = 4;

/// Uploads groups of commits.
///
/// The log keeps the commits that are not in the archive yet. But while connections commit all the time, there are
/// always such commits, and the log would grow up to its limit. So when a connection wants to start the log over, it
/// asks the sidecar. The sidecar then reads the log to its end, keeps the commits itself, and releases its pin on the
/// log. If the sidecar dies before these commits are in the archive, the log may have dropped them. Then the archive
/// has a gap, and a new generation begins with a snapshot.
///
/// If commits wait for the archive, the sidecar uploads the next group while a look for the previous group still runs.
/// Invariant 66 allows this: it requires only that the look for a commit begins after the upload of that commit. At any
/// time there is at most one look and at most one upload, so that the archive never has a gap.
pub struct Uploader<'a> {
    runtime: &'a Handle,
    beside: &'a Beside,
    /// Whether to stop. Once this is set, the uploader ignores requests to start the log over.
    stop: &'a AtomicBool,
    primary: Arc<Primary>,
    /// The position up to which the log may drop its commits, because the archive has them or the sidecar holds them.
    pinned: u64,
    /// The mark of the last transaction in the archive, whether it is acknowledged or not.
    stored: Mark,
    /// The time at which the upload of that transaction began.
    stored_since: Instant,
    /// The running upload and the running look. The uploader's own thread runs them while it waits for them. On other
    /// threads, the memory of their buffers would stay in the heaps of those threads.
    tasks: FuturesUnordered<BoxFuture<'static, Event>>,
    /// The size of the group that is being uploaded.
    uploading: Option<Behind>,
    /// The number of commits that the running look acknowledges; `None` if no look runs.
    looking: Option<u64>,
    /// The next group to upload, if it is already encoded, for example because an earlier upload of it has failed. It
    /// no longer needs the log.
    failed: Option<Encoded>,
    /// The position after the last group that was encoded.
    encoded: u64,
    /// The commits for the next group that were read from the log so far.
    next: LogGroup,
    gathering: Gathering,
    /// The time at which the uploader last published how much the archive lacks.
    shown: Instant,
}

/// A group of commits, encoded as an object of the archive.
struct Encoded {
    file: SpooledTempFile,
    after: Mark,
    size: Behind,
}

/// The commits that a look acknowledges: those that were in the archive when the look began.
struct Look {
    after: Mark,
    commits: u64,
    /// The time at which the upload of the last of these commits began.
    since: Instant,
}

/// The result of a task that has ended.
enum Event {
    Uploaded(Instant, Encoded, Result<()>),
    Looked(Look, Result<u64, ArchiveError>),
}

impl<'a> Uploader<'a> {
    /// Makes an uploader for those commits of a log that come after the mark `after`.
    pub fn new(
        runtime: &'a Handle,
        beside: &'a Beside,
        stop: &'a AtomicBool,
        primary: &Arc<Primary>,
        source: &Source,
        after: &Mark,
    ) -> Self {
        let next = source.group_after(after.position);
        Self {
            runtime,
            beside,
            stop,
            primary: Arc::clone(primary),
            pinned: next.position(),
            stored: *after,
            stored_since: Instant::now(),
            tasks: FuturesUnordered::new(),
            uploading: None,
            looking: None,
            failed: None,
            encoded: next.position(),
            next,
            gathering: Gathering::new(Instant::now()),
            shown: Instant::now(),
        }
    }

    /// Archives the next commits, up to the position `until` if it is given. Returns `false` if there were none.
    /// Otherwise waits until some commits are acknowledged, wakes the connections that wait for these, and moves `mark`
    /// to the last of these. Uploads of later commits may still be running.
    ///
    /// # Errors
    /// Those of the log, of [`Primary::upload`] and of [`Primary::acknowledge`]. The uploader keeps what it has read
    /// for the next call.
    pub fn upload(&mut self, source: &mut Source, mark: &mut Mark, until: Option<u64>) -> Result<bool> {
        loop {
            self.begin_look(mark);
            let is_gathering = match self.begin_upload(source, until) {
                // First wait for the running upload and look. After that, `begin_upload` returns the same error again.
                Err(_) if self.is_busy() => false,
                begun => begun?,
            };
            if !is_gathering && !self.is_busy() {
                return Ok(false);
            }
            match self.wait(if is_gathering { GATHERED } else { ASKED }) {
                None => {
                    // Ignore an error here, because the next upload reports it. Until then the running upload and look
                    // continue.
                    drop(self.answer(source, until));
                    if self.shown.elapsed() > SHOWN {
                        let _ = self.show_behind(source);
                    }
                }
                Some(Event::Uploaded(_, encoded, Err(error))) => {
                    self.failed = Some(encoded);
                    return Err(error);
                }
                Some(Event::Uploaded(began, encoded, Ok(()))) => {
                    (self.stored, self.stored_since) = (encoded.after, began);
                }
                Some(Event::Looked(look, acknowledged)) => {
                    ensure!(
                        acknowledged? >= look.after.txid,
                        "the archive has nothing to restore these commits on"
                    );
                    let waiting = source.follower().newest()?.saturating_sub(self.encoded);
                    source.follower().set_replicated(look.after.position, look.after.sealed_ms())?;
                    self.gathering.expect(waiting, look.commits, look.since.elapsed(), Instant::now());
                    self.pinned = self.pinned.max(look.after.position);
                    *mark = look.after;
                    return Ok(true);
                }
            }
        }
    }

    /// Begins a look, if the archive has commits that are not acknowledged.
    fn begin_look(&mut self, mark: &Mark) {
        if self.looking.is_some() || self.stored.txid == mark.txid {
            return;
        }
        let commits = self.stored.txid - mark.txid;
        let look = Look { after: self.stored, commits, since: self.stored_since };
        let primary = Arc::clone(&self.primary);
        self.looking = Some(commits);
        self.tasks.push(Box::pin(async move { Event::Looked(look, primary.acknowledge().await) }));
    }

    /// Begins to upload the next group, if it need not wait. Returns whether the group waits for further commits.
    fn begin_upload(&mut self, source: &mut Source, until: Option<u64>) -> Result<bool> {
        if self.uploading.is_some() {
            return Ok(false);
        }
        if self.failed.is_none() {
            let may_wait = until.is_none() && !self.stop.load(Ordering::Relaxed);
            let waiting = source.follower().newest()?.saturating_sub(self.encoded);
            if let Some(before) = self.looking {
                let is_enough = waiting >= (before / STRAGGLERS).max(1);
                let is_slow = self.gathering.took >= SLOW;
                if !may_wait || !is_slow || !is_enough || !source.follower().is_awaited()? {
                    return Ok(false);
                }
            }
            let others = self.looking.unwrap_or(0);
            if may_wait && !self.gathering.is_over(waiting, others, Instant::now()) {
                return Ok(true);
            }
            self.failed = self.encode(source, until)?;
        }
        let Some(mut group) = self.failed.take() else { return Ok(false) };
        let (began, min) = (Instant::now(), self.stored.txid + 1);
        let primary = Arc::clone(&self.primary);
        self.gathering.begin(group.after.txid - self.stored.txid);
        self.uploading = Some(group.size);
        self.tasks.push(Box::pin(async move {
            let uploaded = upload_group(&primary, &mut group.file, min, &group.after).await;
            Event::Uploaded(began, group, uploaded)
        }));
        Ok(false)
    }

    /// Waits for at most `limit` until the upload or the look has ended.
    fn wait(&mut self, limit: Duration) -> Option<Event> {
        if self.tasks.is_empty() {
            std::thread::sleep(limit);
            return None;
        }
        let ended = self.runtime.block_on(async { tokio::time::timeout(limit, self.tasks.next()).await });
        let event = ended.ok()??;
        match &event {
            Event::Uploaded(..) => self.uploading = None,
            Event::Looked(..) => self.looking = None,
        }
        Some(event)
    }

    /// Reads and encodes the next group of commits, up to the position `until` if it is given. Returns `None` if there
    /// are no commits.
    fn encode(&mut self, source: &mut Source, until: Option<u64>) -> Result<Option<Encoded>> {
        match source.collect(&mut self.next, until, true) {
            // The log has dropped commits. But the group holds earlier commits, so the uploader archives these first.
            Err(error) if error.kind() == ErrorKind::LostPlace && self.next.is_held() => {}
            collected => collected?,
        }
        // This check must come after the read. It then notices every earlier change of the database that was not a
        // commit.
        if self.beside.is_broken(source.id())? {
            return Ok(None);
        }
        let Some((file, after)) = source.encode(&mut self.next, &self.stored)? else { return Ok(None) };
        let size = self.next.size();
        self.encoded = after.position;
        self.next = self.next.next();
        Ok(Some(Encoded { file, after, size }))
    }

    /// If a connection wants to start the log over, copies the commits up to the end of the log or up to `until`, and
    /// moves the pin on the log past them. Returns `false` if the uploader can hold no more commits.
    ///
    /// # Errors
    /// Those of the log, and of the file system of temporary files.
    pub fn answer(&mut self, source: &mut Source, until: Option<u64>) -> Result<bool> {
        if self.stop.load(Ordering::Relaxed) || !source.follower().is_asked_to_read(self.next.position())? {
            return Ok(true);
        }
        if self.next.is_full() {
            return Ok(false);
        }
        source.collect(&mut self.next, until, false)?;
        source.hold(&mut self.next)?;
        self.pinned = self.next.position();
        self.pin(source)?;
        Ok(true)
    }

    /// Pins the log after the commits that the archive has or the uploader holds.
    ///
    /// # Errors
    /// The kind is `LostPlace` if the log no longer has the commits after the pin.
    pub fn pin(&self, source: &mut Source) -> Result<(), LogError> {
        source.follower().pin(self.pinned).map(drop)
    }

    /// Publishes how much the archive lacks, and returns it.
    ///
    /// # Errors
    /// Those of the log.
    pub fn show_behind(&mut self, source: &mut Source) -> Result<Behind, LogError> {
        self.shown = Instant::now();
        let on_the_way = self.uploading.or(self.failed.as_ref().map(|group| group.size)).unwrap_or_default();
        source.follower().show_behind(on_the_way.and(self.next.size()), self.next.position())
    }

    /// Returns whether an upload or a look is running.
    pub fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Returns whether the uploader has read commits that it has not archived.
    pub fn holds_anything(&self) -> bool {
        self.is_busy() || self.failed.is_some() || !self.next.is_empty()
    }
}

/// Decides when the next group begins. When commits are acknowledged, their connections commit again at once, but not
/// all at the same moment. A commit that comes too late for the next group waits for two uploads. So the group waits a
/// while for these connections.
///
/// If hundreds of connections take long to commit, they form two groups that alternate: while the connections of one
/// group commit, the other group is uploaded. So a group may begin when half of the expected commits have come. But it
/// must then be at least twice as large as the group that is being acknowledged. If connections commit quickly, a
/// second group would gain nothing and would cost twice the requests.
struct Gathering {
    /// The number of commits that the next group should have.
    expected: u64,
    /// The time at which `expected` was last raised.
    since: Instant,
    /// The time that the previous group took, from the beginning of its upload to its acknowledgement.
    took: Duration,
    /// The number of commits that have come for the next group. `came` is the time at which the last of them came.
    had: u64,
    came: Instant,
}

/// How long a group waits for its expected commits, as fractions of the time that the previous group took. A group
/// waits for at most that time divided by `GATHERING`. It gives up earlier if no commit comes for that time divided by
/// `GATHERING_NEXT`. Once that shorter time is over, half of the expected commits are enough.
const GATHERING: u32 = 2;
const GATHERING_NEXT: u32 = 8;

impl Gathering {
    fn new(now: Instant) -> Self {
        Self { expected: 0, since: now, took: Duration::ZERO, had: 0, came: now }
    }

    /// Sets how many commits to expect: those that are already waiting, and one from each connection whose commit was
    /// just acknowledged. `took` is the time that the acknowledged group took.
    fn expect(&mut self, waiting: u64, acknowledged: u64, took: Duration, now: Instant) {
        self.expected = self.expected.max(waiting) + acknowledged;
        (self.since, self.took) = (now, took);
    }

    /// Returns whether the group need not wait longer. It has `waiting` commits so far. Meanwhile a look is
    /// acknowledging `others` other commits.
    fn is_over(&mut self, waiting: u64, others: u64, now: Instant) -> bool {
        if waiting > self.had {
            (self.had, self.came) = (waiting, now);
        }
        if waiting >= self.expected {
            return true;
        }
        let (since, next) = (now - self.since, self.took / GATHERING_NEXT);
        if since >= self.took / GATHERING || now - self.came.max(self.since) >= next {
            // From now on, expect nothing from connections that have not committed yet.
            self.expected = 0;
            return true;
        }
        since >= next && waiting >= self.expected.div_ceil(2).max(2 * others)
    }

    /// Records that a group of `commits` commits has begun.
    fn begin(&mut self, commits: u64) {
        self.expected = self.expected.saturating_sub(commits);
        self.had = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(40);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns the state just after a group of 100 commits was acknowledged, and the time of that acknowledgement.
    fn after_a_group() -> (Gathering, Instant) {
        let now = Instant::now();
        let mut gathering = Gathering::new(now);
        gathering.expect(0, 100, TOOK, now);
        (gathering, now)
    }

    #[test]
    fn the_first_group_waits_for_nobody() {
        let now = Instant::now();
        assert!(Gathering::new(now).is_over(1, 0, now));
    }

    #[test]
    fn a_group_waits_for_those_who_were_acknowledged() {
        let (mut gathering, now) = after_a_group();
        assert!(!gathering.is_over(0, 0, now + ms(1)));
        assert!(!gathering.is_over(99, 0, now + ms(4)));
        assert!(gathering.is_over(100, 0, now + ms(4)));
    }

    #[test]
    fn a_group_does_not_wait_for_those_who_stay_away() {
        let (mut gathering, now) = after_a_group();
        assert!(!gathering.is_over(10, 0, now + ms(4)));
        assert!(!gathering.is_over(10, 0, now + ms(8)), "the last one came less than an eighth of 40 ms ago");
        assert!(gathering.is_over(10, 0, now + ms(9)));
        let (mut gathering, now) = after_a_group();
        for waiting in 1..20 {
            assert!(!gathering.is_over(waiting, 0, now + ms(waiting)), "{waiting}");
        }
        assert!(gathering.is_over(20, 0, now + ms(20)), "half of 40 ms is over");
        gathering.begin(20);
        assert!(gathering.is_over(1, 0, now + ms(21)), "the others are not expected any more");
    }

    #[test]
    fn half_of_them_begin_if_all_take_long_and_hardly_anybody_is_on_the_way() {
        let (mut gathering, now) = after_a_group();
        assert!(!gathering.is_over(60, 0, now + ms(4)), "all of them could come at once");
        assert!(!gathering.is_over(49, 0, now + ms(5)));
        assert!(!gathering.is_over(50, 26, now + ms(5)), "two groups take turns already");
        assert!(gathering.is_over(50, 25, now + ms(5)));
        gathering.begin(50);
        assert!(!gathering.is_over(49, 50, now + ms(6)), "the other half is expected");
        assert!(gathering.is_over(50, 50, now + ms(6)));
    }

    #[test]
    fn those_who_wait_already_belong_to_the_next_group_too() {
        let (mut gathering, now) = after_a_group();
        assert!(gathering.is_over(100, 0, now));
        gathering.begin(100);
        gathering.expect(7, 100, TOOK, now + ms(40));
        assert!(!gathering.is_over(106, 0, now + ms(41)));
        assert!(gathering.is_over(107, 0, now + ms(41)));
    }
}
