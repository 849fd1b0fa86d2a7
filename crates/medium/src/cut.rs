//! Mappings of files that another program may truncate.
//!
//! If a program truncates a file while a process has it mapped, an access to a missing page makes the kernel
//! send SIGBUS, which ends the process. The same happens if the file system has no space for the page. If the
//! mapping is [watched](Watched), the process survives: this module's signal handler maps zeros over the rest
//! of the mapping, and marks the mapping as cut. The code that made the access checks the mark afterwards
//! (invariant 19).
//!
//! The handler is installed when the first mapping is watched. Until then, this library does not change the
//! process's signal handling. The handler deals only with faults inside watched mappings of this process. It
//! passes every other SIGBUS on to the action that the process had before this handler: another handler with
//! or without `SA_SIGINFO`, the default action, or none. Both handlers run on the thread's signal stack if
//! the thread has one.
//!
//! If the application installs its own handler later, the kernel calls that handler first. If the
//! application's handler passes on the faults that it does not know, this module's handler still gets them.
//! Otherwise the mappings are no longer protected, and SIGBUS ends the application as it would without this
//! library.
//!
//! Everything that the handler does is allowed in a signal handler: it reads words in static memory, and
//! makes system calls.
#![allow(unsafe_code)] // a handler of signals, and what it does

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// An entry for a watched mapping. The entry is free if `start` is 0.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    process: AtomicI32,
    cut: AtomicBool,
}

impl Place {
    const FREE: usize = 0;
    /// The value of `start` while a thread fills in the entry.
    const TAKEN: usize = 1;

    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(Self::FREE),
            end: AtomicUsize::new(0),
            process: AtomicI32::new(0),
            cut: AtomicBool::new(false),
        }
    }
}

struct Places {
    places: [Place; 32],
    next: AtomicPtr<Places>,
}

static PLACES: Places = Places::new();

impl Places {
    const fn new() -> Self {
        Self { places: [const { Place::new() }; 32], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn all() -> impl Iterator<Item = &'static Place> {
        // SAFETY: the pointer is null, or was leaked by `take_place`.
        let next = |chunk: &&'static Self| unsafe { chunk.next.load(Ordering::Acquire).as_ref() };
        std::iter::successors(Some(&PLACES), next).flat_map(|chunk| &chunk.places)
    }
}

fn take_place() -> &'static Place {
    let free = |place: &&Place| {
        place.start.compare_exchange(Place::FREE, Place::TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    loop {
        if let Some(place) = Places::all().find(free) {
            return place;
        }
        let more = Box::into_raw(Box::new(Places::new()));
        let mut last = &PLACES;
        // SAFETY: `more` is leaked here, and `next` is null or was leaked. A published chunk is never freed.
        while let Err(next) =
            last.next.compare_exchange(ptr::null_mut(), more, Ordering::AcqRel, Ordering::Acquire)
        {
            // SAFETY: `next` is not null here, and was leaked by `take_place`.
            last = unsafe { &*next };
        }
    }
}

/// Protects a mapping: as long as this value exists, the process survives a truncation of the mapping's file.
/// The owner must drop this value before it unmaps the mapping.
pub(crate) struct Watched(&'static Place);

impl Watched {
    /// Watches a mapping of whole pages.
    pub(crate) fn new(base: *const u8, bytes: usize) -> Self {
        install();
        let place = take_place();
        let start = base.addr();
        place.cut.store(false, Ordering::Relaxed);
        place.end.store(start + bytes, Ordering::Relaxed);
        // A forked child inherits this entry but not the mapping, and may map something else at this address.
        // So the entry has the pid of this process, and the handler ignores the entry in every other process.
        place.process.store(own_pid(), Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        Self(place)
    }

    /// Returns whether an access to the mapping has found that a page of the file is missing.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.0.cut.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.start.store(Place::FREE, Ordering::Release);
    }
}

fn own_pid() -> i32 {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::getpid() }
}

/// The action for SIGBUS that the process had before this library installed its handler. [`install`] writes
/// this value once, before it installs the handler.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: `install` writes the value before it sets `INSTALLED`, and all other code only reads it after that.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn install() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the structures hold only numbers and pointers, for which zeros are valid. The handler does
        // only what a signal handler may do. The previous action is stored before the handler can be called.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) != 0 {
                return;
            }
            (*BEFORE.0.get()).write(before);
            INSTALLED.store(true, Ordering::Release);
            let mut ours: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_sigbus;
            ours.sa_sigaction = handler as *const () as usize;
            // Use the signal mask of the previous handler, so that it is in force when this handler calls the
            // previous one.
            ours.sa_mask = before.sa_mask;
            let kept = before.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER);
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | kept;
            libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers, and a fault has an address. A signal sent by a process has
    // none, but its code is not positive, so the address is not read.
    let fault = unsafe {
        let info = &*info;
        (info.si_code > 0).then(|| info.si_addr().addr())
    };
    // SAFETY: the address of this thread's `errno`. The value is saved, because the interrupted code may be
    // about to read it.
    let errno = unsafe { *libc::__errno_location() };
    let survived = fault.is_some_and(survive);
    // SAFETY: the address of this thread's `errno`, as above.
    unsafe { *libc::__errno_location() = errno };
    if !survived {
        hand_on(signal, info, context);
    }
}

/// Maps zeros over a watched mapping, from the page of this address on. Returns `false` if the address is in
/// no watched mapping.
fn survive(address: usize) -> bool {
    let found = Places::all().find(|place| {
        let start = place.start.load(Ordering::Acquire);
        start > Place::TAKEN && start <= address && address < place.end.load(Ordering::Relaxed)
    });
    let Some(place) = found.filter(|place| place.process.load(Ordering::Relaxed) == own_pid()) else {
        return false;
    };
    // Set the mark before any thread can read the zeros.
    place.cut.store(true, Ordering::Release);
    // SAFETY: the call takes only the name of a constant.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let page = address - address % page_bytes;
    // Map zeros over the rest of the mapping. If the system refuses so much memory, map zeros only over this
    // page.
    put_zeros(page, place.end.load(Ordering::Relaxed) - page) || put_zeros(page, page_bytes)
}

fn put_zeros(page: usize, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = ptr::with_exposed_provenance_mut::<c_void>(page);
    // SAFETY: the range consists of whole pages of a watched mapping, which is not unmapped before the
    // interrupted access has ended. No reference points into it, because all accesses are copies or atomic.
    let mapped = unsafe { libc::mmap(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Calls the previous handler, or does what the previous action says.
fn hand_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if !INSTALLED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: `install` wrote the value before it set `INSTALLED`, and nothing writes it after that.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    // SAFETY: the kernel passes a valid pointer.
    let is_fault = unsafe { (*info).si_code } > 0;
    match before.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The kernel ends a process at a fault even if the process ignores SIGBUS. So this handler too
            // treats "ignore" like the default action if the signal is a fault.
            // SAFETY: the calls set the default action in place of this handler. A fault is repeated when
            // this handler returns. A signal that a process has sent must be raised again, and is delivered
            // when this handler returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the code that installed this handler declared that it takes these three arguments.
            let handler = unsafe {
                std::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the code that installed this handler declared that it takes only the signal.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests;
