//! What the commands of the project share.

pub mod output;
pub mod progress;
