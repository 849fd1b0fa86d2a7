//! Tests of the source and of the documents. They have a crate of their own, so that `make check` does not
//! have to build the tests of the whole for them.

mod documents;
mod figures;
mod image;
mod limits;
mod limits_of_the_source;
mod rooms;
mod structure;
