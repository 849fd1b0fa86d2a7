//! Tests of the source and of the documents. They have a crate of their own, so that `make check` can run
//! them without building the tests of Duralite as a whole.

mod documents;
mod figures;
mod image;
mod limits;
mod limits_of_the_source;
mod rooms;
mod structure;
