//! Explores schedules of processes that share a database file: of their locks, and of their transactions.

mod races;
mod schedules;
