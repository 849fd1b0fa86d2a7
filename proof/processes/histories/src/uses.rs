//! How a transaction uses a register.

use crate::history::{Register, Written};

/// A transaction's use of one register.
#[derive(Default)]
pub struct Use {
    /// The value that the transaction read before its first write to the register; `None` if there was no
    /// such read.
    pub read: Option<Option<Written>>,
    /// The values that the transaction wrote, in order.
    pub wrote: Vec<Written>,
}

impl Use {
    /// Returns the value that the transaction must get from its next read. This is the value that it wrote
    /// last. If it wrote none, it is the value that it has read. Returns `None` if the next read may return
    /// any value.
    pub fn known(&self) -> Option<Option<Written>> {
        self.wrote.last().copied().map(Some).or(self.read)
    }

    /// Records a read.
    pub fn look(&mut self, number: usize, register: Register, value: Option<Written>) -> Result<(), String> {
        if let Some(known) = self.known().filter(|known| *known != value) {
            return Err(format!("transaction {number} read {value:?} of {register}, and then {known:?}"));
        }
        if self.wrote.is_empty() {
            self.read = Some(value);
        }
        Ok(())
    }
}
