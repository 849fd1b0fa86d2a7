//! Tasks that wait until something is durable, without a thread of their own: one thread forces the log for all of them.

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use duralite_logfmt::store::Lsn;
use parking_lot::{Condvar, Mutex};

use crate::error::Error;

/// Who waits, for which object.
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
    /// The waker is called once everything up to the object is durable, or never can be.
    pub(crate) fn add(&self, upto: Lsn, waker: &Waker) {
        let mut list = self.list.lock();
        if !list.waiting.iter().any(|(known, own)| *known == upto && own.will_wake(waker)) {
            list.waiting.push((upto, waker.clone()));
        }
        self.changed.notify_one();
    }

    /// Nobody waits any more: whoever waits keeps the store open.
    pub(crate) fn close(&self) {
        self.list.lock().is_over = true;
        self.changed.notify_one();
    }

    /// The last object that somebody waits for; `None` when it is over.
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

    /// Those who wait for nothing beyond this object.
    fn take(&self, upto: Lsn) -> Vec<Waker> {
        let mut list = self.list.lock();
        list.waiting.extract_if(.., |(own, _)| *own <= upto).map(|(_, waker)| waker).collect()
    }
}

/// Starts the thread, which forces the log up to an object by `force`.
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
