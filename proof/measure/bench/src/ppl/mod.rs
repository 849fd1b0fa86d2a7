//! The measurements of SQLite/PPL (Oh et al., PVLDB 8(12), 2015): its tables 3 to 6 and figures 6 to 8.
//!
//! The paper's traces were never published. The workloads here are generated so that they have the counts of
//! the paper's table 3. Our version of table 3 shows how close they come. Each workload runs on a list of
//! configurations. The list leaves out engines that this build lacks.

mod app;
mod apps;
mod baseline;
mod census;
mod config;
mod device;
mod generate;
mod io;
mod large;
mod memory;
mod model;
mod paper;
mod prepared;
mod reads;
mod replay;
mod sectors;
mod timing;
mod traces;

pub use baseline::figure6;
pub use device::table4;
pub use large::large;
pub use memory::figure8;
pub use reads::table6;
pub use sectors::figure7;
pub use traces::table3;
