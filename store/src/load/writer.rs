//! Writes adjacent pages home together. If a load has many pages, a separate thread writes them while the load builds
//! the next ones.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use duralite_medium::block::AlignedBuf;

use crate::buffer::Pool;
use crate::error::Error;
use crate::format::{Lsn, PageId, set_lsn};

/// The largest number of bytes in one write.
const WRITE_BYTES: usize = 1 << 20;
/// The largest number of writes that may be waiting or in progress while the load fills the next buffer.
const AT_WORK: usize = 2;

/// Adjacent pages that are written together.
#[derive(Debug, Default)]
struct Job {
    first: PageId,
    count: usize,
    buffer: AlignedBuf,
}

/// The writing thread.
#[derive(Debug)]
struct Worker {
    jobs: SyncSender<Job>,
    done: Receiver<(Job, Result<(), Error>)>,
    at_work: usize,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
pub(super) struct Writer {
    pool: Arc<Pool>,
    filling: Job,
    worker: Option<Worker>,
}

fn carry_out(pool: &Pool, job: &mut Job) -> Result<(), Error> {
    let bytes = job.count * pool.page_bytes();
    pool.write_past(job.first, &mut job.buffer.as_mut_slice()[..bytes])
}

impl Worker {
    fn start(pool: &Arc<Pool>) -> Result<Self, Error> {
        let (jobs, given) = sync_channel::<Job>(AT_WORK);
        let (tell, done) = sync_channel(AT_WORK);
        let pool = Arc::clone(pool);
        let work = move || {
            for mut job in given {
                let written = carry_out(&pool, &mut job);
                if tell.send((job, written)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("store-load".to_owned()).spawn(work);
        let thread = thread.map_err(|source| Error::Io { what: "starting a thread".to_owned(), source })?;
        Ok(Self { jobs, done, at_work: 0, thread })
    }

    fn give(&mut self, job: Job) -> Result<(), Error> {
        self.at_work += 1;
        self.jobs.send(job).map_err(|_| has_ended())
    }

    /// Waits for the oldest write, and returns its buffer.
    fn wait(&mut self) -> Result<AlignedBuf, Error> {
        self.at_work -= 1;
        let (job, written) = self.done.recv().map_err(|_| has_ended())?;
        written.map(|()| job.buffer)
    }
}

fn has_ended() -> Error {
    Error::Io {
        what: "writing pages".to_owned(),
        source: std::io::Error::other("the thread that does it has ended"),
    }
}

impl Writer {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, filling: Job::default(), worker: None }
    }

    /// Writes a page now or later. The page gets the LSN `head`. When the run of this page was allocated, `head` was
    /// the oldest object in the log. It is the number of a durable object, as [`Pool::write_past`] demands.
    pub(super) fn write(&mut self, id: PageId, head: Lsn, page: &[u8]) -> Result<(), Error> {
        let most = WRITE_BYTES / page.len();
        if self.filling.count > 0 && id != self.filling.first + self.filling.count as u64 {
            self.send()?;
        }
        let job = &mut self.filling;
        if job.count == 0 {
            job.first = id;
            job.buffer.resize(WRITE_BYTES);
        }
        let at = job.count * page.len();
        let copy = &mut job.buffer.as_mut_slice()[at..at + page.len()];
        copy.copy_from_slice(page);
        set_lsn(copy, head);
        job.count += 1;
        if job.count == most { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Error> {
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => none.insert(Worker::start(&self.pool)?),
        };
        let buffer = if worker.at_work == AT_WORK { worker.wait()? } else { AlignedBuf::default() };
        let job = std::mem::replace(&mut self.filling, Job { buffer, ..Job::default() });
        worker.give(job)
    }

    /// Writes the remaining pages, and makes all pages durable.
    pub(super) fn finish(mut self) -> Result<Arc<Pool>, Error> {
        if let Some(worker) = &mut self.worker {
            while worker.at_work > 0 {
                worker.wait()?;
            }
        }
        if self.filling.count > 0 {
            carry_out(&self.pool, &mut self.filling)?;
        }
        self.pool.flush_past()?;
        Ok(Arc::clone(&self.pool))
    }
}

impl Drop for Writer {
    /// Waits for the writing thread to end, so that nothing is written after the drop.
    fn drop(&mut self) {
        if let Some(Worker { jobs, done, thread, .. }) = self.worker.take() {
            drop((jobs, done));
            // If the thread has panicked, it writes nothing more, so the panic can be ignored.
            let _ = thread.join();
        }
    }
}
