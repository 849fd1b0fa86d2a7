//! The rules for what a crash may leave. All crash tests of this repository use them.
//!
//! Programs see the newest content of a medium, but some of it may not be durable yet. A *piece in doubt* is
//! a unit of such content. A crash leaves each of these pieces in one of several states. State 0 is the
//! content that was durable before. The kinds of pieces are:
//!
//! - in mapped memory ([`Lines`]) each cache line of 64 bytes holds any prefix of the words stored since the
//!   line was last flushed and fenced; words of 8 bytes are atomic;
//! - in a file ([`Sectors`]) each sector of 512 bytes holds any version written since the last sync;
//! - on a disk ([`disk::DiskModel`]) each aligned piece of each write since the last sync has reached the
//!   disk or has not, so a write may be torn between pieces but never within one.
//!
//! A crash may combine the states of different pieces in any way. [`window`] chooses which combinations of
//! states a test builds for the window between two barriers, and [`Chance`] chooses one state of one piece.
//!
//! [`RecordingNvm`] and [`RecordingBlock`] are media in memory that crash by these rules; the engines' tests
//! run on them. The crash explorer (`crashtest`) records the code that users run, and applies the rules to
//! its recordings. The log disk (`logdisk`) applies the rules to the requests that a real file system sends
//! to its disk. The library that users load contains nothing of this crate.

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
