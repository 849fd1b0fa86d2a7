//! A disk that logs every write and every sync, and the images that a power cut could leave of it.
//!
//! [`LogDisk`] serves a file from memory through FUSE. A [`Volume`] puts a loop device on that file
//! and ext4, xfs or btrfs on the device, and databases run there. Each write and sync goes to a [`Sink`] in
//! the order in which the disk handled them; an [`EventLog`] takes events of the caller's own
//! (acknowledgements, stores to other media) into the same order. [`DiskModel`](duralite_crashmodel::disk::DiskModel) replays the log up
//! to any point and makes crash images: everything synced, and of the rest what the caller chooses.
//! [`ImageMounter`] mounts them one after another, with the file system's own recovery.
//!
//! What such a disk promises is what disks promise: a sync makes durable what was written before it,
//! and nothing else does; unsynced writes reach the medium in any order, whole or in pieces.
//!
//! Needs root, `/dev/fuse` and loop devices; [`missing_rig`] tells. A process that is killed leaves
//! its mounts behind, and by them its loop devices: run it under `unshare --mount` to be rid of
//! both.

mod disk;
mod error;
mod event;
mod loop_device;
mod mounter;
mod rig;
mod sys;
mod volume;

pub use disk::LogDisk;
pub use error::Error;
pub use event::{EventLog, Sink};
pub use mounter::{ImageMounter, Timings};
pub use rig::missing_rig;
pub use volume::{FileSystemKind, Volume};
