//! Registers Duralite with the SQLite that is linked into this process.

use std::sync::Once;

use crate::engine;

/// Registers the VFS `duralite` without making it the default. Also registers the tests' own engines. Further
/// calls change nothing.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        engine::register();
        duralite::register().unwrap();
    });
}
