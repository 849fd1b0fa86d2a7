//! Concurrent write transactions under an unmodified SQLite (`concurrent=on` and `concurrent=upgrade`).
//!
//! **The trick.** Such a connection has a wal-index of its own ([`memory::Private`]), which says that all frames
//! of earlier transactions are in the database, but for the last one. So SQLite reads pages from the database
//! file, by `xRead`, where this VFS answers from the connection's snapshot: the newest frame of the page in the
//! real log up to the snapshot, else the file. It gets the same answer where SQLite asks for an earlier frame.
//! SQLite's WAL is therefore nothing but the frames of the transaction that is open, in a buffer. With the page
//! of the commit frame the VFS commits: under the real WRITE lock it validates, writes the last image of each
//! page to the real log as one transaction, and publishes that in the real wal-index. (If all frames were said
//! to be in the database, SQLite would start its WAL over with each transaction. That costs it as much as the
//! rest of a small transaction, so it happens now and then only.)
//!
//! **What is promised.** Transactions are serializable, in the order in which they are published. These rules
//! make it so; each has a number in `docs/invariants.md`.
//!
//! - *The read set* (invariant 58). Its pages are those that SQLite has read through this VFS, and those that
//!   the connection has committed, since SQLite's cache was last dropped. SQLite reads a page in its cache
//!   without asking, so a page leaves the set only when the whole cache is dropped.
//! - *Validation* (invariant 59). A transaction commits only if no frame that others have committed since its
//!   snapshot holds a page of the read set or one that the transaction writes. Page 1 is in every read set. It
//!   may differ in the change counter and in the version that goes with the counter, which no statement reads,
//!   and at a commit in the size and the free list, which invariant 64 brings together.
//!   A commit that has made the database smaller counts as a conflict with everything: pages that it cut off
//!   have no frames.
//! - *Moving on* (invariant 60). A transaction that has only read, and that gets WRITE, may move its snapshot
//!   to the newest commit under the same conditions, and only if the database has the same size: SQLite keeps
//!   the size, and page 1.
//! - *The cache* (invariant 61). If others have committed since SQLite's cache was filled, SQLite is made to
//!   drop it when the next transaction begins, as with stock SQLite.
//! - *One database* (invariant 62). Only a transaction of a connection with a single database is validated at
//!   its commit. With another one attached, every write takes the real WRITE lock at once: a conflict in one
//!   file, after another one is published, would leave half a transaction.
//! - *Interior pages* (invariant 63). A change of an interior page of a table that a transaction has only read
//!   is no conflict if it leads from the same rowids to the children that the transaction has used.
//! - *Leases* (invariant 64). Each connection that allocates is shown the free list in an order of its own. What
//!   it has taken and given back is taken off and added to the real list when it commits.
//!
//! | module | holds |
//! | --- | --- |
//! | [`memory`] | the memory of wal-indexes, shared and private |
//! | [`shared_index`] | the wal-index of all connections |
//! | [`recovery`] | the wal-index made anew from the log |
//! | [`snapshot`] | a moment of the database, and how a connection holds it |
//! | [`page_set`] | a set of pages |
//! | [`host`] | the SQLite connection |
//! | [`images`] | the pages that a transaction commits |
//! | [`owned`] | what SQLite's calls on one connection use |
//! | [`state`] | what such a connection is and has |
//! | [`pages`] | pages as of a snapshot |
//! | [`private`] | SQLite's calls: locks, reads, writes |
//! | [`interior`] | changes of interior pages that do not matter |
//! | [`free_list`] | the list of free pages |
//! | [`lease`], [`leasing`] | free pages that one connection has for itself, and which ones |
//! | [`allocation`] | allocations of a transaction and of others, brought together |
//! | [`validate`] | whether others have overtaken a transaction |
//! | [`publish`] | the commit itself |
//! | [`btree_page`] | pages of b-trees |
//! | [`owners`] | to which table or index a page belongs |
//! | [`conflict`] | what a transaction that was overtaken is told, and where that has happened |

mod allocation;
mod btree_page;
mod conflict;
#[cfg(feature = "controls")]
mod controls;
mod free_list;
mod host;
mod images;
mod interior;
mod lease;
mod leasing;
mod memory;
mod owned;
mod owners;
mod page_set;
mod pages;
mod private;
mod publish;
mod recovery;
mod shared_index;
mod snapshot;
mod state;
mod validate;

pub use host::Host;
pub use state::Concurrent;
