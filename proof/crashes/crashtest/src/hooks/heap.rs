//! SQLite's memory allocator, which can refuse the n-th allocation.
#![allow(unsafe_code)] // functions that SQLite calls

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use rusqlite::ffi as sqlite;

thread_local! {
    /// The number of allocations that still succeed before one is refused. A negative number means that no
    /// allocation is refused.
    static LEFT: Cell<i64> = const { Cell::new(-1) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// SQLite's original allocation functions, which this module's functions call.
struct Base {
    malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
}

static BASE: OnceLock<Base> = OnceLock::new();

/// Refuses the n-th allocation of this thread from now on, counted from 0. With `None` refuses no allocation.
pub fn refuse(nth: Option<u64>) {
    LEFT.set(nth.map_or(-1, |nth| i64::try_from(nth).unwrap_or(i64::MAX)));
    ASKED.set(0);
}

/// Returns the number of allocations of this thread since [`refuse`] was called.
pub fn asked() -> u64 {
    ASKED.get()
}

fn is_refused() -> bool {
    ASKED.set(ASKED.get() + 1);
    let left = LEFT.get();
    if left >= 0 {
        LEFT.set(left - 1);
    }
    left == 0
}

unsafe extern "C" fn allocate(bytes: c_int) -> *mut c_void {
    if is_refused() {
        return std::ptr::null_mut();
    }
    // SAFETY: this calls SQLite's own function with the argument that SQLite has passed.
    BASE.get().map_or(std::ptr::null_mut(), |base| unsafe { (base.malloc)(bytes) })
}

unsafe extern "C" fn reallocate(old: *mut c_void, bytes: c_int) -> *mut c_void {
    if is_refused() {
        return std::ptr::null_mut();
    }
    // SAFETY: this calls SQLite's own function with the arguments that SQLite has passed.
    BASE.get().map_or(std::ptr::null_mut(), |base| unsafe { (base.realloc)(old, bytes) })
}

/// Installs the functions. Callers must do this before SQLite is initialised.
///
/// # Errors
/// An error if SQLite has been initialised already.
pub fn install() -> anyhow::Result<()> {
    // SAFETY: SQLite fills its structure before the structure is used.
    let code = unsafe {
        let mut base = std::mem::zeroed::<sqlite::sqlite3_mem_methods>();
        let mut code = sqlite::sqlite3_config(sqlite::SQLITE_CONFIG_GETMALLOC, &raw mut base);
        if let (sqlite::SQLITE_OK, Some(malloc), Some(realloc)) = (code, base.xMalloc, base.xRealloc) {
            let _ = BASE.set(Base { malloc, realloc });
            let mut ours = base;
            ours.xMalloc = Some(allocate);
            ours.xRealloc = Some(reallocate);
            code = sqlite::sqlite3_config(sqlite::SQLITE_CONFIG_MALLOC, &raw mut ours);
        }
        code
    };
    anyhow::ensure!(code == sqlite::SQLITE_OK, "SQLite is in use already (code {code})");
    Ok(())
}
