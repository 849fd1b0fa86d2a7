//! Code that the project's commands share.

pub mod output;
pub mod progress;
