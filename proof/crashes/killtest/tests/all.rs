//! The tests of the rig: what it decides, and what its kills find.

mod decisions;
mod kills;
