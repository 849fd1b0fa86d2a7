//! The measurements of SQLite/PPL (Oh et al., PVLDB 8(12), 2015): its tables 3 to 6 and figures 6 to 8.
//!
//! The traces themselves were never published. Workloads are made that come to the counts of table 3 (which says
//! how near), and they are run on a list of configurations, of which those whose engine is not there are left out.

mod app;
mod apps;
mod census;
mod config;
mod device;
mod elapsed;
mod generate;
mod io;
mod model;
mod paper;
mod prepared;
mod reads;
mod replay;
mod timing;
mod traces;

pub use device::table4;
pub use elapsed::{figure6, figure7, figure8};
pub use reads::table6;
pub use traces::table3;
