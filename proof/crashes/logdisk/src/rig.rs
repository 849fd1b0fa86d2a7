//! Says what a machine lacks for the rig.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::volume::FileSystemKind;

/// Returns what this machine lacks for a disk with this file system; `None` if nothing is missing.
#[must_use]
pub fn missing_rig(kind: FileSystemKind) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            return Some(format!("no {device}"));
        }
    }
    if !runs(kind.mkfs(), "-V") {
        return Some(format!("no {}", kind.mkfs()));
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.split_whitespace().any(|name| name == kind.name()) && !runs("modprobe", kind.name()) {
        return Some(format!("no {} in the kernel", kind.name()));
    }
    None
}

fn runs(program: &str, argument: &str) -> bool {
    let status = Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
