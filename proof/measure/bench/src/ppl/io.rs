//! Counts the bytes that this thread reads and writes by system calls, whether or not they reach a
//! device.

use std::fs;

use anyhow::{Context, Result};

const COUNTERS: &str = "/proc/thread-self/io";

/// The numbers of bytes that this thread has read and written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// The number of bytes read from files.
    pub read: u64,
    /// The number of bytes written to files.
    pub written: u64,
}

impl Bytes {
    /// Returns the present values of the kernel's counters.
    ///
    /// # Errors
    /// If the kernel does not provide the counters.
    pub fn now() -> Result<Self> {
        let text = fs::read_to_string(COUNTERS).context(COUNTERS)?;
        let counter = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
                .with_context(|| format!("{COUNTERS} has no {name}"))
        };
        Ok(Self { read: counter("rchar:")?, written: counter("wchar:")? })
    }

    /// Returns how many bytes the thread has read and written since `self` was read from the
    /// kernel.
    ///
    /// # Errors
    /// As [`Bytes::now`].
    pub fn since(self) -> Result<Self> {
        let now = Self::now()?;
        Ok(Self { read: now.read - self.read, written: now.written - self.written })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_thread_writes_is_counted_and_what_others_write_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let begin = Bytes::now().unwrap();
        fs::write(dir.path().join("own"), [1; 5000]).unwrap();
        let path = dir.path().join("other");
        std::thread::spawn(move || fs::write(path, [1; 9000]).unwrap()).join().unwrap();
        assert_eq!(begin.since().unwrap().written, 5000);
    }
}
