//! Finds out where a process hangs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes what the system knows about a process into a file. Returns a line that describes the process.
pub(crate) fn describe(pid: u32, file: &Path) -> String {
    let mut text = String::new();
    for name in ["wchan", "syscall", "stack"] {
        let content = fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        text += &format!("{name}: {}\n", content.trim_end());
    }
    text += &fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let gdb = Command::new("timeout")
        .args(["20", "gdb", "-batch", "-nx", "-ex", "thread apply all bt 30", "-p", &pid.to_string()])
        .stdin(Stdio::null())
        .output();
    match gdb {
        Ok(output) => text += &String::from_utf8_lossy(&output.stdout),
        Err(error) => text += &format!("no stacks by gdb: {error}\n"),
    }
    match fs::write(file, &text) {
        Ok(()) => format!("its stacks are in {}", file.display()),
        Err(error) => format!("its stacks could not be written to {}: {error}", file.display()),
    }
}
