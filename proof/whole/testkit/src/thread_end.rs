//! Runs code in the last destructors of a thread, after the destructors of Rust's thread-local values.
#![allow(unsafe_code)] // a destructor called by C

use std::ffi::c_void;

type Body = Box<dyn FnOnce()>;

unsafe extern "C" fn run(body: *mut c_void) {
    // SAFETY: `when_thread_ends` made this pointer, and C passes it to this destructor once.
    let body = unsafe { Box::from_raw(body.cast::<Body>()) };
    body();
}

/// Runs `body` on this thread when the thread ends, after the destructors of Rust's thread-local values.
///
/// # Panics
/// Panics if the system has no thread-specific key left.
pub fn when_thread_ends(body: impl FnOnce() + 'static) {
    let body: Box<Body> = Box::new(Box::new(body));
    let mut key = 0;
    // SAFETY: the key is new, and its value has the type that its destructor expects.
    let code = unsafe {
        assert_eq!(libc::pthread_key_create(&raw mut key, Some(run)), 0);
        libc::pthread_setspecific(key, Box::into_raw(body).cast())
    };
    assert_eq!(code, 0);
}
