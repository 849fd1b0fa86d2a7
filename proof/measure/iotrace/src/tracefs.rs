//! Controls a trace instance of the kernel. The instance belongs to this process.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

use crate::device::Device;

const MOUNT: &str = "/sys/kernel/tracing";
const REQUESTS: [&str; 3] =
    ["events/block/block_rq_issue", "events/block/block_rq_complete", "events/block/block_rq_requeue"];
const BIOS: [&str; 1] = ["events/block/block_bio_queue"];
/// The events by which ext4 reports where it places files.
const MAPPINGS: [&str; 2] = ["events/ext4/ext4_ext_map_blocks_exit", "events/ext4/ext4_ind_map_blocks_exit"];
/// The buffer size in KiB for each processor. The collector empties the buffers many times a second.
const BUFFER_KIB: &str = "4096";
const NAME: &str = "duralite-";
/// The number of traces that a process can run at once.
const ATTEMPTS: u32 = 64;

/// A running trace. Dropping this value ends the trace.
pub struct Session {
    dir: PathBuf,
    events: Vec<&'static str>,
    pipe: Option<File>,
    /// The beginning of a line whose end has not been read yet.
    partial: Vec<u8>,
}

impl Session {
    /// Starts to trace the writes to a device.
    pub fn start(device: &Device) -> Result<Self> {
        let root = Path::new(MOUNT);
        if !root.join("instances").exists() {
            eprintln!("iotrace: mounting tracefs at {MOUNT}");
            let output = Command::new("mount").args(["-t", "tracefs", "none", MOUNT]).output();
            let why = match output {
                Ok(output) if output.status.success() => String::new(),
                Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                Err(error) => error.to_string(),
            };
            if !root.join("instances").exists() {
                bail!("there is no tracefs at {MOUNT}, and it cannot be mounted: {why}");
            }
        }
        let present = |event: &&str| root.join(event).exists();
        let requests = device.has_requests && present(&REQUESTS[0]);
        let wanted = if requests { REQUESTS.as_slice() } else { BIOS.as_slice() };
        let mut events: Vec<_> = wanted.iter().copied().filter(present).collect();
        if events.is_empty() {
            bail!("this kernel has no tracepoints of block devices (CONFIG_BLK_DEV_IO_TRACE)");
        }
        if device.ext4_block().is_some() {
            events.extend(MAPPINGS.iter().copied().filter(present));
        }
        remove_stale(root);
        let mut session = Self { dir: make_instance(root)?, events, pipe: None, partial: Vec::new() };
        // The scans of the files get their times from the same clock.
        session.set("trace_clock", "mono")?;
        session.set("buffer_size_kb", BUFFER_KIB)?;
        let pipe = session.dir.join("trace_pipe");
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        session.pipe = Some(
            OpenOptions::new().read(true).custom_flags(flags).open(pipe).context("cannot open trace_pipe")?,
        );
        let (major, minor) = (rustix::fs::major(device.number), rustix::fs::minor(device.number));
        let of_device = format!("dev == {} && !(rwbs ~ \"R*\")", kernels_number(device.major, device.minor));
        let of_files = format!("dev == {} && ret > 0", kernels_number(major, minor));
        for event in &session.events {
            let filter = if MAPPINGS.contains(event) { &of_files } else { &of_device };
            session.set(&format!("{event}/filter"), filter)?;
        }
        for event in &session.events {
            session.set(&format!("{event}/enable"), "1")?;
        }
        Ok(session)
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.dir.join(name), value).with_context(|| format!("cannot set {name} to {value}"))
    }

    /// Reads the lines that the kernel has ready.
    pub fn drain(&mut self) -> Result<String> {
        let Some(pipe) = &mut self.pipe else { return Ok(String::new()) };
        let mut chunk = vec![0; 64 << 10];
        loop {
            match pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => self.partial.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read the trace"),
            }
        }
        let end = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.partial.split_off(end);
        let lines = std::mem::replace(&mut self.partial, rest);
        Ok(String::from_utf8_lossy(&lines).into_owned())
    }

    /// Stops tracing. Returns the last lines, and the number of events that the kernel lost.
    pub fn finish(mut self) -> Result<(String, u64)> {
        for event in &self.events {
            self.set(&format!("{event}/enable"), "0")?;
        }
        let text = self.drain()?;
        let mut lost = 0;
        for cpu in fs::read_dir(self.dir.join("per_cpu"))?.filter_map(Result::ok) {
            let stats = fs::read_to_string(cpu.path().join("stats")).unwrap_or_default();
            lost += lost_in(&stats);
        }
        Ok((text, lost))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for event in &self.events {
            let _ = self.set(&format!("{event}/enable"), "0");
        }
        self.pipe = None;
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Returns a device number in the kernel's encoding. The upper 12 bits are the major number, and the lower 20
/// bits are the minor number.
fn kernels_number(major: u32, minor: u32) -> u32 {
    major << 20 | minor
}

/// Returns the number of lost events in the statistics of one processor's buffer.
fn lost_in(stats: &str) -> u64 {
    let names = ["overrun: ", "dropped events: "];
    let values = stats.lines().filter_map(|line| names.iter().find_map(|name| line.strip_prefix(name)));
    values.filter_map(|value| value.trim().parse::<u64>().ok()).sum()
}

fn make_instance(root: &Path) -> Result<PathBuf> {
    let pid = std::process::id();
    for attempt in 0..ATTEMPTS {
        let more = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let dir = root.join(format!("instances/{NAME}{pid}{more}"));
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context("cannot make a trace instance"),
        }
    }
    bail!("this process traces {ATTEMPTS} times already")
}

/// Removes instances of processes that were killed. The kernel refuses to remove instances that are in use.
fn remove_stale(root: &Path) {
    let entries = fs::read_dir(root.join("instances")).into_iter().flatten().filter_map(Result::ok);
    for entry in entries {
        let name = entry.file_name();
        if owner_of(&name.to_string_lossy()).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the process id in an instance's name.
fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(NAME)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_statistics_are_read() {
        assert_eq!(owner_of("duralite-123"), Some(123));
        assert_eq!(owner_of("duralite-123-4"), Some(123));
        assert_eq!(owner_of("other-123"), None);
        assert_eq!(owner_of("duralite-x"), None);
        let stats =
            "entries: 0\noverrun: 7\ncommit overrun: 9\nbytes: 1\ndropped events: 2\nread events: 4\n";
        assert_eq!(lost_in(stats), 9);
    }
}
