//! What the tests share.

use duralite_logdisk::{FileSystemKind, missing_rig};

/// Size of the disks, in bytes.
pub const DISK: u64 = 16 << 20;

/// Whether this machine can; says so if not.
pub fn rig(kind: FileSystemKind) -> bool {
    let Some(why) = missing_rig(kind) else { return true };
    println!("skipped: {why}");
    let required = std::env::var_os("DURALITE_REQUIRE_RIGS").is_some_and(|value| value == "1");
    assert!(!(required && rustix::process::geteuid().is_root()), "DURALITE_REQUIRE_RIGS is set: {why}");
    false
}
