//! The media that hold a store's pages and its log.

mod directory;
#[cfg(test)]
mod in_memory;
mod lock;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use duralite_medium::Nvm;
use duralite_medium::block::Block;

pub(crate) use self::directory::{Directory, nothing_there, prepare_store};
#[cfg(test)]
pub(crate) use self::in_memory::InMemory;
use self::lock::DirectoryLock;
use crate::error::Error;

/// Identifies one of a store's logs by a number that the store has drawn at random. A medium can ignore the number if
/// it has room for only one log, and if no other store uses it.
///
/// ```
/// use duralite_store::WhichLog;
/// assert_ne!(WhichLog::New(7), WhichLog::Existing(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichLog {
    /// A log that the store makes now. The store no longer needs any earlier log.
    New(u64),
    /// The log that the store's page file names.
    Existing(u64),
}

/// The media of one store. [`Store::open`](crate::Store::open) uses files in a directory; a test can provide media on
/// which it simulates crashes.
///
/// ```
/// use std::sync::Arc;
/// use duralite_crashmodel::{RecordingBlock, RecordingNvm};
/// use duralite_medium::{Nvm, block::Block};
/// use duralite_store::{Error, Media, Options, Store, WhichLog};
///
/// #[derive(Debug)]
/// struct InMemory(Arc<RecordingBlock>, Arc<RecordingBlock>);
/// impl Media for InMemory {
///     fn pages(&self) -> Result<Arc<dyn Block>, Error> { Ok(self.0.clone()) }
///     fn block_log(&self, _: WhichLog) -> Result<Arc<dyn Block>, Error> { Ok(self.1.clone()) }
///     fn memory_log(&self, _: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error> {
///         Ok(Arc::new(RecordingNvm::new(0, bytes)))
///     }
/// }
/// let media = InMemory(Arc::new(RecordingBlock::new(4096)), Arc::new(RecordingBlock::new(4096)));
/// let store = Store::open_on(media, Options::default())?;
/// store.table("t")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Media: fmt::Debug {
    /// Opens the page file, which is empty for a new store. The store calls this once.
    ///
    /// # Errors
    /// Errors of the system.
    fn pages(&self) -> Result<Arc<dyn Block>, Error>;

    /// Opens the block device for a log on a disk. The store calls this if it has such a log or makes one.
    ///
    /// # Errors
    /// Errors of the system.
    fn block_log(&self, log: WhichLog) -> Result<Arc<dyn Block>, Error>;

    /// Opens the memory for a log in memory. The log may grow to `bytes` bytes. The store calls this if it has such a
    /// log or makes one.
    ///
    /// # Errors
    /// Errors of the system.
    fn memory_log(&self, log: WhichLog, bytes: u64) -> Result<Arc<dyn Nvm>, Error>;

    /// Checks that a new log can be made, as far as possible without making it. The store calls this before it discards
    /// its present log.
    ///
    /// # Errors
    /// Errors of the system. The store then keeps its log.
    fn can_make_log(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Frees the space of a log that the store no longer needs. May do nothing if the next log will use the same space.
    /// The log may have been removed already, or may never have been made.
    ///
    /// # Errors
    /// Errors of the system.
    fn remove_log(&self, _number: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Records that the store is complete. Before this call, the files do not count as a store. The record is durable
    /// on return.
    ///
    /// # Errors
    /// Errors of the system.
    fn made(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Hands over the lock that keeps other processes out. The store drops the lock last when it closes.
    fn take_lock(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        None
    }
}

/// Returns random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| Error::invalid("the system has no random numbers"))?;
    Ok(bytes)
}
