//! What works on a log beside the commits: the thread that checkpoints and flushes, and the checkpoint that
//! starts an outgrown log over.

pub mod restart;
pub mod worker;
