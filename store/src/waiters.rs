//! Lets async tasks wait until something is durable. One thread forces the log for all tasks, so no task needs a thread
//! of its own.

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::format::Lsn;

/// The waiting tasks, and the log object for which each of them waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    waiting: Vec<(Lsn, Waker)>,
    is_over: bool,
}

impl Waiters {
    /// Adds a task. The waiters' thread calls the task's waker when all objects up to `upto` are durable, or when it is
    /// certain that they never will be.
    pub(crate) fn add(&self, upto: Lsn, waker: &Waker) {
        let mut list = self.list.lock();
        if !list.waiting.iter().any(|(known, own)| *known == upto && own.will_wake(waker)) {
            list.waiting.push((upto, waker.clone()));
        }
        self.changed.notify_one();
    }

    /// Tells the thread to end. No task is waiting, because a waiting task keeps the store open.
    pub(crate) fn close(&self) {
        self.list.lock().is_over = true;
        self.changed.notify_one();
    }

    /// Sleeps until a task waits. Returns the last object for which a task waits; `None` when the store closes.
    fn wanted(&self) -> Option<Lsn> {
        let mut list = self.list.lock();
        loop {
            if list.is_over {
                return None;
            }
            if let Some(upto) = list.waiting.iter().map(|(upto, _)| *upto).max() {
                return Some(upto);
            }
            self.changed.wait(&mut list);
        }
    }

    /// Removes and returns the tasks that wait for `upto` or an earlier object.
    fn take(&self, upto: Lsn) -> Vec<Waker> {
        let mut list = self.list.lock();
        list.waiting.extract_if(.., |(own, _)| *own <= upto).map(|(_, waker)| waker).collect()
    }
}

/// Starts the thread. It calls `force` to make the log durable up to an object.
pub(crate) fn start(
    waiters: Arc<Waiters>,
    force: impl Fn(Lsn) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let work = move || {
        while let Some(upto) = waiters.wanted() {
            force(upto);
            waiters.take(upto).into_iter().for_each(Waker::wake);
        }
    };
    std::thread::Builder::new()
        .name("store-tickets".to_owned())
        .spawn(work)
        .map_err(|source| Error::Io { what: "starting a thread".to_owned(), source })
}
