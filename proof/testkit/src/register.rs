//! Registration with the SQLite that is linked into this process.

use std::sync::Once;

use crate::engine;

/// Registers the VFS `duralite`, not as the default, and the engines of the tests. Doing it again changes nothing.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        engine::register();
        duralite::register().unwrap();
    });
}
