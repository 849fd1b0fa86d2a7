//! The tests of the library, loaded by a shell and linked to a program.

mod host;
mod linked;
