//! How files are mapped.

use crate::{FlushInstruction, Latency, MediumError, Persistency};

/// How a file is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOptions {
    /// The largest number of bytes of the file that the medium uses. The file may be shorter. If the file is
    /// longer, the medium does not use the rest.
    pub capacity: u64,
    /// How many bytes of address space to reserve at first; `None` means as many as `capacity`. When the file
    /// becomes longer than its mapping, the medium makes a new mapping, twice as long as needed.
    pub first_bytes: Option<u64>,
    /// Whether the file must be accessed directly (`MAP_SYNC`), so that flushed lines survive a power loss.
    pub dax: bool,
    /// Added latency.
    pub latency: Latency,
    /// The persistency model to emulate.
    pub persistency: Persistency,
    /// Whether a store is durable without a flush, because the caches are in the persistence domain, or
    /// because memory of that kind is emulated. A flush then does nothing, and no latency is added for a
    /// flush or a fence.
    pub durable_on_store: bool,
    /// Whether the process survives a truncation of the file by another program.
    /// [`Nvm::check`](crate::Nvm::check) then reports the truncation.
    pub watched: bool,
    /// Whether the mapping is only for reading. If so, the caller must not store, flush or grow.
    pub read_only: bool,
}

impl MapOptions {
    /// Refuses options that do not go together, or that this machine cannot provide.
    pub(crate) fn check(&self, instruction: FlushInstruction) -> Result<(), MediumError> {
        let needs_flush = self.dax && !self.durable_on_store;
        let refused = if needs_flush && instruction == FlushInstruction::None {
            "direct access without an instruction that flushes a line"
        } else if self.persistency == Persistency::X86 {
            return Ok(());
        } else if self.dax {
            "an emulated persistency model on direct access"
        } else if self.durable_on_store {
            "an emulated persistency model on memory that is durable on store"
        } else {
            return Ok(());
        };
        Err(MediumError::Unsupported { what: refused })
    }
}
