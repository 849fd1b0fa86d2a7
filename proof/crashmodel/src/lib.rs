//! What a crash may leave, said once for everything that is crashed here.
//!
//! Between what programs see and what is durable lie *pieces in doubt*, each in one of several states,
//! of which 0 is the durable one:
//!
//! - of mapped memory ([`Lines`]) each line of 64 bytes holds any prefix of the words stored since
//!   it was last flushed and fenced; words of 8 bytes are atomic;
//! - of a file ([`Sectors`]) each sector of 512 bytes holds any version written since the last sync;
//! - of a disk ([`disk::DiskModel`]) each aligned piece of each write since the last sync has arrived
//!   or has not, so that a write may be torn between pieces and never within one.
//!
//! Pieces are independent of each other. [`window`] chooses which combinations of a window between two
//! barriers are built, and [`Chance`] one state of one piece.
//!
//! [`RecordingNvm`] and [`RecordingBlock`] are media in memory that are crashed by these rules: tests of
//! the engines run on them. The crash explorer applies the same rules to what it recorded of the code that users
//! run, and the log disk to the requests of a real file system. Nothing of it is in the library that users load.

mod blocks;
mod chance;
pub mod disk;
mod due;
mod lines;
mod memory;
mod over;
mod pieces;
mod sectors;
pub mod window;

pub use blocks::{BlockOp, RecordingBlock};
pub use chance::Chance;
pub use due::{Crashes, DueCrash};
pub use lines::{Lines, WORD_BYTES};
pub use memory::RecordingNvm;
pub use over::{OverBlock, Through};
pub use pieces::pieces;
pub use sectors::{SECTOR, Sectors};
