//! Reports new files to the collector. Without these reports, the collector would miss a rollback journal
//! that appears and disappears between two of its scans.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

/// The kernel's notifications about directories; `None` if the kernel has no inotify instance left.
pub struct Arrivals {
    messages: Option<OwnedFd>,
}

impl Arrivals {
    /// Watches directories for new files.
    pub fn new(directories: &[PathBuf]) -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let messages = inotify::init(flags).ok();
        for directory in directories {
            if let Some(messages) = &messages {
                let come = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
                // Without this watch, the collector's regular scans still find most of the files.
                let _ = inotify::add_watch(messages, directory, come);
            }
        }
        Self { messages }
    }

    /// Waits for at most `patience`. Returns whether a file has appeared.
    pub fn wait(&self, patience: Duration) -> bool {
        let Some(messages) = &self.messages else {
            thread::sleep(patience);
            return false;
        };
        let patience = Timespec::try_from(patience).ok();
        let came = poll(&mut [PollFd::new(messages, PollFlags::IN)], patience.as_ref());
        if came != Ok(1) {
            return false;
        }
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(messages, &mut buffer);
        while reader.next().is_ok() {}
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_heard_of_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("old"), "").unwrap();
        let arrivals = Arrivals::new(&[dir.path().to_path_buf(), dir.path().join("none")]);
        std::fs::write(dir.path().join("old"), "more").unwrap();
        assert!(!arrivals.wait(Duration::ZERO));
        std::fs::write(dir.path().join("new"), "").unwrap();
        assert!(arrivals.wait(Duration::from_secs(9)));
        assert!(!arrivals.wait(Duration::ZERO), "heard of once");
    }
}
