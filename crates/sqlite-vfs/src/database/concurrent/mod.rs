//! Concurrent write transactions under an unmodified SQLite (`concurrent=on` and `concurrent=upgrade`).
//!
//! **The trick.** Such a connection has a wal-index of its own ([`memory::Private`]), which says that all
//! frames of earlier transactions, except the last frame, are in the database. So SQLite reads pages from the
//! database file, by `xRead`, and this VFS answers with the page as of the connection's snapshot: from the
//! page's newest frame in the real log, or from the file if there is no such frame. If SQLite nevertheless
//! asks its WAL for a frame of an earlier transaction, it gets the same answer. SQLite's WAL is therefore
//! nothing but the frames of the transaction that is open, in a buffer. When SQLite writes the page of the
//! commit frame, the VFS commits. Under the real WRITE lock it validates the transaction, writes the last
//! image of each page to the real log as one transaction, and publishes that transaction in the real
//! wal-index. (If the wal-index said that all frames are in the database, SQLite would start its WAL over
//! with each transaction. Starting over costs as much as the rest of a small transaction, so this VFS makes
//! SQLite start over only now and then.)
//!
//! **What is promised.** Transactions are serializable, in the order in which they are published. These rules
//! make it so; each has a number in `docs/invariants.md`.
//!
//! - *The read set* (invariant 58) holds the pages that SQLite has read through this VFS, and the pages that
//!   the connection has committed, since SQLite's cache was last dropped. SQLite reads a page that is in its
//!   cache without asking this VFS, so a page leaves the set only when SQLite drops the whole cache.
//! - *Validation* (invariant 59). A transaction commits only if no frame that others have committed since its
//!   snapshot holds a page of the read set or a page that the transaction writes. Page 1 is in every read
//!   set. Page 1 may differ in the change counter and in the version that goes with the counter, because no
//!   statement reads these. At a commit it may also differ in the size and the free list, which are merged
//!   (invariant 64). A commit that has made the database smaller counts as a conflict with everything,
//!   because pages that it cut off have no frames.
//! - *Moving on* (invariant 60). A transaction that has only read and now gets WRITE may move its snapshot to
//!   the newest commit under the same conditions. The database must also have the same size, because SQLite
//!   keeps the size and page 1 in memory.
//! - *The cache* (invariant 61). If others have committed since SQLite filled its cache, this VFS makes
//!   SQLite drop the cache when the next transaction begins, as stock SQLite does.
//! - *One database* (invariant 62). Only a transaction of a connection with a single database is validated at
//!   its commit. If another database is attached, every write takes the real WRITE lock at once. Otherwise a
//!   conflict in one file, after the commit in another file was published, would leave half a transaction.
//! - *Interior pages* (invariant 63). If others have changed an interior page of a table that a transaction
//!   has read, this is no conflict as long as the new page leads from the same rowids to the children that
//!   the transaction has used. If the transaction has written the page too, its new children are put in the
//!   newest page.
//! - *Leases* (invariant 64). To each connection that allocates pages, this VFS shows the free list in
//!   another order. When the connection commits, the VFS changes the real list: it removes those pages that
//!   the connection has taken, and adds those that the connection has given back.
//!
//! | module | holds |
//! | --- | --- |
//! | [`memory`] | the memory of wal-indexes, shared and private |
//! | [`shared_index`] | the wal-index of all connections |
//! | [`recovery`] | the wal-index rebuilt from the log |
//! | [`snapshot`] | a snapshot, and how a connection holds it |
//! | [`page_set`] | a set of pages |
//! | [`host`] | the SQLite connection |
//! | [`images`] | the pages that a transaction commits |
//! | [`owned`] | what SQLite's calls on one connection use |
//! | [`state`] | the state of a concurrent connection |
//! | [`pages`] | pages as of a snapshot |
//! | [`private`] | SQLite's calls: locks, reads, writes |
//! | [`checkpoint`] | checkpoints of the real log |
//! | [`interior`] | changes of interior pages that do not matter, or can be merged |
//! | [`free_list`] | the list of free pages |
//! | [`lease`], [`leasing`] | the free pages that one connection leases, and their choice |
//! | [`allocation`] | the allocations of a transaction, merged with those of others |
//! | [`validate`] | whether others have overtaken a transaction |
//! | [`luck`] | whether transactions should be validated, or take WRITE early |
//! | [`publish`] | the commit itself |
//! | [`large`], [`in_log`] | transactions that are too large for memory, and their frames in the log |
//! | [`btree_page`] | pages of b-trees |
//! | [`owners`] | to which table or index a page belongs |
//! | [`conflict`] | the error of a transaction that was overtaken, and where that has happened |

mod allocation;
mod btree_page;
mod checkpoint;
mod conflict;
#[cfg(feature = "controls")]
mod controls;
mod free_list;
mod host;
mod images;
mod in_log;
mod interior;
mod large;
mod lease;
mod leasing;
mod luck;
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
