//! The use that a transaction makes of a register.

use crate::history::{Register, Written};

/// A transaction's use of one register.
#[derive(Default)]
pub struct Use {
    /// The value that the transaction read before it wrote the register; `None` if it did not read the
    /// register before that.
    pub read: Option<Option<Written>>,
    /// The values that the transaction wrote, in order.
    pub wrote: Vec<Written>,
}

impl Use {
    /// Returns the value that the transaction must read next: the one that it last wrote, or, if it wrote
    /// none, the one that it has read. Returns `None` if it may be any value.
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
