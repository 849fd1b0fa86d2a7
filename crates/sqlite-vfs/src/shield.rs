//! The boundary between this library and C.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Keeps a panic from crossing into C (invariant 12).
pub fn shield<T>(default: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(default)
}
