//! The base VFS and its files, behind methods that are safe to call.
#![allow(unsafe_code)] // every method calls a C function pointer

use std::ffi::{CStr, c_char, c_int, c_void};

use duralite_locks::file::{Code, Level, LockedFile};
use duralite_sqlite_ffi::{self as ffi, File, IoMethods, Vfs};

/// Calls a method of the base VFS. Answers `$missing` if the base VFS does not have it.
macro_rules! call {
    ($table:expr, $method:ident, $missing:expr, $($arg:expr),*) => {
        match $table.$method {
            // SAFETY: the pointer comes from the base VFS's own table, and the caller of `new` promised that
            // the object outlives this value. Buffers are live slices of the stated length. Other pointers
            // are SQLite's own and passed on unchanged.
            Some(method) => unsafe { method($($arg),*) },
            None => $missing,
        }
    };
}

/// Copies a function pointer out of a VFS's table. SQLite may change the table's `next` at any time, so this
/// macro makes no reference to the whole table.
macro_rules! method {
    ($vfs:expr, $method:ident) => {{
        // SAFETY: `BaseVfs::new` promised a VFS that stays registered.
        unsafe { (*$vfs.0).$method }
    }};
}
pub(crate) use method;

/// An open file of the base VFS.
#[derive(Debug, Clone, Copy)]
pub struct BaseFile(*mut File);

// SAFETY: SQLite calls a connection's files under the connection's mutex, and these methods run only within
// such calls. The base VFS's file is not bound to a thread.
unsafe impl Send for BaseFile {}
// SAFETY: as above.
unsafe impl Sync for BaseFile {}

impl BaseFile {
    /// # Safety
    /// `file` is the memory that the base VFS's `xOpen` is given for its file. It stays allocated as long as
    /// this value is used, and its first word is null whenever the file is not open.
    pub unsafe fn new(file: *mut File) -> Self {
        Self(file)
    }

    pub fn as_ptr(self) -> *mut File {
        self.0
    }

    /// Returns the file's methods, or `None` when it is not open.
    pub fn methods(self) -> Option<&'static IoMethods> {
        // SAFETY: the caller of `new` promised that the first word is null or the table of an open file, and
        // VFSs keep their tables for good.
        unsafe { (*self.0).methods.as_ref() }
    }

    pub fn close(self) -> c_int {
        self.methods().map_or(ffi::OK, |m| call!(m, close, ffi::OK, self.0))
    }

    /// Fills `buf`. If the read goes past the end, the bytes there are zeros, and the answer is
    /// `IOERR_SHORT_READ`.
    pub fn read(self, buf: &mut [u8], offset: u64) -> c_int {
        let (Ok(len), Ok(offset)) = (c_int::try_from(buf.len()), i64::try_from(offset)) else {
            return ffi::IOERR_READ;
        };
        let at = buf.as_mut_ptr().cast::<c_void>();
        self.methods().map_or(ffi::IOERR_READ, |m| call!(m, read, ffi::IOERR_READ, self.0, at, len, offset))
    }

    pub fn write(self, data: &[u8], offset: u64) -> c_int {
        let (Ok(len), Ok(offset)) = (c_int::try_from(data.len()), i64::try_from(offset)) else {
            return ffi::IOERR_WRITE;
        };
        let at = data.as_ptr().cast::<c_void>();
        self.methods()
            .map_or(ffi::IOERR_WRITE, |m| call!(m, write, ffi::IOERR_WRITE, self.0, at, len, offset))
    }

    pub fn truncate(self, size: i64) -> c_int {
        self.methods().map_or(ffi::IOERR_TRUNCATE, |m| call!(m, truncate, ffi::IOERR_TRUNCATE, self.0, size))
    }

    pub fn sync(self, flags: c_int) -> c_int {
        self.methods().map_or(ffi::IOERR_FSYNC, |m| call!(m, sync, ffi::IOERR_FSYNC, self.0, flags))
    }

    pub fn size(self) -> Result<u64, c_int> {
        let mut size: i64 = 0;
        let rc = self
            .methods()
            .map_or(ffi::IOERR_FSTAT, |m| call!(m, file_size, ffi::IOERR_FSTAT, self.0, &raw mut size));
        if rc == ffi::OK { u64::try_from(size).map_err(|_| ffi::IOERR_FSTAT) } else { Err(rc) }
    }

    /// Returns whether the file's name no longer leads to this file. Returns `false` if the base VFS cannot
    /// tell.
    pub fn has_moved(self) -> bool {
        let mut moved: c_int = 0;
        let at = (&raw mut moved).cast::<c_void>();
        let rc = self.methods().map_or(ffi::NOTFOUND, |m| {
            call!(m, file_control, ffi::NOTFOUND, self.0, ffi::FCNTL_HAS_MOVED, at)
        });
        rc == ffi::OK && moved != 0
    }

    pub fn sector_size(self) -> c_int {
        self.methods().map_or(4096, |m| call!(m, sector_size, 4096, self.0))
    }

    pub fn device_characteristics(self) -> c_int {
        self.methods().map_or(0, |m| call!(m, device_characteristics, 0, self.0))
    }
}

/// The locks of the base VFS. The base VFS counts them for this process.
impl LockedFile for BaseFile {
    fn lock(&self, level: Level) -> Result<(), Code> {
        let code =
            self.methods().map_or(ffi::IOERR_LOCK, |m| call!(m, lock, ffi::IOERR_LOCK, self.0, level.code()));
        if code == ffi::OK { Ok(()) } else { Err(code) }
    }

    fn unlock(&self, level: Level) -> Result<(), Code> {
        let code = self
            .methods()
            .map_or(ffi::IOERR_UNLOCK, |m| call!(m, unlock, ffi::IOERR_UNLOCK, self.0, level.code()));
        if code == ffi::OK { Ok(()) } else { Err(code) }
    }

    fn level(&self) -> Option<Level> {
        let mut state: c_int = -1;
        let at = (&raw mut state).cast::<c_void>();
        let rc = self.methods().map_or(ffi::NOTFOUND, |m| {
            call!(m, file_control, ffi::NOTFOUND, self.0, ffi::FCNTL_LOCKSTATE, at)
        });
        (rc == ffi::OK && state >= 0).then(|| Level::of_code(state))
    }
}

/// A file that this VFS has opened for itself through the base VFS. The base VFS also closes the file, so
/// closing does not release the locks that this SQLite holds on the file.
pub struct OwnFile {
    file: BaseFile,
    /// The memory of the file, in a box so that the address does not change.
    _memory: Box<[u64]>,
    _name: Vec<u8>,
}

// SAFETY: no other code has the file, and the base VFS's file is not bound to a thread.
unsafe impl Send for OwnFile {}
// SAFETY: as above.
unsafe impl Sync for OwnFile {}

impl OwnFile {
    /// Opens a database for reading. Returns `None` if that fails.
    pub fn open(vfs: BaseVfs, path: &CStr) -> Option<Self> {
        // SQLite's layout of a database's name: four zeros before it, and here no parameters after it.
        let name = [&[0; 4], path.to_bytes(), &[0; 4]].concat();
        let bytes = usize::try_from(method!(vfs, os_file_bytes)).ok()?;
        let mut memory = vec![0_u64; bytes.div_ceil(8)].into_boxed_slice();
        // SAFETY: the memory has the size that the VFS asks for, is zeroed, and stays where it is as long as
        // this value lives.
        let file = unsafe { BaseFile::new(memory.as_mut_ptr().cast()) };
        let flags = ffi::OPEN_READONLY | ffi::OPEN_MAIN_DB;
        // SAFETY: `file` has room for a file and is not open. The name ends with zeros and outlives the file.
        let code =
            unsafe { vfs.open(name.as_ptr().add(4).cast(), file.as_ptr(), flags, std::ptr::null_mut()) };
        // From here on the drop closes the file, even if opening it has failed half-way.
        let own = Self { file, _memory: memory, _name: name };
        (code == ffi::OK).then_some(own)
    }

    /// Returns the file.
    pub fn base(&self) -> BaseFile {
        self.file
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        self.file.close();
    }
}

/// The VFS below this one.
#[derive(Debug, Clone, Copy)]
pub struct BaseVfs(pub(crate) *mut Vfs);

// SAFETY: SQLite itself calls a VFS from any thread.
unsafe impl Send for BaseVfs {}
// SAFETY: as above.
unsafe impl Sync for BaseVfs {}

impl BaseVfs {
    /// # Safety
    /// `vfs` is registered with the SQLite that made the registration, and stays so.
    pub unsafe fn new(vfs: *mut Vfs) -> Self {
        Self(vfs)
    }

    pub fn as_ptr(self) -> *mut Vfs {
        self.0
    }

    pub fn name(self) -> &'static CStr {
        let name = method!(self, name);
        // SAFETY: a registered VFS has a name that lives as long as it is registered.
        unsafe { CStr::from_ptr(name) }
    }

    pub fn delete(self, name: *const c_char, sync_directory: c_int) -> c_int {
        let Some(delete) = method!(self, delete) else { return ffi::IOERR_DELETE };
        // SAFETY: the method and the VFS are the base VFS's own, and the file name is SQLite's.
        unsafe { delete(self.0, name, sync_directory) }
    }

    /// Returns whether the file exists.
    pub fn exists(self, name: *const c_char) -> Result<bool, c_int> {
        let Some(access) = method!(self, access) else { return Err(ffi::IOERR_ACCESS) };
        let mut found: c_int = 0;
        // SAFETY: as in `delete`. The result is a local variable.
        let rc = unsafe { access(self.0, name, ffi::ACCESS_EXISTS, &raw mut found) };
        if rc == ffi::OK { Ok(found != 0) } else { Err(rc) }
    }

    /// Opens a file into `file`.
    ///
    /// # Safety
    /// `file` has room for a file of the base VFS and is not open. `out` is null or writable.
    pub unsafe fn open(self, name: *const c_char, file: *mut File, flags: c_int, out: *mut c_int) -> c_int {
        let Some(open) = method!(self, open) else { return ffi::CANTOPEN };
        // SAFETY: as promised by the caller.
        unsafe { open(self.0, name, file, flags, out) }
    }

    pub fn sleep(self, microseconds: c_int) {
        if let Some(sleep) = method!(self, sleep) {
            // SAFETY: the method and the VFS are the base VFS's own.
            unsafe { sleep(self.0, microseconds) };
        }
    }
}

/// A file name of SQLite's pager, recognised by its address.
#[derive(Debug, Clone, Copy)]
pub struct PagerName(*const c_char);

// SAFETY: the text never changes, and the caller of `new` promised that it outlives this value.
unsafe impl Send for PagerName {}
// SAFETY: as above.
unsafe impl Sync for PagerName {}

impl PagerName {
    /// # Safety
    /// `name` is null or a string that stays alive and unchanged as long as this value is used.
    pub unsafe fn new(name: *const c_char) -> Self {
        Self(name)
    }

    pub fn as_ptr(self) -> *const c_char {
        self.0
    }

    pub fn address(self) -> usize {
        self.0.addr()
    }
}
