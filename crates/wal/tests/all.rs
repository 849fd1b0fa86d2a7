//! The tests of the log as its users see it.

mod acknowledged;
mod archive;
mod attach;
mod checksums;
mod claims;
mod common;
mod controls;
mod damage;
mod follow;
mod generations;
mod golden;
mod golden_ppl;
mod golden_scratchpad;
mod golden_waldio;
mod hostile;
mod large;
mod leftovers;
mod limits;
mod model;
mod one_pass;
mod panics;
mod poison;
#[path = "common/scratchpad.rs"]
mod rig;
mod scratchpad;
mod scratchpad_heads;
mod shrink;
mod versions;
mod waldio;
mod waldio_length;
