//! A disk that logs every write and every sync, and produces the images that a power cut could leave.
//!
//! [`LogDisk`] serves a file from memory through FUSE. A [`Volume`] puts a loop device on that file and ext4, xfs or
//! btrfs on the device. Databases run on the volume. Each write and sync goes to a [`Sink`] in the order in which the
//! disk handled them. An [`EventLog`] also takes the caller's own events (acknowledgements, stores to other media) in
//! the same order. [`DiskModel`](duralite_crashmodel::disk::DiskModel) replays the log up to any point and makes crash
//! images. A crash image has everything that was synced. Of the writes that were not synced it has those that the
//! caller chooses. [`ImageMounter`] mounts the images one after another, with the file system's own recovery.
//!
//! The disk promises what real disks promise. A sync makes everything that was written before it durable, and nothing
//! else makes data durable. Unsynced writes reach the medium in any order, whole or in pieces.
//!
//! The rig needs root, `/dev/fuse` and loop devices; [`missing_rig`] says what is missing. If a process of the rig is
//! killed, its mounts and its loop devices remain. To avoid that, run the process under `unshare --mount`.

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
