//! A [`View`] as an eponymous virtual table of SQLite, which exists in every schema without `CREATE` and is
//! read-only.
//!
//! Views and triggers must not use the table (`SQLITE_VTAB_DIRECTONLY`), because the table tells where files
//! of this machine are, and a database with its views and triggers may come from elsewhere. In the same way
//! SQLite protects its own tables that show how a database is stored.
#![allow(unsafe_code)] // the functions that SQLite calls

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use duralite_sqlite_ffi::{
    self as ffi, Connect, Connection, Context, IndexInfo, Module, VTab, VTabCursor, Value,
};

use super::values;
use super::views::{CONFLICTS, Cell, LOG, Rows, STATUS, View};
use crate::callbacks::ask;
use crate::shield::shield;
use crate::sqlite::Sqlite;

static VIEWS: [View; 3] = [STATUS, LOG, CONFLICTS];
static MODULES: [Module; 3] = [module(connect::<0>), module(connect::<1>), module(connect::<2>)];

/// The number of the plan for a query that names a schema. Without a schema the table is about `main`.
const BY_SCHEMA: c_int = 1;

/// The cost that this table reports to the planner. The value does not matter, because there is no other plan
/// to choose.
const COST: f64 = 100.0;

/// Makes the module of a table. Because it has no `xCreate`, the table exists without `CREATE VIRTUAL TABLE`,
/// and that statement fails.
const fn module(connect: Connect) -> Module {
    Module {
        version: 0,
        create: None,
        connect: Some(connect),
        best_index: Some(best_index),
        disconnect: Some(disconnect),
        destroy: None,
        open: Some(open),
        close: Some(close),
        filter: Some(filter),
        next: Some(next),
        eof: Some(eof),
        column: Some(column),
        rowid: Some(rowid),
        update: None,
        begin: None,
        sync: None,
        commit: None,
        rollback: None,
        find_function: None,
        rename: None,
    }
}

#[repr(C)]
struct Table {
    base: VTab,
    view: &'static View,
    sqlite: &'static Sqlite,
    connection: *mut Connection,
}

#[repr(C)]
struct Cursor {
    base: VTabCursor,
    schema: CString,
    rows: Option<Box<dyn Rows>>,
    at: usize,
}

/// Gives a connection the tables. Ignores a failure, after which the connection has to do without the tables.
///
/// # Safety
/// `db` is an open connection of this SQLite.
pub unsafe fn add(sqlite: &'static Sqlite, db: *mut Connection) {
    let Some(api) = sqlite.api.tables else { return };
    for (view, module) in VIEWS.iter().zip(&MODULES) {
        let aux: *mut c_void = ptr::from_ref(sqlite).cast_mut().cast();
        // SAFETY: as promised by the caller. The name, the module and `aux` are never freed.
        unsafe { (api.create_module_v2)(db, view.name.as_ptr(), module, aux, None) };
    }
}

/// Returns the table behind the pointer that SQLite passes.
///
/// # Safety
/// `table` was made by [`connect`] and not disconnected.
unsafe fn table_of<'a>(table: *mut VTab) -> &'a Table {
    // SAFETY: as promised by the caller.
    unsafe { &*table.cast::<Table>() }
}

/// Returns the cursor behind the pointer that SQLite passes. No other code uses the cursor during the call.
///
/// # Safety
/// `cursor` was made by [`open`] and not closed.
unsafe fn cursor_of<'a>(cursor: *mut VTabCursor) -> &'a mut Cursor {
    // SAFETY: as promised by the caller.
    unsafe { &mut *cursor.cast::<Cursor>() }
}

unsafe extern "C" fn connect<const VIEW: usize>(
    connection: *mut Connection,
    aux: *mut c_void,
    _count: c_int,
    _arguments: *const *const c_char,
    out: *mut *mut VTab,
    _message: *mut *mut c_char,
) -> c_int {
    shield(ffi::ERROR, || {
        // SAFETY: `aux` is the pointer that `add` gave to SQLite.
        let sqlite = unsafe { &*aux.cast::<Sqlite>() };
        let Some(api) = sqlite.api.tables else { return ffi::ERROR };
        let view = &VIEWS[VIEW];
        // SAFETY: SQLite passes the connection, and the declaration ends with a zero.
        let code = unsafe { (api.declare_vtab)(connection, view.declaration.as_ptr()) };
        if code != ffi::OK {
            return code;
        }
        // SAFETY: SQLite passes the connection, and this option takes no more arguments.
        unsafe { (api.vtab_config)(connection, ffi::VTAB_DIRECTONLY) };
        let base = VTab { module: ptr::null(), references: 0, message: ptr::null_mut() };
        let table = Box::into_raw(Box::new(Table { base, view, sqlite, connection }));
        // SAFETY: SQLite passes a place for the table.
        unsafe { *out = table.cast() };
        ffi::OK
    })
}

unsafe extern "C" fn disconnect(table: *mut VTab) -> c_int {
    shield(ffi::OK, || {
        // SAFETY: `connect` made this table, and SQLite disconnects it once.
        drop(unsafe { Box::from_raw(table.cast::<Table>()) });
        ffi::OK
    })
}

unsafe extern "C" fn best_index(table: *mut VTab, info: *mut IndexInfo) -> c_int {
    shield(ffi::ERROR, || {
        // SAFETY: SQLite passes its own table, and its own `IndexInfo`.
        let (table, info) = unsafe { (table_of(table), &mut *info) };
        info.cost = COST;
        let count = usize::try_from(info.constraints).unwrap_or(0);
        let mut cannot = false;
        for i in 0..count {
            // SAFETY: both arrays have this many elements.
            let (asked, usage) = unsafe { (&*info.constraint.add(i), &mut *info.usage.add(i)) };
            let is_schema =
                asked.column == table.view.schema_column && c_int::from(asked.op) == ffi::INDEX_CONSTRAINT_EQ;
            if is_schema && asked.usable != 0 {
                usage.argv_index = 1;
                usage.omit = 1;
                info.number = BY_SCHEMA;
                return ffi::OK;
            }
            cannot |= is_schema;
        }
        // If the schema comes from another table that SQLite has not read yet, this plan is impossible.
        if cannot { ffi::CONSTRAINT } else { ffi::OK }
    })
}

unsafe extern "C" fn open(_table: *mut VTab, out: *mut *mut VTabCursor) -> c_int {
    shield(ffi::ERROR, || {
        let base = VTabCursor { table: ptr::null_mut() };
        let cursor = Cursor { base, schema: CString::default(), rows: None, at: 0 };
        // SAFETY: SQLite passes a place for the cursor.
        unsafe { *out = Box::into_raw(Box::new(cursor)).cast() };
        ffi::OK
    })
}

unsafe extern "C" fn close(cursor: *mut VTabCursor) -> c_int {
    shield(ffi::OK, || {
        // SAFETY: `open` made this cursor, and SQLite closes it once.
        drop(unsafe { Box::from_raw(cursor.cast::<Cursor>()) });
        ffi::OK
    })
}

unsafe extern "C" fn filter(
    cursor: *mut VTabCursor,
    plan: c_int,
    _text: *const c_char,
    count: c_int,
    arguments: *mut *mut Value,
) -> c_int {
    shield(ffi::ERROR, || {
        // SAFETY: SQLite passes an open cursor.
        let cursor = unsafe { cursor_of(cursor) };
        // SAFETY: after SQLite has opened the cursor, it stores the cursor's table there.
        let table = unsafe { table_of(cursor.base.table) };
        // SAFETY: this is SQLite's own argument, which the plan asks for.
        cursor.schema = unsafe {
            let given = if plan == BY_SCHEMA && count > 0 { *arguments } else { ptr::null_mut() };
            values::schema(&table.sqlite.api, given)
        };
        (cursor.rows, cursor.at) = (None, 0);
        let look = |subject: ask::Subject<'_>| (table.view.rows)(&subject);
        // SAFETY: this is the connection to which the table belongs, and which makes this call.
        let rows = unsafe { ask::about(table.sqlite, table.connection, &cursor.schema, look) };
        match rows.and_then(|rows| rows) {
            Ok(rows) => {
                cursor.rows = Some(rows);
                ffi::OK
            }
            Err(failure) => {
                // SAFETY: SQLite has taken an earlier text out of the table already, and frees this one.
                unsafe { (*cursor.base.table).message = table.sqlite.text(&failure.message) };
                failure.code
            }
        }
    })
}

unsafe extern "C" fn next(cursor: *mut VTabCursor) -> c_int {
    shield(ffi::ERROR, || {
        // SAFETY: SQLite passes an open cursor.
        unsafe { cursor_of(cursor) }.at += 1;
        ffi::OK
    })
}

unsafe extern "C" fn eof(cursor: *mut VTabCursor) -> c_int {
    shield(1, || {
        // SAFETY: SQLite passes an open cursor.
        let cursor = unsafe { cursor_of(cursor) };
        c_int::from(cursor.rows.as_ref().is_none_or(|rows| cursor.at >= rows.count()))
    })
}

unsafe extern "C" fn column(cursor: *mut VTabCursor, context: *mut Context, column: c_int) -> c_int {
    shield(ffi::ERROR, || {
        // SAFETY: SQLite passes an open cursor.
        let cursor = unsafe { cursor_of(cursor) };
        // SAFETY: this is the table to which the cursor belongs.
        let table = unsafe { table_of(cursor.base.table) };
        let cell = match (&cursor.rows, usize::try_from(column)) {
            _ if column == table.view.schema_column => {
                Cell::Text(cursor.schema.to_string_lossy().into_owned())
            }
            (Some(rows), Ok(column)) => rows.cell(cursor.at, column),
            _ => Cell::Null,
        };
        // SAFETY: the context belongs to this call.
        unsafe { values::answer(&table.sqlite.api, context, &cell) };
        ffi::OK
    })
}

unsafe extern "C" fn rowid(cursor: *mut VTabCursor, out: *mut i64) -> c_int {
    shield(ffi::ERROR, || {
        // SAFETY: SQLite passes an open cursor, and a place for the number.
        unsafe { *out = i64::try_from(cursor_of(cursor).at).unwrap_or(i64::MAX) };
        ffi::OK
    })
}
