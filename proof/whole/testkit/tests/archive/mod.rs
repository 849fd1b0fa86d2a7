//! Databases with an archive: commits that wait for it, and what is recorded beside
//! the database. The tests play the sidecar.

mod lines;
mod waits;
