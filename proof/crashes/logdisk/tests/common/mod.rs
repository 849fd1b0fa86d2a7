//! Code that the tests share.

use duralite_logdisk::{FileSystemKind, missing_rig};

/// The size of the disks in bytes.
pub const DISK: u64 = 16 << 20;

/// Returns whether this machine can run the rig. If not, prints what is missing.
pub fn rig(kind: FileSystemKind) -> bool {
    let Some(why) = missing_rig(kind) else { return true };
    duralite_testkit::skip(&format!("no disk with {}", kind.name()), &why);
    false
}
