//! `libduralite.so`, loaded at the first open.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::sync::OnceLock;

use duralite_sqlite_ffi::EntryPoint;

/// The environment variable that names the library. `duralite run` sets it.
const VARIABLE: &str = "DURALITE_LIBRARY";

type Begin = extern "C" fn();
/// A function of the library that returns a text or null.
type Text = unsafe extern "C" fn() -> *const c_char;

/// The functions of `libduralite.so` that this library calls.
pub struct Library {
    /// Registers the VFS as the default one.
    pub enter: EntryPoint,
    pub account: Text,
    pub last_error: Text,
}

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

/// Returns the library `libduralite.so`. The first call loads it.
///
/// # Errors
/// The linker's message.
pub fn library() -> Result<&'static Library, &'static str> {
    LIBRARY.get_or_init(load).as_ref().map_err(String::as_str)
}

/// Returns the library, if it has been loaded.
pub fn if_loaded() -> Option<&'static Library> {
    LIBRARY.get()?.as_ref().ok()
}

fn load() -> Result<Library, String> {
    let path = std::env::var(VARIABLE).map_err(|_| format!("{VARIABLE} does not name libduralite.so"))?;
    let path = CString::new(path).map_err(|_| format!("{VARIABLE} holds a zero byte"))?;
    // SAFETY: `path` is a text, and the library's constructors are Rust's own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(linker_error());
    }
    // SAFETY: the functions have these types in the library.
    let (begin, library) = unsafe {
        let begin = mem::transmute::<*mut c_void, Begin>(symbol(handle, c"duralite_account_begin")?);
        let account = mem::transmute::<*mut c_void, Text>(symbol(handle, c"duralite_account")?);
        let last_error = mem::transmute::<*mut c_void, Text>(symbol(handle, c"duralite_last_error")?);
        let enter =
            mem::transmute::<*mut c_void, EntryPoint>(symbol(handle, c"sqlite3_duralitedefault_init")?);
        (begin, Library { enter, account, last_error })
    };
    begin();
    Ok(library)
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: `handle` is one of the linker's, and `name` is a text.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() { Err(linker_error()) } else { Ok(symbol) }
}

fn linker_error() -> String {
    // SAFETY: the linker returns null, or a text that stays until its next error on this thread.
    let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
    text.map_or_else(
        || "unknown error of the dynamic linker".to_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

/// Returns a copy of the text that a function of the library returns. The copy is empty if the function
/// returns null.
pub fn said(function: Text) -> String {
    // SAFETY: the function returns null, or a text that stays until its next call. The copy is made before
    // that call.
    let text = unsafe { function().as_ref().map(|text| CStr::from_ptr(text)) };
    text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The result of an entry point that has succeeded and whose library must stay loaded.
pub const STAYS: c_int = duralite_sqlite_ffi::OK_LOAD_PERMANENTLY;
