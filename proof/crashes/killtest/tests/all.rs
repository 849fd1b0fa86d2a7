//! The tests of the rig: its decisions, and the findings of its kills.

mod decisions;
mod kills;
