//! Checks what transactions and snapshots saw of lists and registers: whether one order of the transactions explains
//! all of it (Adya; Kingsbury and Alvaro, "Elle", VLDB 2020). Nothing here knows what has run the transactions.
//!
//! Every element is appended once. So a list tells the order in which its writers committed, and a read of the list
//! tells after which of them the reader came. Every value is written to a register once. If a transaction reads a value
//! before it writes another one, that tells which value came first.
//!
//! From this follow edges between transactions: a writer comes after another writer (ww), a reader after the writer of
//! what it read (wr), a writer after a reader that did not see its write (rw), and a transaction that began after
//! another one had ended comes after it (time). If the edges form a cycle, the history is not strictly serializable.
//! The check also finds reads of values that were never committed, reads of values that their writer replaced, reads of
//! a part of a transaction, and lists that contradict each other.
//!
//! A read by a property ([`Op::Find`]) reads every register of its range: those that it has not returned had a value
//! without the property. Which one, the check finds out as far as the other edges tell it.
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
