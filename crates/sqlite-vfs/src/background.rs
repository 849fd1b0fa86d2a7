//! The background thread of a log. The thread checkpoints, so that no committer has to. It also flushes,
//! within a set interval, the commits that Group Synch has acknowledged. [`Maintenance`] says when the thread
//! may work.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use duralite_medium::process::ForksWait;

use crate::attachment::Attachment;
use crate::attachment::maintenance::{self, Maintenance};
use crate::database::{Db, waiting};
use crate::errors::{During, Failure};
use crate::sqlite::connection::{OwnConnection, uri_of};
use crate::sqlite::{Sqlite, VFS_NAME};

/// The longest time for which a checkpoint waits for readers. Writers wait during that time too. After that
/// time the checkpoint ends, and leaves the remaining frames to the next checkpoint.
const BUSY_TIMEOUT: Duration = Duration::from_millis(10);
/// The time for which a checkpoint waits in the queue for WRITE.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(50);
/// The pause after a checkpoint.
const PAUSE: Duration = Duration::from_millis(20);

/// What the background thread needs for its work.
struct Worker {
    maintenance: Arc<Maintenance>,
    attachment: Weak<Attachment>,
    sqlite: &'static Sqlite,
    path: PathBuf,
    flush_interval: Duration,
}

/// Starts the thread for the log of `db`, if the settings ask for a thread and none is running yet.
pub fn start_if_wanted(db: &Db, attachment: &Arc<Attachment>) -> Result<(), Failure> {
    if attachment.outside().is_some() {
        return Ok(());
    }
    let settings = attachment.in_force().clone();
    let wanted = settings.background_checkpoint > 0 || attachment.flush_interval().is_some();
    if !wanted || attachment.maintenance().is_some() {
        return Ok(());
    }
    if settings.background_checkpoint > 0 && db.reserves_bytes()? {
        let message = "background_checkpoint writes pages past a VFS above this one, and this database keeps \
                       bytes at the ends of pages for such a VFS (cksumvfs): leave background_checkpoint \
                       off, and SQLite's auto-checkpoint on";
        return Err(Failure::cannot_open(message));
    }
    if !db.sqlite.api.is_threadsafe() {
        let message = "background_checkpoint and group_synch need a SQLite that is built for threads";
        return Err(Failure::cannot_open(message));
    }
    let started = start(db, attachment)?;
    if let Err(second) = attachment.set_maintenance(started) {
        second.stop();
    }
    Ok(())
}

fn start(db: &Db, attachment: &Arc<Attachment>) -> Result<Arc<Maintenance>, Failure> {
    let maintenance = Arc::new(Maintenance::default());
    let worker = Worker {
        maintenance: Arc::clone(&maintenance),
        attachment: Arc::downgrade(attachment),
        sqlite: db.sqlite,
        path: db.path.clone(),
        flush_interval: attachment.flush_interval().unwrap_or_default(),
    };
    let thread = std::thread::Builder::new().name("duralite".to_owned());
    thread
        .spawn(move || worker.run())
        .map_err(|error| Failure::cannot_open(format!("cannot start a thread: {error}")))?;
    Ok(maintenance)
}

impl Worker {
    fn run(self) {
        maintenance::become_worker();
        while let Some((checkpoint, flush)) = self.maintenance.next() {
            if flush {
                std::thread::sleep(self.flush_interval);
                self.maintenance.begin_flush();
                self.flush();
            }
            if checkpoint {
                if let Err(failure) = self.checkpoint() {
                    self.sqlite.fail(&failure);
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn flush(&self) {
        let Some(_turn) = self.maintenance.own_turn(false) else { return };
        let Some(attachment) = self.attachment.upgrade() else { return };
        if let Some(Err(error)) = attachment.durability_waiter().map(|waiter| waiter.wait_all()) {
            self.sqlite.fail(&Failure::of(&error, During::Sync));
        }
    }

    /// Checkpoints most of the log while writers continue. Then keeps writers out, and checkpoints the few
    /// frames that they have added meanwhile. The next writer then starts the log over.
    fn checkpoint(&self) -> Result<(), Failure> {
        let Some(_turn) = self.maintenance.own_turn(true) else { return Ok(()) };
        // Let forks wait for the end of the checkpoint. Otherwise a child that is forked during SQLite's work
        // could find SQLite's allocator locked for good.
        let _forks = ForksWait::begin();
        // Read the settings now, because some of them can be changed while the log is in use.
        let Some(settings) = self.attachment.upgrade().map(|attachment| attachment.in_force().clone()) else {
            return Ok(());
        };
        let purpose = "cannot checkpoint in the background";
        let uri = uri_of(&self.path, &settings.parameters())?;
        let own = OwnConnection::open(
            &self.sqlite.api,
            &uri,
            VFS_NAME,
            waiting::in_queue(BUSY_TIMEOUT, QUEUE_TIMEOUT),
            purpose,
        )?;
        own.run(c"PRAGMA wal_autocheckpoint=0")?;
        own.run(c"PRAGMA wal_checkpoint(PASSIVE)")?;
        own.run(c"PRAGMA wal_checkpoint(RESTART)")?;
        Ok(())
    }
}
