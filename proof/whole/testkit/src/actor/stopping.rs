//! Runs statements. After `.stop` it stops its own process in the middle of the next write to the log.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duralite_crashmodel::{OverBlock, Through};
use duralite_medium::MediumError;
use duralite_medium::block::{Block, Durability};
use duralite_wal::placement::{FileStep, Hook, hook};
use rustix::process::{Signal, getpid, kill_process};

static STOPS: AtomicBool = AtomicBool::new(false);

pub fn serve(uri: &str, log_dir: &str) {
    let _hooked = hook(Path::new(log_dir), Arc::new(Stopping));
    super::sql::serve_or(uri, |line| {
        let told = line == ".stop";
        if told {
            STOPS.store(true, Ordering::SeqCst);
        }
        told
    });
}

struct Stopping;

impl Hook for Stopping {
    fn step(&self, _step: FileStep, _log: &Path) -> io::Result<()> {
        Ok(())
    }

    fn block(&self, _log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        Ok(Arc::new(Through(StoppingBlock(block))))
    }
}

#[derive(Debug)]
struct StoppingBlock(Arc<dyn Block>);

impl OverBlock for StoppingBlock {
    fn below(&self) -> &dyn Block {
        self.0.as_ref()
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        if STOPS.swap(false, Ordering::SeqCst) {
            kill_process(getpid(), Signal::STOP).unwrap();
        }
        self.0.write_durably(at, blocks, durability)
    }
}
