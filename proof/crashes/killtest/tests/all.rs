//! The tests of the rig. They test its decisions, and whether its kills find losses.

mod decisions;
mod kills;
