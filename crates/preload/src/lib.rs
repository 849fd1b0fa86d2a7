//! Puts Duralite under the SQLite of an unchanged program: `duralite run` has the dynamic linker load this
//! library before all others (`LD_PRELOAD`).
//!
//! Calls of `sqlite3_open`, `sqlite3_open_v2` and `sqlite3_open16` come here first. A process may have
//! several SQLites, so this library finds out from the caller's address which one is meant. That SQLite gets
//! Duralite as its default VFS, once, and then opens the database. So nothing happens before the program's
//! own `sqlite3_config`, and a program that opens nothing loads nothing more. At its end the process reports
//! what became of its databases.
//!
//! The modules from above; each is built on those below it:
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
