//! A preloaded `dlopen`, for modules that a program loads with `RTLD_DEEPBIND`, as PHP loads its extensions.
//! With this flag a module finds its own libraries' symbols first. If such a module is linked to SQLite, its
//! calls would not reach this library.
//!
//! The program's calls of `dlopen` come here first. If the module is linked to SQLite, this library clears
//! the flag. Then it jumps to the linker's own `dlopen`. Because it jumps and does not call, the linker sees
//! the program as the caller, and uses the program's search path.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::orders::orders;

/// The text that every file that is linked to SQLite's library contains.
const LIBRARY: &[u8] = b"libsqlite3.so";
/// The greatest size, in bytes, of a file that this library searches for the text.
const MOST_BYTES: u64 = 64 << 20;

/// The function to which the call jumps, and the flags to pass to it. The structure is small enough to be
/// returned in two registers.
#[repr(C)]
struct Plan {
    real: *mut c_void,
    flags: i64,
}

/// Calls the linker's `dlopen`, with the same arguments, result and errors, but without `RTLD_DEEPBIND` for a
/// module that is linked to SQLite.
///
/// # Safety
/// The same as for the linker's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8",
        "call {plan}",
        "add rsp, 8", "pop rsi", "pop rdi",
        "mov esi, edx",
        "jmp rax",
        plan = sym plan,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x0, x1, [sp, #-32]!", "str x30, [sp, #16]",
        "bl {plan}",
        "mov x16, x0", "mov x9, x1",
        "ldr x30, [sp, #16]", "ldp x0, x1, [sp], #32",
        "mov x1, x9",
        "br x16",
        plan = sym plan,
    );
}

unsafe extern "C" fn plan(file: *const c_char, flags: c_int) -> Plan {
    // SAFETY: `file` is null, which names the program, or a text, as the linker's function requires.
    let file = unsafe { file.as_ref().map(|file| CStr::from_ptr(file)) };
    let is_deep = flags & libc::RTLD_DEEPBIND != 0;
    let is_sqlites = is_deep
        && catch_unwind(|| orders().are_given && file.is_some_and(is_linked_to_sqlite)).unwrap_or(false);
    let flags = if is_sqlites { flags & !libc::RTLD_DEEPBIND } else { flags };
    Plan { real: real(), flags: i64::from(flags) }
}

/// Returns the linker's own `dlopen`.
fn real() -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let known = REAL.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a text that ends with a zero.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    REAL.store(real, Ordering::Relaxed);
    real
}

/// Returns whether a file contains the name of SQLite's library. Returns `false` if `file` has no slash,
/// because the linker would then search its own directories for the file.
fn is_linked_to_sqlite(file: &CStr) -> bool {
    let path = OsStr::from_bytes(file.to_bytes());
    let is_small = std::fs::metadata(path).is_ok_and(|meta| meta.len() <= MOST_BYTES);
    let is_path = file.to_bytes().contains(&b'/');
    is_path && is_small && std::fs::read(path).is_ok_and(|bytes| contains(&bytes, LIBRARY))
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_name_sqlites_library_are_told_apart() {
        assert!(contains(b"\0libsqlite3.so.0\0libc.so.6\0", LIBRARY));
        assert!(!contains(b"\0libc.so.6\0", LIBRARY) && !contains(b"", LIBRARY));
        assert!(!is_linked_to_sqlite(c"libsqlite3.so.0"), "no path");
        assert!(!is_linked_to_sqlite(c"/does/not/exist"));
    }
}
