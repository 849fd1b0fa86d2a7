//! The tests of the kill test itself: whether the seed decides what it does, and whether it finds
//! losses.

mod decisions;
mod kills;
