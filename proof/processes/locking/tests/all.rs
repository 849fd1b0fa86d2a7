//! Explores schedules of processes that share a database file. Some tests are about file locks, others about
//! transactions that commit at the same time.

mod races;
mod schedules;
