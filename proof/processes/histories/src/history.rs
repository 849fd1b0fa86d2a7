//! A history: what transactions did, and the contents of all lists and registers at the end.

use std::collections::BTreeMap;

/// The number of a list.
pub type List = u64;
/// The number of an element. Each element is appended at most once.
pub type Element = u64;
/// The number of a register.
pub type Register = u64;
/// A value for a register. Each value is written at most once.
pub type Written = u64;

/// An operation of a transaction or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Appends an element to a list.
    Append(List, Element),
    /// Reads a list.
    Read(List, Vec<Element>),
    /// Reads all lists that are not empty and have numbers in a range: at least the first number, and less
    /// than the second.
    Scan(List, List, Vec<(List, Vec<Element>)>),
    /// Writes a register.
    Write(Register, Written),
    /// Reads a register. A register has no value before it is first written.
    Look(Register, Option<Written>),
    /// Reads all registers of a range whose values have a certain property.
    Find(Property, Vec<(Register, Written)>),
}

/// A property of a register: its number is in a range, and its value divided by a certain number leaves a
/// certain remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// The first number of the range.
    pub from: Register,
    /// The number after the last one of the range.
    pub to: Register,
    /// The number by which the value is divided.
    pub divisor: u64,
    /// The remainder that the division must leave.
    pub remainder: u64,
}

impl Property {
    /// Returns whether a value leaves the property's remainder.
    #[must_use]
    pub fn has(&self, value: Written) -> bool {
        value % self.divisor.max(1) == self.remainder
    }
}

impl Op {
    /// Returns whether the operation changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        !matches!(self, Self::Append(..) | Self::Write(..))
    }
}

/// The way in which a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The commit was acknowledged.
    Committed,
    /// The transaction was rolled back, or its commit was refused.
    Aborted,
    /// A crash came before the outcome was reported.
    Unknown,
}

/// A transaction or a snapshot.
#[derive(Clone, Debug)]
pub struct Tx {
    /// The operations of the transaction, in order.
    pub ops: Vec<Op>,
    /// The way in which the transaction ended.
    pub fate: Fate,
    /// The time at which the transaction began, and the time at which its outcome was known. The transaction
    /// takes effect at some moment in between.
    pub span: Option<(u64, u64)>,
}

/// The contents of all lists and registers at the end of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Last {
    /// The lists that are not empty.
    pub lists: BTreeMap<List, Vec<Element>>,
    /// The registers that have a value.
    pub registers: BTreeMap<Register, Written>,
}
