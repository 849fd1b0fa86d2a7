//! The reason of the last refusal. For most refusals SQLite itself says no more than "unable to open database
//! file".
//!
//! This module keeps the reason for each thread, because a program asks on the thread whose call failed. It
//! also keeps the reason for the process, because a thread of the library's own may have been refused. If
//! several copies of SQLite use this library, they have these reasons in common.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

/// How many times a thread tries to lock the process's reason, which another thread may be writing. There is
/// a limit because a child that is forked during the write finds the reason locked for good.
const TRIES: u32 = 100;

#[derive(Default)]
struct Own {
    /// The value of [`COUNT`] after this thread's last refusal.
    number: u64,
    last: Option<CString>,
    /// A copy of another thread's text, which this thread has returned to the caller. It stays alive as long
    /// as the caller may use it.
    borrowed: Option<CString>,
}

/// The number of refusals in this process so far. The variable is public, so that a host can read it before
/// each call of SQLite without calling a function.
pub static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
}
static OF_PROCESS: Mutex<Option<CString>> = Mutex::new(None);

/// Returns the text for C, without zero bytes.
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// Remembers a refusal of this thread.
pub fn record(reason: &str) {
    let text = c_text(reason);
    with_process(1, |last| *last = Some(text.clone()));
    // The access fails only while the thread ends.
    let _ = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        own.number = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        own.borrowed = None;
        own.last = Some(text);
    });
}

/// Returns the reason of this thread's last refusal, or of the process's last if this thread has had none.
pub fn last() -> Option<CString> {
    let own = OWN.try_with(|own| own.borrow().last.clone()).ok().flatten();
    own.or_else(|| with_process(TRIES, |last| last.clone()).flatten())
}

/// Returns the number of this thread's last refusal among all refusals of the process, counted from 1.
/// Returns 0 if this thread has had no refusal. If the number is greater than [`COUNT`] was before a call of
/// SQLite, something was refused in that call.
#[must_use]
pub fn last_refusal() -> u64 {
    OWN.try_with(|own| own.borrow().number).unwrap_or(0)
}

/// Returns the reason of this thread's last refusal, or of the process's last if this thread has had none.
#[must_use]
pub fn last_error() -> Option<String> {
    last().map(|text| text.to_string_lossy().into_owned())
}

/// Returns [`last_error`] as text for C, or null. The text stays valid until this thread's next refusal or
/// its next call of this function.
#[must_use]
pub fn last_error_text() -> *const c_char {
    let text = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        if own.last.is_none() {
            let last = with_process(TRIES, |last| last.clone()).flatten();
            if own.borrowed != last {
                own.borrowed = last;
            }
        }
        let text: Option<&CStr> = own.last.as_deref().or(own.borrowed.as_deref());
        text.map_or(ptr::null(), CStr::as_ptr)
    });
    text.unwrap_or(ptr::null())
}

fn with_process<T>(tries: u32, work: impl FnOnce(&mut Option<CString>) -> T) -> Option<T> {
    for _ in 0..tries {
        match OF_PROCESS.try_lock() {
            Ok(mut last) => return Some(work(&mut last)),
            Err(TryLockError::Poisoned(last)) => return Some(work(&mut last.into_inner())),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)] // reads text as C does

    use super::*;

    fn as_c_sees_it() -> Option<String> {
        // SAFETY: the pointer is null, or leads to a text of this thread that ends with a zero.
        unsafe { last_error_text().as_ref().map(|text| CStr::from_ptr(text)) }
            .map(|text| text.to_str().unwrap().to_owned())
    }

    /// This is one test, because the process has a single last refusal.
    #[test]
    fn a_thread_sees_its_own_refusal_and_else_the_last_of_the_process() {
        assert_eq!((last_error(), as_c_sees_it(), last_refusal()), (None, None, 0));
        record("first\0");
        record("mine");
        assert_eq!((last_error().as_deref(), last_refusal()), (Some("mine"), 2));
        let kept = last_error_text();
        std::thread::spawn(|| {
            assert_eq!((as_c_sees_it().as_deref(), last_refusal()), (Some("mine"), 0));
            record("theirs");
            assert_eq!((as_c_sees_it().as_deref(), last_refusal()), (Some("theirs"), 3));
        })
        .join()
        .unwrap();
        assert_eq!(as_c_sees_it().as_deref(), Some("mine"));
        assert_eq!(kept, last_error_text());
        assert_eq!((last_refusal(), COUNT.load(Ordering::Relaxed)), (2, 3));
        std::thread::spawn(|| {
            assert_eq!(as_c_sees_it().as_deref(), Some("theirs"));
            assert_eq!(last_error_text(), last_error_text());
        })
        .join()
        .unwrap();
    }
}
