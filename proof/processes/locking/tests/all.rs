//! Explores schedules of processes that share a database file. Some tests are about file locks, and others
//! are about transactions that commit at the same time.

mod races;
mod schedules;
