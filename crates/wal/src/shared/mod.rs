//! Code that several engines share.
//!
//! Nothing here knows which engine uses it. [`log_file`] makes, opens, locks and identifies the file of a log.
//! [`generations`] finds the generation that is in force. [`delta_chains`] keeps each page as a chain of differences,
//! and [`images`] caches images of pages in the process's memory. [`group`] is group commit on blocks. [`heap`]
//! allocates blocks of persistent memory, [`mapped_home`] is a database whose pages are mapped, and [`past_cache`]
//! decides when to store past the processor's cache. [`pins`] and [`archived`] are words that a log's users share with
//! its followers.

pub mod archived;
pub(crate) mod delta_chains;
pub(crate) mod generations;
pub(crate) mod group;
pub(crate) mod heap;
pub(crate) mod identity;
pub(crate) mod images;
pub(crate) mod log_file;
pub(crate) mod log_memory;
pub mod mapped_home;
pub(crate) mod past_cache;
pub mod pins;
