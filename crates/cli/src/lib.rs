//! Code that the project's commands share.

pub mod locate;
pub mod output;
pub mod progress;
pub mod target;
