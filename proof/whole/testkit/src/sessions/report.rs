//! The file to which the sessions of a process write their reports.
//!
//! Each report is one write to the end of the file. If the process is killed, the file has the report as a
//! whole or not at all.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// The file, which all sessions of a process share.
pub struct Report(File);

impl Report {
    pub fn open(path: &Path) -> Self {
        Self(File::options().append(true).create(true).open(path).unwrap())
    }

    pub fn tell(&self, text: &str) {
        (&self.0).write_all(text.as_bytes()).unwrap();
    }
}

/// Returns the time now, in nanoseconds, on a clock that all processes of the machine share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}
