//! Where a store's pages and log are.

mod directory;
#[cfg(test)]
mod in_memory;
mod lock;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use duralite_medium::Nvm;
use duralite_medium::block::Block;

pub(crate) use self::directory::{Directory, NAMES, nothing_there};
#[cfg(test)]
pub(crate) use self::in_memory::InMemory;
use self::lock::DirectoryLock;
use crate::error::Error;

/// The media of one store. A directory is what [`Store::open`](crate::Store::open) makes of its path; a test brings
/// media that it can crash.
///
/// ```
/// use std::sync::Arc;
/// use duralite_crashmodel::{RecordingBlock, RecordingNvm};
/// use duralite_medium::{Nvm, block::Block};
/// use duralite_store::{Error, Media, Options, Store};
///
/// #[derive(Debug)]
/// struct InMemory(Arc<RecordingBlock>, Arc<RecordingBlock>);
/// impl Media for InMemory {
///     fn pages(&self) -> Result<Arc<dyn Block>, Error> { Ok(self.0.clone()) }
///     fn block_log(&self) -> Result<Arc<dyn Block>, Error> { Ok(self.1.clone()) }
///     fn memory_log(&self, bytes: u64) -> Result<Arc<dyn Nvm>, Error> { Ok(Arc::new(RecordingNvm::new(0, bytes))) }
/// }
/// let media = InMemory(Arc::new(RecordingBlock::new(4096)), Arc::new(RecordingBlock::new(4096)));
/// let store = Store::open_on(media, Options::default())?;
/// store.table("t")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Media: fmt::Debug {
    /// The page file; empty for a new store. Opened once.
    ///
    /// # Errors
    /// That of the system.
    fn pages(&self) -> Result<Arc<dyn Block>, Error>;

    /// The blocks for a log on a disk. Opened when a log is made there or was.
    ///
    /// # Errors
    /// That of the system.
    fn block_log(&self) -> Result<Arc<dyn Block>, Error>;

    /// The memory for a log in memory that may take so many bytes. Opened when a log is made there or was.
    ///
    /// # Errors
    /// That of the system.
    fn memory_log(&self, bytes: u64) -> Result<Arc<dyn Nvm>, Error>;

    /// Says that the store has been made: until then nobody takes what is there for one. Durable on return.
    ///
    /// # Errors
    /// That of the system.
    fn made(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What keeps others out until it is dropped, which is the last thing that a store does.
    fn take_lock(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        None
    }
}
