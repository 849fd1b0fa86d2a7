//! A store whose page file grows.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use common::options;
use duralite_crashmodel::{OverBlock, RecordingBlock, RecordingNvm, Through};
use duralite_medium::block::Block;
use duralite_medium::{MediumError, Nvm};
use duralite_store::{Error, Media, Scheme, Store, WhichLog};

/// A page file that delays its growth. When the thread `writer` makes the file grow, that thread waits until another
/// thread has read a row of the store.
#[derive(Debug)]
struct Growing {
    below: RecordingBlock,
    writer: ThreadId,
    /// The channel on which the file reports that it has to grow.
    asks: Mutex<Option<mpsc::Sender<()>>>,
    /// The channel from which the file learns that the other thread has read.
    read: Mutex<mpsc::Receiver<()>>,
    /// How many more times the file waits for the other thread before it grows.
    left: AtomicU64,
}

impl OverBlock for Growing {
    fn below(&self) -> &dyn Block {
        &self.below
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        if thread::current().id() == self.writer && self.left.load(Ordering::SeqCst) > 0 {
            let asks = self.asks.lock().unwrap().take().unwrap();
            asks.send(()).unwrap();
            // If the wait fails, this thread panics and drops the sender. So the other thread gets no more requests,
            // and ends too.
            let read = self.read.lock().unwrap().recv_timeout(Duration::from_secs(60));
            assert!(read.is_ok(), "a thread that reads waits for the growth of the file");
            *self.asks.lock().unwrap() = Some(asks);
            self.left.fetch_sub(1, Ordering::SeqCst);
        }
        self.below.preallocate(len)
    }
}

#[derive(Debug)]
struct OnGrowing(Arc<Through<Growing>>);

impl Media for OnGrowing {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        Ok(self.0.clone())
    }
    fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> {
        Ok(Arc::new(RecordingBlock::new(4096)))
    }
    fn memory_log(&self, _: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        Ok(Arc::new(RecordingNvm::new(0, bytes)))
    }
}

/// The other thread reads the leaf that has to be split.
#[test]
fn a_leaf_is_read_while_the_file_grows_for_its_split() {
    let (asks, asked) = mpsc::channel();
    let (reads, read) = mpsc::channel();
    let growing = Arc::new(Through(Growing {
        below: RecordingBlock::new(4096),
        writer: thread::current().id(),
        asks: Mutex::new(Some(asks)),
        read: Mutex::new(read),
        left: AtomicU64::new(0),
    }));
    let store = Store::open_on(OnGrowing(growing.clone()), options(Scheme::Auto)).unwrap();
    let table = store.table("t").unwrap();
    let newest = AtomicU64::new(0);
    let (store, table, newest) = (&store, &table, &newest);
    let left = &growing.0.left;
    left.store(3, Ordering::SeqCst);
    thread::scope(|scope| {
        scope.spawn(move || {
            for () in asked.iter().take(3) {
                let key = newest.load(Ordering::SeqCst).to_be_bytes();
                store.begin().get(table, &key).unwrap();
                let _ = reads.send(());
            }
        });
        let mut row = 0_u64;
        while left.load(Ordering::SeqCst) > 0 {
            store.run(|tx| tx.put(table, &row.to_be_bytes(), &[1; 1000])).unwrap();
            newest.store(row, Ordering::SeqCst);
            row += 1;
        }
    });
    store.verify().unwrap();
}
