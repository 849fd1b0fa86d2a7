//! Tests databases with an archive: commits that wait for the archive, and what is recorded beside the
//! database. The tests play the sidecar.

mod lines;
mod waits;
