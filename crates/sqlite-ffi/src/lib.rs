//! The part of SQLite's C interface that Duralite uses, declared by hand.
//!
//! Generated bindings would tie the build to one SQLite and to libclang. The part that a VFS extension needs
//! is small, and has kept its layout since SQLite 3.31. `tests/layout.rs` compares every offset and constant
//! with the header on the machine that runs the tests.

#![allow(missing_docs)] // names and meaning are SQLite's own

mod api;
mod constants;
pub mod linked;
mod types;
mod vfs;
mod vtab;

pub use api::{
    ApiRoutines, BusyHandler, CreateFunction, CreateModule, DB_NAME_SINCE, DB_NAME_WORD, DbName, Destructor,
    EntryPoint, SqlFinal, TXN_STATE_SINCE, TXN_STATE_WORD, TxnState,
};
pub use constants::*;
pub use types::{Connection, Context, SqlFunction, Statement, Value};
pub use vfs::{File, IoMethods, SyscallFn, Vfs};
pub use vtab::{
    Connect, Filter, FindFunction, IndexConstraint, IndexConstraintUsage, IndexInfo, Module, VTab, VTabCursor,
};
