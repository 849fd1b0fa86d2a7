//! Tasks that wait until something is durable, without a thread of their own: one thread forces the log for all of them.

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use duralite_logfmt::store::Lsn;
use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;
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

/// Starts the thread.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<JoinHandle<()>, Error> {
    let engine = Arc::clone(engine);
    let work = move || {
        while let Some(upto) = engine.waiters.wanted() {
            // A failure has poisoned the store, which those who are woken see.
            let _ = engine.force(upto);
            engine.waiters.take(upto).into_iter().for_each(Waker::wake);
        }
    };
    std::thread::Builder::new()
        .name("store-tickets".to_owned())
        .spawn(work)
        .map_err(|source| Error::Io { what: "starting a thread".to_owned(), source })
}
