//! Recovery of a `waldio` log reads the log only once, and keeps the page images that it makes.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, for_seeds, waldio_superblock};
use duralite_crashmodel::RecordingBlock;
use duralite_format::waldio::{DATA_OFFSET, Layout};
use duralite_medium::LocalSegment;
use duralite_medium::block::Block;
use duralite_wal::WaldioOptions;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;

const PAGE: u32 = 1024;
const PAGES: usize = 60;

fn attach(block: &Arc<dyn Block>) -> Waldio {
    let superblock = waldio_superblock(Layout::Delta, PAGE, 64 << 20);
    let options = WaldioOptions { cache_bytes: 0, ..WaldioOptions::default() };
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    Waldio::attach(block.clone(), superblock, Path::new("model"), &options, segment, 0, true).expect("attach")
}

#[test]
fn recovery_reads_each_byte_of_the_log_once() {
    for_seeds(1, |seed| {
        let rng = &mut Rng(seed);
        let block: Arc<dyn Block> = Arc::new(RecordingBlock::from_bytes(Vec::new(), 512));
        Waldio::format(block.as_ref(), &waldio_superblock(Layout::Delta, PAGE, 64 << 20)).expect("format");
        let mut stream = WalStream::new(attach(&block));
        let mut model = Model::new(PAGE as usize, PAGES);
        let (offset, header) = model.restart();
        stream.write(&NoDatabase, offset, &header).expect("restart");
        // Commit small transactions first, and then large ones.
        for count in 0.. {
            let writes = if count < 1000 {
                let transaction = model.transaction(rng, false);
                model.commit(transaction);
                model.take_writes()
            } else {
                model.append_all_pages(rng)
            };
            for (offset, data) in writes {
                if let Some(ticket) =
                    stream.write(&NoDatabase, offset, &data).expect("write").and_then(|sealed| sealed.ticket)
                {
                    stream.engine().durability_waiter().expect("a waiter").wait(ticket).expect("wait");
                }
            }
            if stream.engine().used_bytes() > 5 << 20 {
                break;
            }
        }
        let used = stream.engine().used_bytes() - DATA_OFFSET;
        drop(stream);

        let before = block.counters().read_bytes;
        let mut log = attach(&block);
        let mut page = vec![0; PAGE as usize];
        for (_, frame) in log.newest_frames() {
            log.read_page(&NoDatabase, frame, &mut page).expect("read");
        }
        // Recovery also scans the part after the log's end. Subtract it.
        let rest = block.len() - DATA_OFFSET - used;
        let read = block.counters().read_bytes - before - rest;
        // Allow for read-ahead, which goes beyond the end.
        assert!(read < used + used / 10 + (3 << 20), "seed {seed}: {read} bytes read of {used}");
    });
}
