//! Puts Duralite under the SQLite of an unchanged program: `duralite run` has the dynamic linker load this library
//! before all others (`LD_PRELOAD`).
//!
//! Calls of `sqlite3_open`, `sqlite3_open_v2` and `sqlite3_open16` come here first. Which SQLite is meant is found
//! out from who calls, since a process may have several; it gets Duralite as its default VFS, once, and then opens.
//! So nothing happens before the program's own `sqlite3_config`, and a program that opens nothing loads nothing
//! more. At its end the process says what became of its databases.
//!
//! From above, each on what is below it:
//!
//! | module | holds |
//! | --- | --- |
//! | [`entry`] | the functions that programs call instead of SQLite's |
//! | [`deepbind`] | modules that are loaded past this library |
//! | [`report`] | what is said at the end |
//! | [`register`] | Duralite as the default VFS of a SQLite |
//! | [`library`] | `libduralite.so`, loaded when it is needed |
//! | [`sqlite`] | one SQLite of the process, found by its caller |
//! | [`orders`] | what `duralite run` wants, from the environment |
#![allow(unsafe_code)] // the C interface of SQLite and of the dynamic linker

mod deepbind;
mod entry;
mod library;
mod orders;
mod register;
mod report;
mod sqlite;
