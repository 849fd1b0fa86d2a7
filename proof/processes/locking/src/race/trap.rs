//! Stops a process of a race before each store to the header of the wal-index, which all processes share. The
//! header has two copies of the committed state, and the words in which checkpoints and readers announce
//! themselves. The process also stops before a store to the first word after the header, which is the first
//! entry of the list of frames. At each of these stops, a process may be killed.
//!
//! A store calls no function that the rig could intercept. So the memory is write-protected while a process
//! races. A store then causes a fault, and the process stops in the handler of the fault. After the stop, the
//! processor makes this one store in a single step, and then the memory is protected again. This works only
//! on x86-64. On other processors there are no such stops.
#![allow(unsafe_code)] // handlers of signals, and protection of memory

/// Makes this process stop at each store to the header of the wal-index from now on. The process must have
/// mapped the wal-index.
#[cfg(not(target_arch = "x86_64"))]
pub fn begin(_process: usize) {}

/// From now on, this process no longer stops at stores to the header of the wal-index.
#[cfg(not(target_arch = "x86_64"))]
pub fn end() {}

#[cfg(target_arch = "x86_64")]
pub use here::{begin, end};

#[cfg(target_arch = "x86_64")]
mod here {
    use std::ffi::{c_int, c_void};
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use crate::board::board;
    use crate::call::{Call, Kind};
    use crate::grain;
    use crate::race::ledger::ledger;

    /// The number of protected bytes: a page of memory.
    const PAGE: usize = 4096;
    /// The size in bytes of the two copies of the committed state, together.
    const COPIES: usize = 96;
    /// The number of watched bytes: the header, and the page number of the first frame, which comes after it.
    const HEADER: usize = 136 + 4;
    /// The alignment of the wal-index in bytes. In the file of the shared memory, the wal-index begins at a
    /// multiple of this number, but not at 0.
    const ALIGNMENT: usize = 64 << 10;
    /// The processor's flag for single steps.
    const TRAP_FLAG: i64 = 0x100;

    /// The address of the first page of the wal-index; 0 while no memory is protected.
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    static PROCESS: AtomicUsize = AtomicUsize::new(0);

    /// Returns the address at which this process has mapped the beginning of the wal-index.
    fn find() -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let here = std::env::current_dir().ok()?;
        let here = here.to_str()?;
        // Search for the name of the directory and not for that of the file. The process that created the
        // file mapped it before it had a name.
        let places = maps.lines().filter(|line| line.contains(here)).filter_map(|line| {
            let mut words = line.split_whitespace();
            let start = words.next()?.split('-').next()?;
            let offset = usize::from_str_radix(words.nth(1)?, 16).ok()?;
            let is_index = offset > 0 && offset.is_multiple_of(ALIGNMENT);
            is_index.then_some((offset, usize::from_str_radix(start, 16).ok()?))
        });
        places.min().map(|(_, start)| start)
    }

    fn protect(page: usize, protection: c_int) {
        // SAFETY: this process has mapped the page. If it stores there, the fault runs the handler below.
        unsafe { libc::mprotect(page as *mut c_void, PAGE, protection) };
    }

    /// Sets or clears the processor's flag for single steps. The flag takes effect when the process continues
    /// after the signal.
    ///
    /// # Safety
    /// `context` is that of a signal.
    unsafe fn single_step(context: *mut c_void, on: bool) {
        // SAFETY: the caller promises that `context` is that of a signal.
        let flags =
            unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] };
        *flags = if on { *flags | TRAP_FLAG } else { *flags & !TRAP_FLAG };
    }

    unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes a valid `info`.
        let at = unsafe { (*info).si_addr() } as usize;
        let page = FIRST.load(SeqCst);
        if page == 0 || !(page..page + PAGE).contains(&at) {
            // This fault is a real error, and not a stop. Without this handler the same store causes the
            // fault again, and that ends the process. SAFETY: the call restores the default action of the
            // signal.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            return;
        }
        let offset = at - page;
        if offset < COPIES && grain::is_racing() {
            ledger().changes_log(PROCESS.load(SeqCst));
        }
        if offset < HEADER && grain::is_fine() {
            let offset = i32::try_from(offset).unwrap_or(i32::MAX);
            board().step(PROCESS.load(SeqCst), Call::Store, Kind::Shm, offset);
        }
        protect(page, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the kernel passes the signal's own context.
        unsafe { single_step(context, true) };
    }

    unsafe extern "C" fn after_step(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
        let page = FIRST.load(SeqCst);
        if page != 0 {
            protect(page, libc::PROT_READ);
        }
        // SAFETY: the kernel passes the signal's own context.
        unsafe { single_step(context, false) };
    }

    type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    fn handle(signal: c_int, handler: Handler) {
        // SAFETY: all-zero bytes are a valid value of the structure, and the handler has the form that the
        // flag asks for.
        let code = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        assert_eq!(code, 0, "no handler for signal {signal}");
    }

    /// Makes this process stop at each store to the header of the wal-index from now on. The process must
    /// have mapped the wal-index.
    pub fn begin(process: usize) {
        let Some(page) = find() else { panic!("the wal-index is not mapped") };
        PROCESS.store(process, SeqCst);
        handle(libc::SIGSEGV, on_fault);
        handle(libc::SIGTRAP, after_step);
        FIRST.store(page, SeqCst);
        protect(page, libc::PROT_READ);
    }

    /// From now on, this process no longer stops at stores to the header of the wal-index.
    pub fn end() {
        let page = FIRST.swap(0, SeqCst);
        if page != 0 {
            protect(page, libc::PROT_READ | libc::PROT_WRITE);
        }
    }
}
