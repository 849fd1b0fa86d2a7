//! Tests databases with an archive. Some tests are about commits that wait for the archive, and others about
//! what Duralite records beside the database. The tests do the work of the sidecar.

mod lines;
mod waits;
