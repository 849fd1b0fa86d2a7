//! Stores whose files are copied to another device.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::Arc;

use common::options;
use duralite_crashmodel::{RecordingBlock, RecordingNvm};
use duralite_medium::Nvm;
use duralite_medium::block::Block;
use duralite_store::{Error, Media, Scheme, Store, WhichLog};

/// The files of a store, on a device.
#[derive(Clone, Debug)]
struct Device {
    pages: Arc<RecordingBlock>,
    log: Arc<RecordingBlock>,
}

impl Device {
    fn new(block_bytes: u32) -> Self {
        let block = || Arc::new(RecordingBlock::new(block_bytes));
        Self { pages: block(), log: block() }
    }

    /// Returns a device with blocks of another size, and with copies of the files as they are now.
    fn copied(&self, block_bytes: u32) -> Self {
        let copy = |of: &RecordingBlock| Arc::new(RecordingBlock::from_bytes(of.to_bytes(), block_bytes));
        Self { pages: copy(&self.pages), log: copy(&self.log) }
    }
}

impl Media for Device {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        Ok(self.pages.clone())
    }
    fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> {
        Ok(self.log.clone())
    }
    fn memory_log(&self, _: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        Ok(Arc::new(RecordingNvm::new(0, bytes)))
    }
}

/// The files are copied while the store is open, so the copy looks like a store after a crash: the rows are only in the
/// log, and a transaction has to be rolled back.
#[test]
fn inv33_a_store_goes_on_on_devices_with_other_blocks() {
    for scheme in [Scheme::Auto, Scheme::NvDisk, Scheme::NvDiskDecentralized] {
        let mut device = Device::new(512);
        let mut rows = 0_u64;
        for block_bytes in [512, 4096, 4096, 512, 4096] {
            device = device.copied(block_bytes);
            let store = Store::open_on(device.clone(), options(scheme)).unwrap();
            let table = store.table("t").unwrap();
            let key = |row: u64| row.to_be_bytes();
            let found = store.snapshot().scan(&table, ..).map(|row| row.unwrap().0).collect::<Vec<_>>();
            assert!(found.iter().eq((0..rows).map(key).collect::<Vec<_>>().iter()), "{scheme:?}");
            for _ in 0..20 {
                store.run(|tx| tx.put(&table, &key(rows), b"v")).unwrap();
                rows += 1;
            }
            let mut open = store.begin();
            open.put(&table, b"open", b"v").unwrap();
            // This commit makes the open transaction's object durable too.
            store.run(|tx| tx.put(&table, &key(rows), b"v")).unwrap();
            rows += 1;
            device = device.copied(block_bytes);
        }
    }
}
