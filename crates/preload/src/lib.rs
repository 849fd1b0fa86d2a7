//! Puts Duralite under the SQLite of an unchanged program: `duralite run` has the dynamic linker load this
//! library before all others (`LD_PRELOAD`).
//!
//! Calls of `sqlite3_open`, `sqlite3_open_v2` and `sqlite3_open16` come here first. A process may have
//! several copies of SQLite, so this library finds out from the caller's address which copy the caller is
//! linked to. The library makes Duralite the default VFS of that SQLite, if it is not yet the default, and
//! then that SQLite opens the database. The library does nothing before the first open. So the program can
//! still call `sqlite3_config` before that, and a program that opens no database does not load
//! `libduralite.so`. At the end of the process the library reports what served its databases.
//!
//! The modules, from the top layer down; each uses those below it:
//!
//! | module | holds |
//! | --- | --- |
//! | [`entry`] | the functions that programs call instead of SQLite's |
//! | [`deepbind`] | modules whose calls would bypass this library |
//! | [`report`] | what is printed when an open fails, and at the end |
//! | [`register`] | makes Duralite the default VFS of a SQLite |
//! | [`library`] | `libduralite.so`, loaded when it is needed |
//! | [`sqlite`] | one copy of SQLite in the process, found by its caller |
//! | [`orders`] | what `duralite run` asks for, from the environment |
#![allow(unsafe_code)] // the C interface of SQLite and of the dynamic linker

mod deepbind;
mod entry;
mod library;
mod orders;
mod register;
mod report;
mod sqlite;
