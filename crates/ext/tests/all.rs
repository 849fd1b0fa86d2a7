//! Tests of the library, both loaded by a shell and linked to a program.

mod host;
mod linked;
