//! Explores schedules of processes that share a database file: how they take locks, and how their
//! transactions commit.

mod races;
mod schedules;
