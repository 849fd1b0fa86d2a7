//! Media in memory, for tests. They vanish with the store.

use std::sync::Arc;

use duralite_crashmodel::{RecordingBlock, RecordingNvm};
use duralite_medium::{Nvm, block::Block};

use super::{Media, WhichLog};
use crate::error::Error;

#[derive(Debug)]
pub(crate) struct InMemory;

impl Media for InMemory {
    fn pages(&self) -> Result<Arc<dyn Block>, Error> {
        Ok(Arc::new(RecordingBlock::new(4096)))
    }
    fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> {
        Ok(Arc::new(RecordingBlock::new(4096)))
    }
    fn memory_log(&self, _: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
        Ok(Arc::new(RecordingNvm::new(0, bytes)))
    }
}
