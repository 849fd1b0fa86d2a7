//! Finds out, from the address of a function's caller, which copy of SQLite the caller is linked to. A
//! process may have several copies of SQLite.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;

use duralite_sqlite_ffi::{Connection, EntryPoint, Vfs};

pub type OpenV2 = unsafe extern "C" fn(*const c_char, *mut *mut Connection, c_int, *const c_char) -> c_int;
type Exec = unsafe extern "C" fn(
    *mut Connection,
    *const c_char,
    *const c_void,
    *mut c_void,
    *mut *mut c_char,
) -> c_int;

/// The functions of one SQLite, each with its type in C.
macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        /// The functions of one SQLite.
        pub struct Sqlite {
            $(pub $name: $type,)*
        }

        impl Sqlite {
            /// Returns the SQLite whose functions the linker finds through this handle.
            fn within(handle: *mut c_void) -> Option<Self> {
                Some(Self { $($name: {
                    let symbol = symbol(handle, concat!("sqlite3_", stringify!($name), "\0"))?;
                    // SAFETY: a function of this name has this type in every SQLite.
                    unsafe { mem::transmute::<*mut c_void, $type>(symbol) }
                },)* })
            }
        }
    };
}

functions! {
    open: unsafe extern "C" fn(*const c_char, *mut *mut Connection) -> c_int,
    open16: unsafe extern "C" fn(*const c_void, *mut *mut Connection) -> c_int,
    open_v2: OpenV2,
    close: unsafe extern "C" fn(*mut Connection) -> c_int,
    exec: Exec,
    db_filename: unsafe extern "C" fn(*mut Connection, *const c_char) -> *const c_char,
    db_readonly: unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int,
    auto_extension: unsafe extern "C" fn(EntryPoint) -> c_int,
    cancel_auto_extension: unsafe extern "C" fn(EntryPoint) -> c_int,
    vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
}

/// Returns the address of a symbol. `name` must end with a zero byte.
fn symbol(handle: *mut c_void, name: &str) -> Option<*mut c_void> {
    // SAFETY: `handle` is one of the linker's, and `name` is a text that ends with a zero.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Returns the file that contains the code at an address, or `None` for the program itself.
fn object_of(address: *const c_void) -> Option<&'static CStr> {
    /// The public fields of `struct link_map`.
    #[repr(C)]
    struct LinkMap {
        base: usize,
        name: *const c_char,
    }
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            info: *mut libc::Dl_info,
            extra: *mut *mut c_void,
            flags: c_int,
        ) -> c_int;
    }
    const LINK_MAP: c_int = 2;
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    let mut map: *mut c_void = ptr::null_mut();
    // SAFETY: both results have memory of the right size, and the function accepts any address.
    let found = unsafe { dladdr1(address, info.as_mut_ptr(), &raw mut map, LINK_MAP) };
    if found == 0 || map.is_null() {
        return None;
    }
    // SAFETY: `map` is the linker's own structure. The linker does not unload the object in the meantime,
    // because a call from the object's code has not returned yet.
    let name = unsafe { CStr::from_ptr((*map.cast::<LinkMap>()).name) };
    (!name.is_empty()).then_some(name)
}

impl Sqlite {
    /// Returns the SQLite that the code at `caller` is linked to, in the caller's own object or in one of
    /// that object's libraries. If neither has a SQLite, returns the first SQLite that the linker finds after
    /// this library.
    pub fn of(caller: *const c_void) -> Option<Self> {
        let object = object_of(caller).and_then(|name| {
            // SAFETY: `name` is a text. The call loads nothing. Nobody closes the handle, so the linker never
            // unloads the object.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            (!handle.is_null()).then_some(handle)
        });
        object.and_then(Self::within).or_else(|| Self::within(libc::RTLD_NEXT))
    }

    /// Returns the SQLite that the program itself contains, if the dynamic linker can see one. The program's
    /// calls go to that SQLite and not to this library.
    pub fn of_program() -> Option<Self> {
        Self::within(libc::RTLD_DEFAULT).filter(|sqlite| object_of(sqlite.open_v2 as *const c_void).is_none())
    }
}
