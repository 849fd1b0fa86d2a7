//! Remembers measurements of devices for other processes, because a program that is started for a single
//! commit should not spend more time measuring than working.
//!
//! The measurements are in a file of this user in shared memory, so the file is gone when the machine is
//! started again. The file has a line for each device: the device's number, the time of the measurement in
//! seconds since 1970, and the four times in nanoseconds. The measurements only help to choose the faster
//! method. What is safe on a device is not read from this file, but determined each time. So failures here
//! are ignored, and if two processes write the file, the last one wins.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// The directory of shared memory.
const DIR: &str = "/dev/shm";
/// The time for which a measurement is used.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);
/// The greatest length of the file, in bytes. A longer file was not written by this library, and is ignored.
const MOST_BYTES: u64 = 64 << 10;

/// The medians of four kinds of durable overwrites, in nanoseconds: buffered, direct, direct with
/// `RWF_DSYNC`, and direct with blocks of 512 bytes.
pub(super) type Times = [Option<u64>; 4];

/// The file that holds the measurements.
pub(super) struct Remembered(PathBuf);

struct Line {
    device: u64,
    at: u64,
    times: Times,
}

impl Remembered {
    /// Returns the file of this user.
    pub(super) fn own() -> Self {
        Self::within(Path::new(DIR))
    }

    fn within(dir: &Path) -> Self {
        Self(dir.join(format!("duralite-probes-{}", geteuid().as_raw())))
    }

    /// Returns the times of a device, if they were measured not long ago.
    pub(super) fn times(&self, device: u64) -> Option<Times> {
        let now = now()?;
        let line = self.lines().into_iter().find(|line| line.device == device)?;
        // If the clock was set back, the measurement is not used.
        let age = now.checked_sub(line.at)?;
        (age <= FRESH.as_secs()).then_some(line.times)
    }

    /// Stores what has been measured of a device.
    pub(super) fn remember(&self, device: u64, times: Times) {
        let Some(at) = now() else { return };
        let mut lines = self.lines();
        lines.retain(|line| line.device != device);
        lines.push(Line { device, at, times });
        let mut text = String::new();
        for Line { device, at, times } in lines {
            let _ = write!(text, "{device} {at}");
            for time in times {
                let _ = match time {
                    Some(time) => write!(text, " {time}"),
                    None => write!(text, " -"),
                };
            }
            text.push('\n');
        }
        let temporary = self.0.with_extension(std::process::id().to_string());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        if written.and_then(|()| fs::rename(&temporary, &self.0)).is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }

    /// Returns the lines of the file, if the file is this user's and nobody else can write it.
    fn lines(&self) -> Vec<Line> {
        self.read().map(|text| text.lines().filter_map(parse).collect()).unwrap_or_default()
    }

    fn read(&self) -> Option<String> {
        // Opening must not block if the file is a pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&self.0).ok()?;
        let meta = file.metadata().ok()?;
        let is_own = meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0;
        if !meta.is_file() || !is_own || meta.len() > MOST_BYTES {
            return None;
        }
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

fn now() -> Option<u64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let device = words.next()?.parse().ok()?;
    let at = words.next()?.parse().ok()?;
    let mut times = [None; 4];
    for time in &mut times {
        let word = words.next()?;
        *time = if word == "-" { None } else { Some(word.parse().ok()?) };
    }
    words.next().is_none().then_some(Line { device, at, times })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TIMES: Times = [Some(100), None, Some(300), Some(400)];

    fn fixture() -> (tempfile::TempDir, Remembered) {
        let dir = tempfile::tempdir().unwrap();
        let remembered = Remembered::within(dir.path());
        (dir, remembered)
    }

    #[test]
    fn each_device_is_remembered_as_it_was_measured_last() {
        let (dir, remembered) = fixture();
        assert_eq!(remembered.times(7), None);
        remembered.remember(7, [None; 4]);
        remembered.remember(8, TIMES);
        remembered.remember(7, TIMES);
        assert_eq!((remembered.times(7), remembered.times(8)), (Some(TIMES), Some(TIMES)));
        assert_eq!(remembered.lines().len(), 2);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_is_old_or_of_the_future_is_measured_again() {
        let (_dir, remembered) = fixture();
        for (at, expected) in [(-10, Some(TIMES)), (-90_000, None), (1000, None)] {
            let at = now().unwrap().checked_add_signed(at).unwrap();
            fs::write(&remembered.0, format!("7 {at} 100 - 300 400\n")).unwrap();
            assert_eq!(remembered.times(7), expected);
        }
    }

    #[test]
    fn what_others_may_have_written_or_nobody_can_read_says_nothing() {
        let (dir, remembered) = fixture();
        remembered.remember(7, TIMES);
        fs::set_permissions(&remembered.0, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(remembered.times(7), None);
        // A symbolic link is not followed either.
        let (_other, elsewhere) = fixture();
        elsewhere.remember(7, TIMES);
        fs::remove_file(&remembered.0).unwrap();
        std::os::unix::fs::symlink(&elsewhere.0, &remembered.0).unwrap();
        assert_eq!(remembered.times(7), None);
        fs::remove_file(&remembered.0).unwrap();
        for damaged in
            ["", "7", "7 1 2 3 4 5 6 7\n", "x y z\n", "7 99999999999999999999 1 1 1 1\n", "\u{0}\u{0}"]
        {
            fs::write(&remembered.0, damaged).unwrap();
            fs::set_permissions(&remembered.0, fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(remembered.times(7), None, "{damaged:?}");
        }
        fs::write(&remembered.0, vec![b'7'; MOST_BYTES as usize + 1]).unwrap();
        assert_eq!(remembered.times(7), None);
        remembered.remember(7, TIMES);
        assert_eq!(remembered.times(7), Some(TIMES), "what says nothing is replaced");
        // If the file cannot be written, nothing is remembered.
        let nowhere = Remembered::within(&dir.path().join("missing"));
        nowhere.remember(7, TIMES);
        assert_eq!(nowhere.times(7), None);
    }
}
