//! Checks whether one order of the transactions explains everything that transactions and snapshots have seen
//! in lists and registers (Adya; Kingsbury and Alvaro, "Elle", VLDB 2020). The checker does not know which
//! system ran the transactions.
//!
//! Each element is appended only once. So a list shows the order in which its writers committed, and a read
//! of the list shows which of these writers come before the reader. Each value is written to a register only
//! once. If a transaction reads one value and then writes another, the value that it read came first.
//!
//! This gives edges between transactions. A writer comes after another writer (ww). A reader comes after the
//! writer of what it read (wr). A writer comes after a reader that did not see its write (rw). A transaction
//! that began after another had ended comes after it (time). If the edges form a cycle, the history is not
//! strictly serializable. The check also finds reads of values that were never committed, reads of values
//! that their own writer replaced, reads of a part of a transaction, and lists that contradict each other.
//!
//! A read by a property ([`Op::Find`]) reads every register of its range. If it does not return a register,
//! that register had a value without the property. The check finds out which value, if the other edges allow
//! only some.
#![forbid(unsafe_code)]

mod check;
mod find;
mod graph;
mod history;
mod lists;
mod registers;
mod told;
mod uses;
mod why;
mod words;

pub use check::{check, reads_of_the_uncommitted};
pub use history::{Element, Fate, Last, List, Op, Property, Register, Tx, Written};
pub use told::{Told, commits, ended};
