//! The tests of the command. Each run of the command is a process of its own.

mod backup;
mod checkpoint;
mod commands;
mod containers;
mod deleted;
mod exposition;
mod live;
mod place;
mod places;
mod progress;
mod reclaim;
mod run;
mod salvage;
mod store;
mod top;
